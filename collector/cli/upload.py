"""`collector upload`: runs to a server, or what is spooled."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from collector.cli import sending_options

if TYPE_CHECKING:
    from collector.upload.sending import Outcome
    from collector.upload.spool import Entry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.allow_abbrev = False  # --token is not --token-file: no token on a command line
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="RUN_DIR", help="run directories or trace files"
    )
    parser.add_argument("--to", metavar="URL", help="the server, such as https://host:8443")
    sending_options.add_arguments(parser, patience_s=300.0)
    parser.add_argument(
        "--wait", action="store_true", help="wait until the server has converted the runs"
    )
    parser.add_argument("--list", action="store_true", help="show what is spooled, send nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object a run")


def run(args: argparse.Namespace) -> int:
    """Send runs, or what is spooled; 1 if something stays spooled or was not converted."""
    from collector.errors import CollectorError
    from collector.upload import sending

    options = sending_options.options(args)
    spool = options.open_spool()
    code = 0
    try:
        if args.paths:
            if args.to is None:
                raise CollectorError("say where to send it: collector upload RUN_DIR --to URL.")
            to = sending.check(options, args.to)
            entries, troubles = spool.add_all(args.paths, to, options.delete_after)
            code = 2 if troubles else 0
        else:
            entries, troubles = spool.entries()
            to = args.to.rstrip("/") if args.to else None
            entries = [entry for entry in entries if to in (None, entry.url)]
            if not entries and not args.list:
                sys.stderr.write(f"collector: nothing is spooled in {spool.folder}.\n")
        for line in troubles:
            sys.stderr.write(f"collector: {line}\n")
        if args.list:
            return _list_spool(entries, args.json)
        for outcome in sending.send(options, entries):
            code = max(code, outcome.code)
            _print_outcome(outcome, args.json)
    except KeyboardInterrupt:
        sys.stderr.write(
            "collector: interrupted; what is not sent stays spooled, and `collector upload "
            "--spool` goes on with it.\n"
        )
        return 130
    return code


def _print_outcome(outcome: Outcome, as_json: bool) -> None:
    entry, stored, conversion = outcome.entry, outcome.stored, outcome.conversion
    error = str(outcome.error) if outcome.error else None
    if conversion is not None and conversion.state != "done":
        error = f"the server could not convert {entry.path}: {conversion.error}"
    run_ids = conversion.run_ids if conversion else stored.run_ids if stored else []
    if as_json:
        value = {
            "path": entry.path,
            "url": entry.url,
            "sha256": stored.sha256 if stored else entry.sha256,
            "state": conversion.state if conversion else "stored" if stored else entry.state,
            "sent_bytes": stored.sent_bytes if stored else None,
            "run_ids": run_ids,
            "error": error,
        }
        sys.stdout.write(orjson.dumps(value).decode() + "\n")
    elif stored is not None:
        runs = f", run {', '.join(run_ids)}" if run_ids else ""
        sys.stdout.write(f"{entry.path} is stored as {stored.sha256}{runs}\n")
    if error:
        sys.stderr.write(f"collector: {error}\n")
    sys.stdout.flush()


def _list_spool(entries: list[Entry], as_json: bool) -> int:
    for entry in entries:
        if as_json:
            sys.stdout.write(orjson.dumps(asdict(entry)).decode() + "\n")
        else:
            sys.stdout.write(f"{entry.state:<8} {entry.path} -> {entry.url}\n")
            if entry.error:
                sys.stdout.write(f"{'':<8} {entry.error}\n")
    return 0
