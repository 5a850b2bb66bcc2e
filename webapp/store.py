"""The store that the pages read, over one short read-only connection a page.

Short, so that `analyzer ingest` can write between pages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from analyzer.store import Connection, open_store, rwlock
from webapp import session
from webapp.settings import STORE_VARIABLE

PATIENCE_S = 5.0

Stamp = tuple[tuple[int, int], ...]


def path() -> Path:
    """The store that the app was started with; on a server, that of the visitor's team."""
    if hosted := session.hosted():
        hosting, visitor = hosted
        return hosting.store(visitor)
    return Path(os.environ.get(STORE_VARIABLE, "hostbound.duckdb"))


def exists() -> bool:
    """Is there a store yet?"""
    return open_store(path()).exists()


def version() -> tuple[str, Stamp]:
    """The store's path and a stamp that changes when its content does: a key of caches."""
    found = path()
    return str(found), open_store(found).stamp()


def lock_in_process() -> None:
    """Let readers and an upload of this process wait for each other, which DuckDB does not."""
    rwlock.keep_lock(path())


class _Page(threading.local):
    """What the page that this thread runs has open."""

    stack: ExitStack | None = None
    path: str = ""
    connection: Connection | None = None


_page = _Page()


@contextmanager
def one_connection() -> Generator[None, None, None]:
    """Within, all answers come over one connection, made when the first is not in memory."""
    with ExitStack() as stack:
        _page.stack, _page.connection = stack, None
        try:
            yield
        finally:
            _page.stack, _page.connection = None, None


@contextmanager
def connected(path: str) -> Generator[Connection, None, None]:
    """The page's connection to this store; outside a page, one for this block.

    Raises:
        AnalyzerError: The store is not there, damaged, locked or of another version; one line.
    """
    if _page.stack is None:
        with open_store(Path(path)).reading(patience_s=PATIENCE_S) as connection:
            yield connection
        return
    if _page.connection is None or _page.path != path:
        opened = open_store(Path(path)).reading(patience_s=PATIENCE_S)
        _page.connection, _page.path = _page.stack.enter_context(opened), path
    yield _page.connection


def release() -> None:
    """Close the page's connection before something long: who reads keeps a writer waiting."""
    if _page.stack:
        _page.stack.close()
    _page.connection = None
