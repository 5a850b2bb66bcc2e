"""Matrix products by a chosen algorithm of cuBLASLt, the library that torch has loaded already.

torch takes the algorithm that the library's heuristics rank first. For a few rows of a prompt
another is often faster (91 against 64 us for 240 rows; `tuning_h200.json` has which): one ranked
lower, or one ranked for another number of rows. torch offers no way to name either. A product may
also be left in parts, each over a share of the inner dimension: whoever reads the result sums them,
which saves the library's own reduction. Bound by ctypes: handles and descriptors are made once a
shape; a product is one call, without allocation or synchronisation, so a graph may capture it.
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
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MAX_WORKSPACE = 1

# Rows, outputs, width, parts, elements from one part's result to the next.
_Shape = tuple[int, int, int, int, int]


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
    """Products out_TN = a_TK @ weight_NK.T, bfloat16 in, float32 inside.

    The result is bfloat16 in one part, float32 in several.
    """

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
        self._plans: dict[_Shape, tuple[Any, ...]] = {}
        self._borrowed: dict[tuple[_Shape, int, int], _Ranked] = {}
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def clone_for_stream(self) -> CublasLt:
        """Return a copy whose products may run at the same time as this one's."""
        twin = CublasLt.__new__(CublasLt)
        twin.__dict__.update(self.__dict__)
        twin._workspace = torch.empty_like(self._workspace)
        return twin

    def ranked(self, rows: int, outputs: int, width: int, parts: int = 1) -> list[bytes]:
        """Return the algorithms that the heuristics offer for a shape, best guess first."""
        plan = self._plan(_shape(rows, outputs, width, parts, rows * outputs))
        return [bytes(found.algorithm) for found in plan[-1]]

    def product(
        self, a_TK: Tensor, weight_NK: Tensor, out: Tensor, rank: int, source: int | None = None
    ) -> None:
        """Enqueue out = a @ weight.T on the current stream.

        Args:
            a_TK, weight_NK: Contiguous, bfloat16.
            out: (T, N) bfloat16, or (P, T, N) float32 whose sum over P is the product; each part
                contiguous, K a multiple of P.
            rank: Place of the algorithm among those that the heuristics offer, from 0, ...
            source: ... for this many rows; None: for the rows of `a_TK`.

        Raises:
            OSError: The library refused; nothing was enqueued.
        """
        rows, width = a_TK.shape
        parts, stride = (1, 0) if out.dim() == 2 else (out.shape[0], out.stride(0))
        shape = _shape(rows, weight_NK.shape[0], width, parts, stride)
        about, a, b, d, _ = self._plan(shape)
        algorithm = self._algorithm(shape, source or rows, rank)
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
            ctypes.c_void_p(out.data_ptr()),
            d,
            ctypes.c_void_p(out.data_ptr()),
            d,
            ctypes.byref(algorithm),
            ctypes.c_void_p(self._workspace.data_ptr()),
            ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(stream),
        )

    def _algorithm(self, shape: _Shape, source: int, rank: int) -> Any:
        """Return the algorithm at a rank for `source` rows, once it is known to do `shape`."""
        key = (shape, source, rank)
        if key not in self._borrowed:
            rows, outputs, width, parts, _ = shape
            # Ranks are those of results that lie close together, as when they were measured.
            plain = _shape(source, outputs, width, parts, source * outputs)
            ranked = self._plan(plain)[-1]
            if rank >= len(ranked):
                raise OSError(f"no algorithm of rank {rank} for {source} rows of {shape}")
            found = ranked[rank]
            if shape != plain:
                checked = _Ranked()
                about, a, b, d, _ = self._plan(shape)
                self._call(
                    "cublasLtMatmulAlgoCheck",
                    self._handle,
                    about,
                    a,
                    b,
                    d,
                    d,
                    ctypes.byref(found.algorithm),
                    ctypes.byref(checked),
                )
                if checked.workspace_bytes > WORKSPACE_BYTES:
                    raise OSError(f"an algorithm of {source} rows needs more workspace for {rows}")
            self._borrowed[key] = found
        return self._borrowed[key].algorithm

    def _plan(self, shape: _Shape) -> tuple[Any, ...]:
        if shape not in self._plans:
            rows, outputs, width, parts, stride = shape
            about = ctypes.c_void_p()
            self._call("cublasLtMatmulDescCreate", ctypes.byref(about), _COMPUTE_32F, _REAL_32F)
            self._set("cublasLtMatmulDescSetAttribute", about, _TRANSPOSE_A, _TRANSPOSED)
            share = width // parts
            kind = _REAL_16BF if parts == 1 else _REAL_32F
            # A part reads `share` columns of both operands, whose rows stay `width` apart.
            a = self._layout(_REAL_16BF, share, outputs, width, parts, share)
            b = self._layout(_REAL_16BF, share, rows, width, parts, share)
            d = self._layout(kind, outputs, rows, outputs, parts, stride)
            self._plans[shape] = (about, a, b, d, self._heuristics(about, a, b, d))
        return self._plans[shape]

    def _layout(
        self, kind: int, first: int, second: int, leading: int, parts: int, stride: int
    ) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self._call(
            "cublasLtMatrixLayoutCreate",
            ctypes.byref(layout),
            kind,
            ctypes.c_uint64(first),
            ctypes.c_uint64(second),
            ctypes.c_int64(leading),
        )
        if parts > 1:
            name = "cublasLtMatrixLayoutSetAttribute"
            self._set(name, layout, _BATCH_COUNT, parts)
            self._set(name, layout, _BATCH_STRIDE, stride, ctypes.c_int64)
        return layout

    def _set(
        self, name: str, of: Any, attribute: int, value: int, kind: Any = ctypes.c_int32
    ) -> None:
        held = kind(value)
        size = ctypes.c_size_t(ctypes.sizeof(held))
        self._call(name, of, attribute, ctypes.byref(held), size)

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


def _shape(rows: int, outputs: int, width: int, parts: int, stride: int) -> _Shape:
    if width % parts:
        raise OSError(f"{width} columns cannot be cut into {parts} parts")
    return rows, outputs, width, parts, stride if parts > 1 else 0


def _loaded() -> str:
    """Path of the cuBLASLt that this process has mapped."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        match = re.search(r"/\S*libcublasLt\.so\S*", line)
        if match:
            return match.group(0)
    raise OSError("this process has not loaded cuBLASLt")
