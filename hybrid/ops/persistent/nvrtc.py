"""CUDA C++ to machine code at run time, by the NVRTC that comes with torch; kept on disk.

Bound by ctypes: no compiler and no package beyond torch's own is needed on a user's machine.
Source: NVIDIA, NVRTC documentation.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Compiled:
    """Machine code of one kernel.

    Attributes:
        cubin: The code.
        seconds: What it took to compile, or to read.
        cached: Whether it was found on disk.
    """

    cubin: bytes
    seconds: float
    cached: bool


def build(source: str, macros: dict[str, str], architecture: str, driver: str) -> Compiled:
    """Return the code for `architecture` ("sm_90a"), from the disk if it was built there before.

    Args:
        driver: The driver's version; code built under another one is built anew.

    Raises:
        OSError: NVRTC is not there, or refused the source; the message has its log.
    """
    began = time.perf_counter()
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in sorted(macros.items())]
    parts = (source, *options, driver, str(torch.version.cuda))
    path = folder() / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.cubin"
    try:
        # Half-written files do not exist here: they are renamed when complete.
        return Compiled(path.read_bytes(), time.perf_counter() - began, cached=True)
    except OSError:
        cubin = _compile(source, options)
    _keep(path, cubin)
    return Compiled(cubin, time.perf_counter() - began, cached=False)


def folder() -> Path:
    """Return the folder of kernels that were built."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hostbound" / "kernels"


def _keep(path: Path, cubin: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(cubin)
        os.replace(file.name, path)
    except OSError:
        return  # a disk that takes nothing costs a second at the next start


def _compile(source: str, options: list[str]) -> bytes:
    library = _library()
    program = ctypes.c_void_p()
    made = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"step.cu", 0, None, None
    )
    if made:
        raise OSError(f"nvrtcCreateProgram answered {made}")
    try:
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        code = library.nvrtcCompileProgram(program, len(options), array)
        if code:
            log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            raise OSError(f"NVRTC refused the kernel ({code}): {log.decode(errors='replace')}")
        return _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    count = ctypes.c_size_t()
    size(program, ctypes.byref(count))
    buffer = ctypes.create_string_buffer(count.value)
    get(program, buffer)
    return buffer.raw


def _library() -> Any:
    """The NVRTC of torch's CUDA, its builtins loaded first so that it finds them."""
    major = str(torch.version.cuda).split(".")[0]
    places = [Path(torch.__file__).parent / "lib"]
    places += sorted((Path(torch.__file__).parents[1] / "nvidia").glob("*/lib"))
    for place in places:
        found = {
            kind: [p for p in place.glob(f"libnvrtc{kind}*.so*") if ".alt." not in p.name]
            for kind in ("-builtins", "")
        }
        compilers = [
            p for p in found[""] if p not in found["-builtins"] and f".so.{major}" in p.name
        ]
        if compilers:
            for builtins in found["-builtins"]:
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(compilers[0]))
    try:
        return ctypes.CDLL(f"libnvrtc.so.{major}")
    except OSError as error:
        raise OSError(f"no NVRTC beside torch, in {[str(p) for p in places]}: {error}") from error
