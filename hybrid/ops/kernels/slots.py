"""The words of the control block as Triton constants.

A kernel may only read globals that are instances of `tl.constexpr`; their values are part of the
key of its compiled code. Each one costs about half a microsecond a launch outside of graphs, when
Triton checks that it is what it was: import only what a kernel reads.
"""

import triton.language as tl

from hybrid.state import control

TOKEN = tl.constexpr(control.TOKEN)
POSITION = tl.constexpr(control.POSITION)
STEP = tl.constexpr(control.STEP)
TOP_K = tl.constexpr(control.TOP_K)
LENGTH = tl.constexpr(control.LENGTH)
SEED_LOW = tl.constexpr(control.SEED_LOW)
SEED_HIGH = tl.constexpr(control.SEED_HIGH)
TEMPERATURE = tl.constexpr(control.TEMPERATURE)
TOP_P = tl.constexpr(control.TOP_P)
RING_BASE = tl.constexpr(control.RING_BASE)
IDS = tl.constexpr(control.IDS)
