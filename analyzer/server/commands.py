"""The commands `serve`, `token` and `jobs` of the command line; imports little until one runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.commands import Command
from schemas.extras import require

if TYPE_CHECKING:
    from analyzer.server.auth.tokens import Tokens
    from analyzer.server.layout import Layout

DEFAULT_DB = "hostbound.duckdb"
NEEDS = ("duckdb", "polars", "pyarrow", "numpy", "msgspec", "rich")
TOKEN_VARIABLE = "HOSTBOUND_TOKEN"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """Bytes from "500M" or "4G"."""
    unit = text[-1:].upper()
    try:
        number = float(text[:-1]) * _UNITS[unit] if unit in _UNITS else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500M or 4G") from None
    if not 1 <= number < 2**60:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500M or 4G")
    return int(number)


def _more_than_0(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _folder(text: str) -> Path:
    """A folder; an empty name, from a variable that is not set, is not the folder one is in."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name a folder")
    return Path(text)


# Option, field of Limits, type, help.
_LIMITS: tuple[tuple[str, str, Callable[[str], Any], str], ...] = (
    ("--max-upload", "upload_bytes", size, "largest upload"),
    (
        "--max-decompressed",
        "decompressed_bytes",
        size,
        "largest content of an upload, decompressed",
    ),
    ("--max-files", "members", _count, "files in an archive"),
    ("--max-events", "events", _count, "events in a trace"),
    ("--team-bytes", "team_bytes", size, "originals that one team may keep"),
    ("--team-queued", "team_queued", _count, "conversions of one team that are queued"),
    ("--job-seconds", "job_seconds", _more_than_0, "longest conversion"),
    ("--commit-seconds", "commit_seconds", _more_than_0, "longest commit of a run"),
    (
        "--job-memory",
        "job_memory_bytes",
        size,
        "most memory of a conversion (default: 3/4 of what there is, divided by --workers and one)",
    ),
    ("--requests-per-second", "requests_per_second", _more_than_0, "of one token, on average"),
    ("--slow-seconds", "slow_seconds", _more_than_0, "longest wait for what a client sends"),
    ("--keep-free", "reserve_bytes", size, "disk that uploads leave free"),
    ("--sql-seconds", "sql_seconds", _more_than_0, "longest SQL statement"),
    ("--sql-memory", "sql_memory_bytes", size, "most memory of an SQL statement"),
    ("--sql-at-once", "sql_at_once", _count, "SQL statements at the same time"),
)


def _add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--data",
        type=_folder,
        metavar="DIR",
        help="folder of a team server: stores, originals, tokens; with --db: of a server on a lake",
    )
    serve.add_argument(
        "--db",
        type=Path,
        metavar="FILE",
        help=f"one store, for this machine, or a lake (default: {DEFAULT_DB})",
    )
    serve.add_argument("--host", default="127.0.0.1", help="address (default: this machine only)")
    serve.add_argument("--port", type=int, default=8501, help="port (default: %(default)s)")
    serve.add_argument(
        "--base-path",
        default="",
        metavar="PATH",
        help="path of all addresses, as behind a proxy: /hostbound (default: none)",
    )
    serve.add_argument("--workers", type=_count, metavar="N", help="conversions at once")
    serve.add_argument("--oidc", type=Path, metavar="FILE", help="identity provider of the pages")
    serve.add_argument("--no-pages", action="store_true", help="the API alone")
    serve.add_argument(
        "--local",
        action="store_true",
        help="no login, until there is a token: the address is this machine's and no proxy passes "
        "requests of others on to it",
    )
    serve.add_argument(
        "--no-login-i-know",
        action="store_true",
        help="let in everybody who reaches the address, with all rights",
    )
    serve.add_argument("--grace-seconds", type=_more_than_0, default=30.0, metavar="S")
    limits = serve.add_argument_group("limits")
    for option, field, kind, help_text in _LIMITS:
        limits.add_argument(option, dest=field, type=kind, metavar="N", help=help_text)


def _add_token(token: argparse.ArgumentParser) -> None:
    actions = token.add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a token and print it, once")
    create.set_defaults(action=token_create)
    create.add_argument("--team", required=True)
    create.add_argument("--scope", required=True, help="some of upload,read,admin")
    create.add_argument("--name", default="", help="what it is for")
    create.add_argument("--expires", type=_more_than_0, metavar="DAYS")
    listing = actions.add_parser("list", help="list tokens, without their secrets")
    listing.set_defaults(action=token_list)
    listing.add_argument("--team")
    revoke = actions.add_parser("revoke", help="end a token at once")
    revoke.set_defaults(action=token_revoke)
    revoke.add_argument("id")
    for action in (create, listing, revoke):
        where = action.add_mutually_exclusive_group(required=True)
        where.add_argument("--data", type=_folder, metavar="DIR", help="the server's folder")
        where.add_argument("--db", type=Path, metavar="FILE", help="the store or lake it serves")
        action.add_argument("--json", action="store_true", help="print JSON instead of text")


def _add_jobs(jobs: argparse.ArgumentParser) -> None:
    where = jobs.add_mutually_exclusive_group(required=True)
    where.add_argument("--server", metavar="URL", help=f"with the token in {TOKEN_VARIABLE}")
    where.add_argument("--data", type=_folder, metavar="DIR", help="the server's folder")
    where.add_argument("--db", type=Path, metavar="FILE", help="the store or lake it serves")
    jobs.add_argument("--team", help="with --data and --db: of one team")
    jobs.add_argument("--state", choices=("queued", "running", "done", "failed"))
    jobs.add_argument("--limit", type=_count, default=50, metavar="N")
    jobs.add_argument("--json", action="store_true", help="print JSON instead of text")


def serve_command(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    require("server", "fastapi", "uvicorn", "prometheus_client", "sqlalchemy")
    from analyzer.server.jobs import memory
    from analyzer.server.limits import Limits
    from analyzer.server.serve import ServeOptions, serve

    workers = args.workers or min(4, os.cpu_count() or 1)
    given = {field: getattr(args, field) for _, field, _, _ in _LIMITS}
    if given["job_memory_bytes"] is None:
        given["job_memory_bytes"] = memory.of_a_job(workers + 1, memory.total_bytes())
    limits = replace(Limits(), **{k: v for k, v in given.items() if v is not None})
    serve(
        ServeOptions(
            data=args.data,
            db=args.db or (None if args.data else Path(DEFAULT_DB)),
            host=args.host,
            port=args.port,
            base_path=args.base_path,
            workers=workers,
            local=args.local,
            no_login=args.no_login_i_know,
            oidc=args.oidc,
            pages=not args.no_pages,
            grace_seconds=args.grace_seconds,
            limits=limits,
        )
    )
    return 0


def _layout(args: argparse.Namespace) -> Layout:
    """Where the server is that --data or --db names."""
    from analyzer.server.layout import Layout

    return Layout.of_store(args.db) if args.db else Layout.of_folder(args.data)


def _tokens(layout: Layout, make: bool = False) -> Tokens:
    """The tokens of a server's folder or lake; only who creates one may make the folder."""
    require("server", "sqlalchemy")
    from analyzer.server.auth.tokens import Tokens
    from analyzer.server.db.database import open_database

    if make and layout.lake is None:
        layout.check_store()
        layout.make()
    return Tokens(open_database(layout, make))


def token_create(args: argparse.Namespace) -> int:
    """Make a token; its text alone goes to stdout."""
    from analyzer.render.json_text import print_json
    from analyzer.server.auth.principal import parse_scopes

    layout = _layout(args)
    layout.check_team(args.team)  # before a folder is made for it
    scopes = parse_scopes(args.scope)
    text, token = _tokens(layout, make=True).create(args.team, scopes, args.name, args.expires)
    if args.json:
        print_json({**asdict(token), "token": text})
        return 0
    sys.stdout.write(text + "\n")
    sys.stderr.write(
        f"analyzer: token {token.id} of team {token.team} for {', '.join(token.scopes)}; "
        "it is shown this once.\n"
    )
    return 0


def token_list(args: argparse.Namespace) -> int:
    """List tokens."""
    from analyzer.render.json_text import print_json

    tokens = _tokens(_layout(args)).all(args.team)
    if args.json:
        print_json(tokens)
        return 0
    from analyzer.render.tables import console, table

    shown = [
        (
            token.id,
            token.team,
            ",".join(token.scopes),
            "active" if token.active else "revoked" if token.revoked_at else "expired",
            _day(token.created_at),
            _day(token.expires_at),
            token.name,
        )
        for token in tokens
    ]
    heads = ("id", "team", "scopes", "state", "made", "expires", "name")
    console().print(table([(head, "left") for head in heads], shown, indent=0))
    return 0


def token_revoke(args: argparse.Namespace) -> int:
    """Revoke a token."""
    from analyzer.errors import AnalyzerError
    from analyzer.render.json_text import print_json

    if not _tokens(_layout(args)).revoke(args.id):
        raise AnalyzerError(f"there is no token {args.id!r}; `analyzer token list` has the ids.")
    if args.json:
        print_json({"revoked": args.id})
    else:
        sys.stdout.write(f"revoked: {args.id}\n")
    return 0


def _day(seconds: float | None) -> str:
    from datetime import datetime, timezone

    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")


def jobs_command(args: argparse.Namespace) -> int:
    """List conversions; 1 if one shown has failed."""
    if args.server:
        from analyzer.server import remote

        query = {"limit": args.limit, **({"state": args.state} if args.state else {})}
        rows = remote.record(dict[str, Any], args.server, "jobs", query)["jobs"]
        if not args.json:
            usage = remote.record(dict[str, Any], args.server, "usage")
            sys.stderr.write(f"analyzer: {usage['text']}\n")
    else:
        require("server", "sqlalchemy")
        from analyzer.server.db.database import open_database
        from analyzer.server.jobs.job import STATES
        from analyzer.server.jobs.queue import Jobs

        states = (args.state,) if args.state else STATES
        layout = _layout(args)
        jobs = Jobs(open_database(layout, make=False))
        rows = [asdict(job) for job in jobs.list(args.team, states, args.limit)]
        for row in rows if layout.lake is None else ():
            del row["server"]  # there is one only
    if args.json:
        from analyzer.render.json_text import print_json

        print_json(rows)
    else:
        _print_jobs(rows)
    return 1 if any(row["state"] == "failed" for row in rows) else 0


def _print_jobs(rows: list[dict[str, Any]]) -> None:
    from analyzer.render.tables import console, table

    shown = [
        (
            row["id"][:8],
            row["state"],
            row["name"] or row["sha256"][:12],
            _day(row["queued_at"]),
            ", ".join(run[:8] for run in row["run_ids"]) or "-",
            row["error"] or "",
        )
        for row in rows
    ]
    heads = [("id", "left"), ("state", "left"), ("name", "name"), ("queued", "left")]
    console().print(table([*heads, ("runs", "left"), ("error", "name")], shown, indent=0))


def _token_command(args: argparse.Namespace) -> int:
    """Run the action that was asked for."""
    return args.action(args)


COMMANDS = (
    Command(
        "serve",
        "Serve the pages and an API: uploads, reports, SQL; for one machine or a team.",
        _add_serve,
        serve_command,
        NEEDS,
    ),
    Command(
        "token",
        "Make, list and revoke the tokens of a team server.",
        _add_token,
        _token_command,
        NEEDS,
    ),
    Command(
        "jobs",
        "Conversions of a server: queued, running, done, failed.",
        _add_jobs,
        jobs_command,
        NEEDS,
    ),
)
