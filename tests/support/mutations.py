"""Damage to files, and the check that a damaged one is loaded whole or refused in one line."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import duckdb

from analyzer.ingest import ingest

SLOWEST_S = 20.0
MARKS = b'{}[],:"\\\x00\xff0-.eE9n'


def mutate(data: bytes, dice: random.Random) -> bytes:
    """One to four changes: flips, deletions, duplications, splices, cuts, marks of the format."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4))):
        at = dice.randrange(max(len(changed), 1))
        size = dice.choice((1, 2, 8, 60, 400, 5000))
        kind = dice.randrange(7)
        if kind == 0 and changed:
            changed[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del changed[at : at + size]
        elif kind == 2:
            changed[at:at] = changed[at : at + size]
        elif kind == 3:
            other = dice.randrange(max(len(changed), 1))
            changed[at : at + size] = changed[other : other + size]
        elif kind == 4:
            changed[at : at + 1] = bytes([dice.choice(MARKS)])
        elif kind == 5:
            changed[at:at] = bytes([dice.choice(MARKS)])
        elif dice.random() < 0.3:
            del changed[at:]
    return bytes(changed)


def whole(store: Path, run_id: str | None) -> bool:
    """The run's tables agree with its totals: it was not half written."""
    with duckdb.connect(str(store), read_only=True) as connection:
        runs = connection.execute("SELECT run_id FROM runs").fetchall()
        events, launches, kernels = connection.execute(
            "SELECT (SELECT CASE WHEN NOT coalesce(bool_or(kind = 'graph'), false) THEN "
            "count(*) FILTER (kind = 'kernel') END FROM device_events), "
            "(SELECT count(*) FROM launches), (SELECT sum(kernels) FROM totals "
            "WHERE trace_id IS NULL)"
        ).fetchall()[0]
        total = connection.execute(
            "SELECT sum(launches) FROM totals WHERE trace_id IS NULL"
        ).fetchall()[0][0]
        walls = connection.execute(
            "SELECT count(*) FROM (SELECT sum(l.ns) ns, any_value(s.end_ns - s.start_ns) wall "
            "FROM ledger l JOIN steps s USING (run_id, step_id) "
            "GROUP BY l.run_id, l.step_id) WHERE ns <> wall"
        ).fetchall()[0][0]
    if run_id is None:
        return runs == []
    return runs == [(run_id,)] and (events, launches) == (kernels, total) and walls == 0


def check_loaded_or_refused(path: Path, store: Path, number: int) -> str | None:
    """Load a file into a store of its own; return the error of a refusal.

    Args:
        number: Of the damage, to find it again.
    """
    began = time.monotonic()
    (result,) = ingest(path, store, jobs=1)
    assert time.monotonic() - began < SLOWEST_S, number
    if result.state == "failed":
        assert result.error, number
        assert "\n" not in result.error, number
        assert not store.exists(), number
        return result.error
    assert result.state == "stored", number
    assert all("\n" not in f.message for f in result.findings), number
    assert whole(store, result.run_id), number
    store.unlink()
    return None


def mutate_database(path: Path, dice: random.Random) -> None:
    """Make one to four changes by SQL: odd values, and rows, columns and tables gone."""
    with sqlite3.connect(path) as connection:
        for _ in range(dice.choice((1, 1, 2, 4))):
            names = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            tables = [name for (name,) in connection.execute(names)]
            if not tables:
                break
            table = dice.choice(tables)
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            column = dice.choice(columns)
            some = f"rowid % {dice.choice((1, 2, 7, 50))} = 0"
            kind = dice.randrange(8)
            with suppress(sqlite3.Error):  # a table may refuse what its keys forbid
                if kind < 3:
                    value = dice.choice(VALUES)
                    connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', [value])
                elif kind == 3:
                    shift = dice.choice((1, -1, 1 << 24, 1 << 40, -(1 << 62)))
                    changed = f'CAST("{column}" AS INTEGER) + {shift}'
                    connection.execute(f'UPDATE "{table}" SET "{column}" = {changed} WHERE {some}')
                elif kind == 4:
                    connection.execute(f'DELETE FROM "{table}" WHERE {some}')
                elif kind == 5:
                    connection.execute(
                        f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE {some}'
                    )
                elif kind == 6:
                    connection.execute(
                        f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}x"'
                    )
                else:
                    connection.execute(f'DROP TABLE "{table}"')
    connection.close()


VALUES = (
    None,
    0,
    -1,
    1,
    67,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 62,
    1e300,
    float("inf"),
    -0.5,
    "",
    "text",
    "aten::mm, op_id = ",
    ", sizes = [[",
    "a\nb",
    "\x1f\x00\x1f",
    b"\xff\xfe\x00",
    b"",
)
