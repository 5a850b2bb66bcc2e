"""Streams: one that serves requests, one beside it for captures; on the CPU neither."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch


class Streams(Protocol):
    """Where an engine's work is enqueued, and waiting for it."""

    def serving(self) -> AbstractContextManager[None]:
        """Return a context in which this thread enqueues on the serving stream."""
        ...

    def drain(self) -> None:
        """Wait for all that is enqueued on the serving stream."""
        ...

    def is_drained(self) -> bool:
        """Return whether the serving stream has nothing left to do."""
        ...


class HostStreams:
    """The CPU's: every call has done its work when it returns."""

    def serving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def drain(self) -> None:
        return None

    def is_drained(self) -> bool:
        return True


class CudaStreams:
    """Two streams of one device.

    Attributes:
        side: For captures and their warm-ups.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Serving comes first on the device; captures and their warm-ups take what is left.
        self._serving = torch.cuda.Stream(device, priority=-1)
        self.side = torch.cuda.Stream(device, priority=0)

    def serving(self) -> AbstractContextManager[None]:
        if torch.cuda.current_device() != self._serving.device_index:
            return torch.cuda.stream(self._serving)
        return _OnStream(self._serving)

    def drain(self) -> None:
        self._serving.synchronize()

    def is_drained(self) -> bool:
        return self._serving.query()

    def synchronize_current(self) -> None:
        """Wait for the fills that allocation queued on this thread's current stream.

        The engine's own streams do not wait for that one: a step that overtook the fill of its
        control block would read old memory as token ids.
        """
        torch.cuda.current_stream(self._device).synchronize()


class _OnStream:
    """torch.cuda.stream() for a stream of the current device, at a third of its host time."""

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = self._before = stream

    def __enter__(self) -> None:
        self._before = torch.cuda.current_stream()
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream(self._before)
