"""A statement that a person typed, being answered in a thread; see `analyzer.store.sandbox`."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

import polars as pl

from analyzer.store import sandbox
from webapp import session, store

if TYPE_CHECKING:
    import pyarrow as pa


class QueryTask:
    """A statement on its way: it can be waited for and cancelled.

    Outside the caches: what a person cancels must not be waited for by another.
    """

    def __init__(self, sql: str, limit: int, time_limit_s: float) -> None:
        path, hosted = store.path(), session.hosted()
        self._answer: Future[pl.DataFrame] = Future()
        self._cancel = threading.Event()
        store.release()

        def table() -> pa.Table:
            if hosted:  # an untrusted client's statement must not take the server down
                hosting, visitor = hosted
                return hosting.run_sql(visitor, sql, limit, time_limit_s, self._cancel)
            return sandbox.run_sql(
                path, sql, limit=limit, time_limit_s=time_limit_s, cancel=self._cancel
            )

        def answer() -> None:
            try:
                self._answer.set_result(pl.DataFrame(table()))
            except BaseException as error:
                self._answer.set_exception(error)

        threading.Thread(target=answer, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, waiting for at most so long."""
        return bool(wait([self._answer], seconds).done)

    def cancel(self) -> None:
        """Stop it; nothing happens to one that has ended."""
        self._cancel.set()

    def rows(self) -> pl.DataFrame:
        """Its answer, once it has ended.

        Raises:
            AnalyzerError: The statement is refused, wrong, too slow, or was cancelled; one line.
        """
        return self._answer.result()


def key(sql: str, limit: int, time_limit_s: float) -> tuple[object, ...]:
    """Equal as long as a statement would be answered the same."""
    return (*store.version(), sql, limit, time_limit_s)
