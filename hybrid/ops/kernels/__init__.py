"""Triton kernels by their public names: the border behind which nothing is typed.

A kernel keeps its own name with an underscore, which a trace shows and the analyzer classifies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton

from . import decode, moe, prefill, sample

cdiv: Callable[[int, int], int] = triton.cdiv
next_power_of_2: Callable[[int], int] = triton.next_power_of_2

embed: Any = decode._embed
gemv: Any = decode._gemv
attend: Any = decode._attend
moe_up: Any = moe._moe_up
moe_down: Any = moe._moe_down
draw: Any = sample._sample

upload: Any = prefill._upload
norm_rows: Any = prefill._norm_rows
linear_rows: Any = prefill._linear_rows
full_norm_rows: Any = prefill._full_norm_rows
rotate_rows: Any = prefill._rotate_rows
attend_rows: Any = prefill._attend_rows
activate_rows: Any = prefill._activate_rows
route_rows: Any = moe._route_rows
experts_rows: Any = moe._experts_rows
sum_pairs: Any = moe._sum_pairs
gate_rows: Any = moe._gate_rows
take_row: Any = prefill._take_row
