"""`analyzer sql`: ask the store in SQL."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from analyzer.cli.arguments import NEEDS, add_store, positive
from schemas.commands import Command

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_ROWS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser, served=True)
    parser.add_argument("sql", metavar="SQL", help='e.g. "SELECT * FROM run_totals"')
    parser.add_argument("--format", choices=("table", "csv", "json", "parquet"), default=None)
    parser.add_argument(
        "--limit", type=positive, default=None, metavar="N", help="at most so many rows"
    )
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS")


def run(args: argparse.Namespace) -> int:
    """Run one read-only statement."""
    from analyzer.store.sandbox import run_sql, write_table

    form = args.format or ("json" if args.json else "table")
    if args.server:
        table = _asked(args)
    else:
        table = run_sql(args.db, args.sql, limit=args.limit, time_limit_s=args.time_limit)
    write_table(table, form, sys.stdout.buffer if form == "parquet" else sys.stdout)
    return 0


def _asked(args: argparse.Namespace) -> pa.Table:
    """The rows that a server answers with; without a limit, as many as it gives."""
    import pyarrow

    from analyzer.server import remote

    body: dict[str, Any] = {"sql": args.sql, "limit": args.limit or _MOST_ROWS}
    body["time_limit_s"] = args.time_limit
    rows = remote.ask(args.server, "sql", {"format": "arrow"}, "POST", body)
    with pyarrow.ipc.open_stream(rows) as reader:
        return reader.read_all()


COMMAND = Command(
    "sql", "Ask the store in SQL, read-only, without file access.", add_arguments, run, NEEDS
)
