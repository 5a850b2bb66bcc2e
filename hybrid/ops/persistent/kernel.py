"""A loaded kernel and its cooperative launch, by the CUDA driver's own interface.

Source: NVIDIA, CUDA driver API, "Module Management" and "Execution Control".
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_DYNAMIC_SHARED_SIZE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernel:
    """One function of a module, on the device that is current when it is made."""

    def __init__(self, cubin: bytes, name: str, blocks: int, threads: int, shared: int) -> None:
        """Load the code. Not while anything is captured.

        Args:
            shared: Bytes of dynamic shared memory of a block.

        Raises:
            OSError: The driver refused the code or the sizes.
        """
        self._driver: Any = ctypes.CDLL("libcuda.so.1")
        self._sizes = (blocks, threads, shared)
        torch.cuda.current_stream().synchronize()  # makes torch's context the current one
        module = ctypes.c_void_p()
        self._function = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, name.encode())
        self._call("cuFuncSetAttribute", self._function, _DYNAMIC_SHARED_SIZE, shared)

    def launch(self, argument: Any) -> None:
        """Enqueue on the current stream, all blocks at once resident; a capture may take it up.

        Raises:
            OSError: The driver refused; nothing was enqueued.
        """
        blocks, threads, shared = self._sizes
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        stream = torch.cuda.current_stream().cuda_stream
        self._call(
            "cuLaunchCooperativeKernel",
            self._function,
            *(ctypes.c_uint(n) for n in (blocks, 1, 1, threads, 1, 1, shared)),
            ctypes.c_void_p(stream),
            parameters,
        )

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")
