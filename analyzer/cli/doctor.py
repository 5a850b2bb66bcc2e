"""`analyzer doctor`: what a recording can prove, and how to record it better."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.cli.arguments import NEEDS, add_store
from analyzer.errors import AnalyzerError
from schemas.commands import Command

if TYPE_CHECKING:
    from analyzer.reports.records import Diagnosis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser)
    parser.add_argument(
        "what",
        metavar="RUN|FILE",
        nargs="?",
        default="latest",
        help="a run of the store (id, prefix, name, or latest: default), or the path of a trace or "
        "run directory, which is read without a store",
    )


def run(args: argparse.Namespace) -> int:
    """Print each check; 1 if one touches a figure."""
    from analyzer.render.doctor import print_diagnosis
    from analyzer.render.json_text import print_json
    from analyzer.render.tables import console

    path = Path(args.what)
    if not path.exists() and not args.db.exists():
        raise AnalyzerError(
            f"there is no file {args.what}, and no store at {args.db} that may have such a run."
        )
    found = _of_files(path) if path.exists() else [_of_run(args.db, args.what)]
    if args.json:
        print_json(found[0] if len(found) == 1 else found)
    else:
        for diagnosis in found:
            print_diagnosis(diagnosis, console())
    return 1 if any(diagnosis.evidence.sentence for diagnosis in found) else 0


def _of_run(db: Path, reference: str) -> Diagnosis:
    from analyzer import queries
    from analyzer.reports.evidence import evidence
    from analyzer.reports.records import Diagnosis

    with queries.connect(db) as connection:
        run_id = queries.find_run(connection, reference)
        return Diagnosis(queries.run(connection, run_id).name, run_id, evidence(connection, run_id))


def _of_files(path: Path) -> list[Diagnosis]:
    from analyzer.ingest import sources
    from analyzer.ingest.pipeline import prepare
    from analyzer.queries.records import Check
    from analyzer.reports.evidence import of_checks
    from analyzer.reports.records import Diagnosis

    found: list[Diagnosis] = []
    for one in sources.find([path]):
        prepared = prepare(sources.describe(one, None, sources.Options()))
        rows = prepared.tables["checks"].drop_columns(["run_id"]).to_pylist()
        checks = [Check(**row) for row in rows]
        found.append(Diagnosis(prepared.name, None, of_checks(checks)))
    return found


COMMAND = Command(
    "doctor",
    "What a recording can prove, and how to record it better.",
    add_arguments,
    run,
    NEEDS,
)
