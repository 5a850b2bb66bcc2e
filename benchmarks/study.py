"""The study of docs/study.md: the papers' tables on our GPU, and predictions beside measurements.

    python benchmarks/study.py record --out DIR --budget 500 [--only ITEM ...] [--pack FOLDER]
    python benchmarks/study.py unpack FOLDER DIR
    python benchmarks/study.py analyse DIR      # anywhere: benchmarks/results/study-*.json
    python benchmarks/study.py render           # from that: docs/study.md and its plots

`record` needs a GPU host with torch, transformers and orjson and nothing else; it goes on where it
stopped. With --rehearse it runs everything on a CPU, on models of two small layers.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import study_record


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command")
    record = commands.add_parser("record", help="on a GPU host: run directories and raw samples")
    record.add_argument("--out", type=Path, required=True)
    record.add_argument("--budget", type=float, default=500.0, metavar="SECONDS")
    record.add_argument("--only", type=int, nargs="*", default=[], metavar="ITEM")
    record.add_argument("--pack", type=Path, metavar="FOLDER", help="archives of what there is")
    record.add_argument("--rehearse", action="store_true", help="tiny models on a CPU")
    work = commands.add_parser("work")
    work.add_argument("--out", type=Path, required=True)
    work.add_argument("--seconds", type=float, required=True)
    work.add_argument("--jobs", nargs="+", required=True)
    work.add_argument("--rehearse", action="store_true")
    unpack = commands.add_parser("unpack", help="undo --pack")
    unpack.add_argument("source", type=Path)
    unpack.add_argument("out", type=Path)
    analyse = commands.add_parser("analyse", help="run directories into the result file")
    analyse.add_argument("runs", type=Path)
    commands.add_parser("render", help="the result file into docs/study.md and its plots")
    args = parser.parse_args(argv)
    if args.command == "record":
        failed = study_record.record(args.out, args.budget, args.only, args.rehearse)
        if args.pack:
            for path in study_record.pack(args.out, args.pack):
                sys.stdout.write(f"{path} {path.stat().st_size}\n")
        return 1 if failed else 0
    if args.command == "work":
        return study_record.work(args.out, args.jobs, args.seconds, args.rehearse)
    if args.command == "unpack":
        if not list(args.source.glob("study-*.tar")):
            return _refused(
                f"{args.source} holds no study-*.tar; name a folder that --pack filled."
            )
        sys.stdout.write(f"{study_record.unpack(args.source, args.out)} entries\n")
        return 0
    # The analyzer and altair are not on the GPU host.
    import study_analyse
    import study_page

    if args.command == "analyse":
        index = study_record.read_index(args.runs)
        if not any((args.runs / entry["name"] / "manifest.json").is_file() for entry in index):
            return _refused(
                f"{args.runs} holds no recorded runs (no {study_record.INDEX} that names one); "
                "name a folder that `record` or `unpack` filled."
            )
        sys.stdout.write(f"{study_analyse.analyse(args.runs)}\n")
        return 0
    content = json.loads(study_analyse.FILE.read_text(encoding="utf-8"))
    for path in (study_page.write(study_analyse.FILE), *study_page.plots(content)):
        sys.stdout.write(f"{path}\n")
    return 0


def _refused(why: str) -> int:
    sys.stderr.write(f"study: {why}\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
