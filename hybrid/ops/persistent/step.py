"""The persistent decode step: built for one model, enqueued once a token, watched."""

from __future__ import annotations

import ctypes
from importlib.resources import files
from typing import Any, cast

import torch

from hybrid.model.spec import Spec
from hybrid.model.weights import Weights
from hybrid.state.buffers import Buffers
from hybrid.state.kv_cache import KVCache

from .arguments import Arguments
from .kernel import Kernel
from .nvrtc import build
from .sizes import Tiling, macros, parts, refusal


class NotPersistent(Exception):
    """Why a model or device has no persistent step."""


class PersistentStep:
    """All of a decode step but the drawing of the token, as one kernel.

    Attributes:
        seconds: What building or reading the kernel took.
        cached: Whether it was read from the disk.
    """

    def __init__(
        self,
        spec: Spec,
        weights: Weights,
        b: Buffers,
        cache: KVCache,
        tiling: Tiling | None = None,
        extra: dict[str, str] | None = None,
    ) -> None:
        """Build the kernel for the model's sizes and the memory it works on.

        Args:
            tiling: None: what was measured best on an H200.
            extra: More macros, for who measures variants.

        Raises:
            NotPersistent: Device, model or compiler do not fit; the message is the reason.
        """
        device = weights.device
        # torch leaves the type of a device's properties open.
        about = cast("Any", torch.cuda).get_device_properties(device)
        if about.major != 9:
            raise NotPersistent(
                f"{about.name} is not a Hopper GPU; the persistent kernel is for one"
            )
        tiling = tiling or Tiling(grid=int(about.multi_processor_count))
        reason = refusal(spec, weights, tiling)
        if reason is not None:
            raise NotPersistent(reason)
        sizes = {**macros(spec, weights, cache.slots, tiling), **(extra or {})}
        try:
            compiled = build(source(), sizes, "sm_90a", _driver_version())
            self._kernel = Kernel(
                compiled.cubin, "decode_step", tiling.grid, tiling.warps * 32 + 32, tiling.shared
            )
        except OSError as error:
            raise NotPersistent(str(error)) from error
        self.seconds, self.cached = compiled.seconds, compiled.cached
        self._arguments = Arguments(weights, b, cache, parts(spec, cache.slots, tiling))
        self._fault = self._arguments.fault.numpy()

    def enqueue(self) -> None:
        """Enqueue the step: embedding to logits of the token and position in the control block."""
        self._kernel.launch(self._arguments.step)

    @property
    def fault(self) -> int:
        """Number of the barrier that a step gave up, 0 if none did. Reads host memory only."""
        return int(self._fault[0])


def source() -> str:
    """Return the kernel's source."""
    here = files("hybrid.ops.persistent")
    return "".join(here.joinpath(n).read_text(encoding="utf-8") for n in ("device.cuh", "step.cu"))


def _driver_version() -> str:
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return str(version.value)
