"""What a user of `hybrid` can fix, as exceptions. The rest are bugs and keep their traceback."""

from __future__ import annotations


class HybridError(Exception):
    """Base of every error that `hybrid` raises on purpose; the engine stays usable after it."""


class UnsupportedModel(HybridError):
    """The model has a feature that the runtime does not implement; the message names it."""


class UnsupportedDevice(HybridError):
    """The device or an installed package cannot run the requested mode."""


class ContextOverflow(HybridError):
    """Prompt and requested tokens together do not fit the static KV cache."""


class OutOfMemory(HybridError):
    """The device refused an allocation of a known size."""


class Cancelled(HybridError):
    """A request was cancelled while a token was being waited for."""
