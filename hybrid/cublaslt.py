"""Matrix products by a chosen algorithm of cuBLASLt, the library that torch has loaded already.

torch takes the algorithm that the library's heuristics rank first. For a few rows of a prompt
another of the ranked ones is often faster (91 against 64 us for 240 rows, see `tuning.py`), and
torch offers no way to name it. Bound by ctypes: handles and descriptors are made once a shape; a
product is one call, without allocation or synchronisation, so a graph may capture it.
Source: NVIDIA, cuBLAS documentation, "Using the cuBLASLt API".
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WORKSPACE_BYTES = 16 << 20
_RANKED = 16

# Values of the library's enumerations.
_COMPUTE_32F, _REAL_32F, _REAL_16BF = 68, 0, 14
_TRANSPOSE_A, _TRANSPOSED = 3, 1
_MAX_WORKSPACE = 1


class _Ranked(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLt:
    """Products out_TN = a_TK @ weight_NK.T, bfloat16 in and out, float32 inside."""

    def __init__(self, device: torch.device) -> None:
        """Open the library that torch loaded.

        Raises:
            OSError: The process has not loaded it, or it answers with an error.
        """
        self._library = ctypes.CDLL(_loaded())
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = int(self._library.cublasLtGetVersion())
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._plans: dict[tuple[int, int, int], tuple[Any, ...]] = {}
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def with_own_workspace(self) -> CublasLt:
        """Return a copy whose products may run at the same time as this one's."""
        twin = CublasLt.__new__(CublasLt)
        twin.__dict__.update(self.__dict__)
        twin._workspace = torch.empty_like(self._workspace)
        return twin

    def ranked(self, rows: int, outputs: int, width: int) -> int:
        """Return how many algorithms the heuristics offer for a shape."""
        return len(self._plan(rows, outputs, width)[-1])

    def product(self, a_TK: Tensor, weight_NK: Tensor, out_TN: Tensor, rank: int) -> None:
        """Enqueue out = a @ weight.T on the current stream. All contiguous, bfloat16.

        Args:
            rank: Place of the algorithm among those that the heuristics offer, from 0.

        Raises:
            OSError: The library refused; nothing was enqueued.
        """
        rows, width = a_TK.shape
        outputs = weight_NK.shape[0]
        about, a, b, d, algorithms = self._plan(rows, outputs, width)
        stream = torch.cuda.current_stream(a_TK.device).cuda_stream
        # The library counts columns first: out.T (N, T) = weight (N, K) @ a.T (K, T).
        self._call(
            "cublasLtMatmul",
            self._handle,
            about,
            ctypes.byref(self._one),
            ctypes.c_void_p(weight_NK.data_ptr()),
            a,
            ctypes.c_void_p(a_TK.data_ptr()),
            b,
            ctypes.byref(self._zero),
            ctypes.c_void_p(out_TN.data_ptr()),
            d,
            ctypes.c_void_p(out_TN.data_ptr()),
            d,
            ctypes.byref(algorithms[rank].algorithm),
            ctypes.c_void_p(self._workspace.data_ptr()),
            ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(stream),
        )

    def _plan(self, rows: int, outputs: int, width: int) -> tuple[Any, ...]:
        key = (rows, outputs, width)
        if key not in self._plans:
            about = ctypes.c_void_p()
            self._call("cublasLtMatmulDescCreate", ctypes.byref(about), _COMPUTE_32F, _REAL_32F)
            flag = ctypes.c_int32(_TRANSPOSED)
            self._call(
                "cublasLtMatmulDescSetAttribute",
                about,
                _TRANSPOSE_A,
                ctypes.byref(flag),
                ctypes.c_size_t(ctypes.sizeof(flag)),
            )
            a = self._layout(width, outputs)
            b = self._layout(width, rows)
            d = self._layout(outputs, rows)
            self._plans[key] = (about, a, b, d, self._heuristics(about, a, b, d))
        return self._plans[key]

    def _layout(self, first: int, second: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self._call(
            "cublasLtMatrixLayoutCreate",
            ctypes.byref(layout),
            _REAL_16BF,
            ctypes.c_uint64(first),
            ctypes.c_uint64(second),
            ctypes.c_int64(first),
        )
        return layout

    def _heuristics(self, about: Any, a: Any, b: Any, d: Any) -> list[_Ranked]:
        wish = ctypes.c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(wish))
        limit = ctypes.c_size_t(WORKSPACE_BYTES)
        self._call(
            "cublasLtMatmulPreferenceSetAttribute",
            wish,
            _MAX_WORKSPACE,
            ctypes.byref(limit),
            ctypes.c_size_t(ctypes.sizeof(limit)),
        )
        found = (_Ranked * _RANKED)()
        count = ctypes.c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            self._handle,
            about,
            a,
            b,
            d,
            d,
            wish,
            _RANKED,
            found,
            ctypes.byref(count),
        )
        self._call("cublasLtMatmulPreferenceDestroy", wish)
        return [found[i] for i in range(count.value) if found[i].state == 0]

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(f"{name} answered with status {status}")


def _loaded() -> str:
    """Path of the cuBLASLt that this process has mapped."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        match = re.search(r"/\S*libcublasLt\.so\S*", line)
        if match:
            return match.group(0)
    raise OSError("this process has not loaded cuBLASLt")
