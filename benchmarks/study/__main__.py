"""The study of docs/study.md: the papers' tables on our GPU, and predictions beside measurements.

    python -m benchmarks.study record --out DIR --budget 500 [--only ITEM ...] [--pack FOLDER]
    python -m benchmarks.study unpack FOLDER DIR
    python -m benchmarks.study analyse DIR      # anywhere: benchmarks/results/study-*.json
    python -m benchmarks.study render           # from that: docs/study.md and its plots

`record` needs a GPU host with torch, transformers and orjson and nothing else; it goes on where it
stopped. With --rehearse it runs everything on a CPU, on models of two small layers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.study import archives, index, worker
from benchmarks.study.recording import record


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.study", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record", help="on a GPU host: run directories and raw samples")
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--budget", type=float, default=500.0, metavar="SECONDS")
    recording.add_argument("--only", type=int, nargs="*", default=[], metavar="ITEM")
    recording.add_argument("--pack", type=Path, metavar="FOLDER", help="archives of what there is")
    recording.add_argument("--rehearse", action="store_true", help="tiny models on a CPU")
    work = commands.add_parser("work")
    work.add_argument("--out", type=Path, required=True)
    work.add_argument("--seconds", type=float, required=True)
    work.add_argument("--jobs", nargs="+", required=True)
    work.add_argument("--rehearse", action="store_true")
    unpack = commands.add_parser("unpack", help="undo --pack")
    unpack.add_argument("source", type=Path)
    unpack.add_argument("out", type=Path)
    analysis = commands.add_parser("analyse", help="run directories into the result file")
    analysis.add_argument("runs", type=Path)
    commands.add_parser("render", help="the result file into docs/study.md and its plots")
    args = parser.parse_args(argv)
    if args.command == "record":
        failed = record(args.out, args.budget, args.only, args.rehearse)
        if args.pack:
            for path in archives.pack(args.out, args.pack):
                sys.stdout.write(f"{path} {path.stat().st_size}\n")
        return 1 if failed else 0
    if args.command == "work":
        return worker.work(args.out, args.jobs, args.seconds, args.rehearse)
    if args.command == "unpack":
        if not list(args.source.glob("study-*.tar")):
            return _refused(
                f"{args.source} holds no study-*.tar; name a folder that --pack filled."
            )
        sys.stdout.write(f"{archives.unpack(args.source, args.out)} entries\n")
        return 0
    # The analyzer and altair are not on the GPU host.
    from benchmarks.study import analysis, charts, page, results

    if args.command == "analyse":
        entries = index.read(args.runs)
        if not any((args.runs / entry["name"] / "manifest.json").is_file() for entry in entries):
            return _refused(
                f"{args.runs} holds no recorded runs (no {index.INDEX} that names one); "
                "name a folder that `record` or `unpack` filled."
            )
        sys.stdout.write(f"{analysis.analyse(args.runs)}\n")
        return 0
    recorded = results.recorded()
    for path in (page.write(recorded), *charts.save(recorded.study)):
        sys.stdout.write(f"{path}\n")
    return 0


def _refused(why: str) -> int:
    sys.stderr.write(f"study: {why}\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
