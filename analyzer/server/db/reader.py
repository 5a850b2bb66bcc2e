"""Questions to a SQLite file that every request asks: compiled once, run by the driver.

SQLAlchemy makes the text of a statement; its way to an answer costs several times what SQLite does,
and a request asks two to five. So the text is kept, and each thread keeps a connection.
"""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, PoolProxiedConnection, Select

_Process = Callable[[Any], Any]


class Reader:
    """Reads over the connections of an engine; safe to use from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._mine = threading.local()
        self._known: dict[Select[Any], _Question] = {}

    def rows(self, statement: Select[Any], values: Mapping[str, Any]) -> Sequence[Any]:
        """Rows as named tuples. The statement is kept: give one that is made once, without IN.

        Raises:
            sqlite3.Error: It cannot be read.
        """
        question = self._known.get(statement)
        if question is None:
            question = self._known[statement] = _Question(statement, self._engine)
        connection: PoolProxiedConnection | None = getattr(self._mine, "connection", None)
        if connection is None:  # goes back to the pool when the thread ends
            connection = self._mine.connection = self._engine.raw_connection()
        cursor = connection.cursor()
        try:
            cursor.execute(question.text, question.ordered(values))
            return [question.row(found) for found in cursor.fetchall()]
        finally:
            cursor.close()


class _Question:
    """A statement as the driver takes it, and how its answers are read."""

    def __init__(self, statement: Select[Any], engine: Engine) -> None:
        compiled = statement.compile(engine, compile_kwargs={"render_postcompile": True})
        self.text = str(compiled)
        self._constants: dict[str, Any] = dict(compiled.params)
        self._order: Sequence[str] = getattr(compiled, "positiontup", None) or ()
        columns = list(statement.selected_columns)
        names = [str(column.key) for column in columns]
        # Untyped: the names are known at run time only.
        self._make: Any = namedtuple("Row", names, rename=True)._make  # pyright: ignore[reportUntypedNamedTuple]
        self._processes: list[tuple[int, _Process]] = []
        for place, column in enumerate(columns):
            implementation = column.type.dialect_impl(engine.dialect)
            process: _Process | None = implementation.result_processor(engine.dialect, None)
            if process is not None:
                self._processes.append((place, process))

    def ordered(self, values: Mapping[str, Any]) -> list[Any]:
        """The parameters in the order of the text."""
        known = {**self._constants, **values}
        return [known[name] for name in self._order]

    def row(self, found: Sequence[Any]) -> Any:
        """One row, its values as the columns' types give them."""
        if not self._processes:
            return self._make(found)
        row = list(found)
        for place, process in self._processes:
            row[place] = process(row[place])
        return self._make(row)
