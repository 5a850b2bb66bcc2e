"""`collector replay`: the kernel replay of a recorded run, done again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--runs", type=int, default=150, metavar="N", help="samples of each op call (150)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=None,
        metavar="SECONDS",
        help="fewer samples if they would take longer",
    )
    parser.add_argument("--device", default="cuda:0")


def run(args: argparse.Namespace) -> int:
    """Replay again, and put the new samples and hashes into the run directory."""
    from collector.replay.recorded_run import replay_again

    replay_again(args.run_dir, args.device, args.runs, args.budget)
    sys.stdout.write(f"{args.run_dir}\n")
    return 0
