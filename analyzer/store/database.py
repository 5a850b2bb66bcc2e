"""The functions by path that came before `open_store`; goes once nobody calls them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import duckdb

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.store import open_store
from analyzer.store.store import (
    DEFAULT_STORE,
    LOCK_PATIENCE_S,
    READ_PATIENCE_S,
    SANDBOX_MEMORY,
    STORE_VERSION,
    Connection,
    Stamp,
    second_connection,
)

__all__ = ["DEFAULT_STORE", "LOCK_PATIENCE_S", "SANDBOX_MEMORY", "STORE_VERSION"]
__all__ += ["AnalyzerError", "Connection", "Unreachable", "cursor"]

StoreError = duckdb.Error
cursor = second_connection


def open_for_writing(
    path: Path | str, patience_s: float = LOCK_PATIENCE_S, claim: str | None = None
) -> AbstractContextManager[Connection]:
    return open_store(path).writing(claim, patience_s)


def open_for_reading(
    path: Path | str, patience_s: float = READ_PATIENCE_S
) -> AbstractContextManager[Connection]:
    return open_store(path).reading(patience_s)


def exists(path: Path) -> bool:
    return open_store(path).exists()


def stamp(path: Path) -> Stamp:
    return open_store(path).stamp()


def maintain(path: Path, keep_days: float) -> dict[str, int]:
    return open_store(path).maintain(keep_days)


def update(path: Path) -> None:
    open_store(path).make()
