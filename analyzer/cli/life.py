"""`analyzer edit`, `delete` and `retention`: the life of the runs that a server keeps."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from analyzer.cli.arguments import NEEDS
from analyzer.server.commands import TOKEN_VARIABLE
from schemas.commands import Command

_UNITS = {"h": 1 / 24, "d": 1.0, "w": 7.0}


def days(text: str) -> float:
    """Days from "90d", "12h" or "6w"."""
    try:
        found = float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write 90d, 12h or 6w") from None
    if not 0 <= found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write 90d, 12h or 6w")
    return found


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", required=True, help=f"with the token in {TOKEN_VARIABLE}"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _add_edit(parser: argparse.ArgumentParser) -> None:
    _add_server(parser)
    parser.add_argument("run", metavar="RUN", help="id, prefix, name, or latest")
    parser.add_argument("--name", help="another name")
    parser.add_argument("--tag", action="append", default=[], help="add a tag (repeatable)")
    parser.add_argument("--untag", action="append", default=[], help="take one away (repeatable)")
    parser.add_argument("--note", help="free text; empty: none")
    parser.add_argument("--owner", help="whom to ask; empty: nobody")
    for name, what in (
        ("baseline", "others are compared with it; retention keeps it"),
        ("archived", "lists leave it out (scope admin)"),
    ):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=what)


def edit(args: argparse.Namespace) -> int:
    """Change what is said of a run."""
    from analyzer.render.json_text import print_json
    from analyzer.server import remote

    path = f"runs/{remote.part(args.run)}"
    body: dict[str, Any] = {"name": args.name} if args.name else {}
    for key in ("note", "owner"):
        if (given := getattr(args, key)) is not None:
            body[key] = given or None
    for key, given in (("is_baseline", args.baseline), ("archived", args.archived)):
        if given is not None:
            body[key] = given
    if args.tag or args.untag:
        # What is there is changed with nothing first, as an answer tells the labels.
        tags = set(remote.change(args.server, path, {})["tags"])
        body["tags"] = sorted((tags | set(args.tag)) - set(args.untag))
    found = remote.change(args.server, path, body)
    if args.json:
        print_json(found)
    else:
        sys.stdout.write("".join(f"{key}: {value}\n" for key, value in found.items()))
    return 0


def _add_delete(parser: argparse.ArgumentParser) -> None:
    _add_server(parser)
    parser.add_argument("run", metavar="RUN", help="id, prefix or name")
    parser.add_argument("--yes", action="store_true", help="do not ask again")


def delete(args: argparse.Namespace) -> int:
    """Delete a run and its original, once its name was typed a second time."""
    from analyzer.errors import AnalyzerError
    from analyzer.server import remote

    path = f"runs/{remote.part(args.run)}"
    run = remote.record(dict[str, Any], args.server, path)["run"]
    what = f"{run['name']} ({run['run_id'][:12]})"
    if not args.yes:
        if not sys.stdin.isatty():
            raise AnalyzerError(f"{what} is deleted with its original; say --yes.")
        sys.stderr.write(f"{what} and its original are deleted for good. Its name again: ")
        sys.stderr.flush()
        if sys.stdin.readline().strip() != run["name"]:
            raise AnalyzerError("that is another name; nothing was deleted.")
    remote.ask(args.server, f"runs/{run['run_id']}", method="DELETE")
    sys.stdout.write(f"deleted: {what}\n")
    return 0


def _add_retention(parser: argparse.ArgumentParser) -> None:
    _add_server(parser)
    parser.add_argument(
        "--keep", type=days, required=True, metavar="AGE", help="keep younger ones, e.g. 90d"
    )
    parser.add_argument(
        "--keep-tag", action="append", default=[], metavar="TAG", help="keep these (repeatable)"
    )
    parser.add_argument("--delete", action="store_true", help="do it; else it is only shown")


def retention(args: argparse.Namespace) -> int:
    """Delete old runs that nobody asked to keep; baselines and archived ones stay."""
    from datetime import datetime, timedelta, timezone

    from analyzer.render.json_text import print_json
    from analyzer.server import remote

    before = (datetime.now(timezone.utc) - timedelta(days=args.keep)).isoformat()
    due: list[dict[str, Any]] = []
    query: dict[str, Any] = {"baseline": False, "sort": "ingested_at", "limit": 1000}
    while True:
        page = remote.record(dict[str, Any], args.server, "runs", query)
        due += [r for r in page["runs"] if r["ingested_at"] < before]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    due = [run for run in due if not set(run["tags"]) & set(args.keep_tag)]
    gone: list[dict[str, Any]] = []
    for run in due:
        if args.delete:
            remote.ask(args.server, f"runs/{run['run_id']}", method="DELETE")
        gone.append({key: run[key] for key in ("run_id", "name", "ingested_at")})
    if args.json:
        print_json({"deleted" if args.delete else "would_delete": gone})
        return 0
    for run in gone:
        sys.stdout.write(f"{run['run_id'][:12]}  {run['ingested_at'][:10]}  {run['name']}\n")
    done = "deleted" if args.delete else "would be deleted; say --delete to do it"
    sys.stdout.write(f"{len(gone)} run{'s' * (len(gone) != 1)} {done}.\n")
    return 0


COMMANDS = (
    Command("edit", "Rename, tag, note, own or archive a run.", _add_edit, edit, NEEDS),
    Command("delete", "Delete a run of a server, with its original.", _add_delete, delete, NEEDS),
    Command("retention", "Delete old runs of a server.", _add_retention, retention, NEEDS),
)
