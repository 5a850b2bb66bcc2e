"""An empty kernel, launched through each launch API: the launch floor of this host and GPU.

One block of one thread. The kernel is PTX text that the driver compiles: no compiler is needed,
only what a CUDA build of torch brings (libcuda, libcudart). Definitions, all in integer
nanoseconds:

    api_start_to_kernel_start   launch call start to kernel start, synchronised after each launch,
                                under Kineto: the launch floor
    annotation_to_kernel_start  start of the annotation around the launch to kernel start, of the
                                same samples
    api_end_to_kernel_start     launch call end to kernel start, of the same samples
    unsynchronised_host_cost    host time of a launch call, back to back, without the profiler
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from collector.errors import CollectorError

NAME = "hostbound_null_kernel"
DEFINITIONS = {
    "api_start_to_kernel_start": "launch call start to kernel start of an empty kernel (one "
    "block of one thread), synchronised after each launch, under the profiler, in blocks among the "
    "kernel replays",
    "annotation_to_kernel_start": "start of the annotation around the launch to kernel start of "
    "the same samples",
    "api_end_to_kernel_start": "launch call end to kernel start of the same samples",
    "unsynchronised_host_cost": "host time of one launch call in a row of them, without the "
    "profiler",
}
_PTX = f""".version 7.0
.target sm_52
.address_size 64
.visible .entry {NAME}()
{{
    ret;
}}
""".encode()


class _Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _RuntimeConfig(ctypes.Structure):
    """cudaLaunchConfig_t"""

    _fields_ = (
        ("grid", _Dim3),
        ("block", _Dim3),
        ("shared", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class _DriverConfig(ctypes.Structure):
    """CUlaunchConfig"""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


@dataclass
class NullKernel:
    """Launchers by API name, on the current stream; `missing` says why an API is not there."""

    launchers: dict[str, Callable[[], None]]
    missing: dict[str, str]
    _references: list[Any]


def load() -> NullKernel:
    """Load the empty kernel into the current CUDA context.

    Raises:
        CollectorError: No launch API can be reached.
    """
    import torch

    torch.cuda.current_stream()  # makes the context
    torch.zeros(1, device="cuda")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    launchers: dict[str, Callable[[], None]] = {}
    missing: dict[str, str] = {}
    references: list[Any] = []
    for add in (_driver, _runtime):
        try:
            add(stream, launchers, missing, references)
        except (OSError, AttributeError, CollectorError) as error:
            missing["cuda driver" if add is _driver else "cuda runtime"] = str(error)
    if not launchers:
        raise CollectorError(f"the empty kernel cannot be launched here: {missing}.")
    return NullKernel(launchers, missing, references)


def _check(code: int, what: str) -> None:
    if code:
        raise CollectorError(f"{what} failed with code {code}")


def _driver(
    stream: ctypes.c_void_p,
    launchers: dict[str, Callable[[], None]],
    missing: dict[str, str],
    references: list[Any],
) -> None:
    lib = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(lib.cuModuleLoadData(ctypes.byref(module), _PTX), "cuModuleLoadData")
    _check(
        lib.cuModuleGetFunction(ctypes.byref(function), module, NAME.encode()),
        "cuModuleGetFunction",
    )
    plain = lib.cuLaunchKernel
    plain.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]

    def launch() -> None:
        _check(plain(function, 1, 1, 1, 1, 1, 1, 0, stream, None, None), "cuLaunchKernel")

    launchers["cuLaunchKernel"] = launch
    try:
        extended = lib.cuLaunchKernelEx
    except AttributeError:
        missing["cuLaunchKernelEx"] = "this driver has none"
        return
    config = _DriverConfig(1, 1, 1, 1, 1, 1, 0, stream, None, 0)
    extended.argtypes = [ctypes.c_void_p] * 4
    pointer = ctypes.addressof(config)

    def launch_extended() -> None:
        _check(extended(pointer, function, None, None), "cuLaunchKernelEx")

    launchers["cuLaunchKernelEx"] = launch_extended
    references += [lib, module, function, config]


def _runtime(
    stream: ctypes.c_void_p,
    launchers: dict[str, Callable[[], None]],
    missing: dict[str, str],
    references: list[Any],
) -> None:
    """The runtime launches kernels of a library loaded from memory (CUDA 12.8 and newer)."""
    lib = ctypes.CDLL(_loaded_runtime())
    if not hasattr(lib, "cudaLibraryLoadData"):
        missing["cudaLaunchKernel"] = (
            "this CUDA runtime cannot load a kernel from memory (12.8 can)"
        )
        return
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    code = lib.cudaLibraryLoadData(ctypes.byref(library), _PTX, None, None, 0, None, None, 0)
    _check(code, "cudaLibraryLoadData")
    _check(
        lib.cudaLibraryGetKernel(ctypes.byref(kernel), library, NAME.encode()),
        "cudaLibraryGetKernel",
    )
    one = _Dim3(1, 1, 1)
    plain = lib.cudaLaunchKernel
    plain.argtypes = [
        ctypes.c_void_p,
        _Dim3,
        _Dim3,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]

    def launch() -> None:
        _check(plain(kernel, one, one, None, 0, stream), "cudaLaunchKernel")

    launchers["cudaLaunchKernel"] = launch
    config = _RuntimeConfig(one, one, 0, stream, None, 0)
    extended = lib.cudaLaunchKernelExC
    extended.argtypes = [ctypes.c_void_p] * 3
    pointer = ctypes.addressof(config)

    def launch_extended() -> None:
        _check(extended(pointer, kernel, None), "cudaLaunchKernelExC")

    launchers["cudaLaunchKernelExC"] = launch_extended
    references += [lib, library, kernel, config, one]


def _loaded_runtime() -> str:
    """Path of the CUDA runtime that torch has loaded: another copy would not see its context."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.rpartition(" ")[2]
        if "libcudart" in path:
            return path
    raise CollectorError("torch has no CUDA runtime loaded as a library of its own")


def unsynchronised_cost(
    launch: Callable[[], None], rows: int = 50, in_a_row: int = 200
) -> list[int]:
    """Host cost of a launch, back to back: one sample a row, in ns a launch."""
    import torch

    samples: list[int] = []
    for _ in range(rows):
        torch.cuda.synchronize()
        began = perf_counter_ns()
        for _ in range(in_a_row):
            launch()
        samples.append((perf_counter_ns() - began) // in_a_row)
    torch.cuda.synchronize()
    return samples
