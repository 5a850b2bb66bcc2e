"""The control block: what may change between two replays of a graph, in device memory.

int32 words, numbered here for the host and (`ops/kernels/slots.py`) for the kernels alike. Words
TEMPERATURE and TOP_P hold the bits of a float32. The prompt's token ids begin at word IDS.
"""

from __future__ import annotations

TOKEN, POSITION, STEP, TOP_K, LENGTH = 0, 1, 2, 3, 4
SEED_LOW, SEED_HIGH, TEMPERATURE, TOP_P, RING_BASE = 5, 6, 7, 8, 9
IDS = 16
