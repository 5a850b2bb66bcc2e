"""Runs a coroutine where a browser test may have left an event loop in the thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_Value = TypeVar("_Value")


def run(coroutine: Coroutine[Any, Any, _Value]) -> _Value:
    """The coroutine's value; it runs in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
