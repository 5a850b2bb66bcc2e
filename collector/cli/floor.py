"""`collector floor`: the launch floor of this host and GPU, by launch API."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from schemas.measurements import LaunchFloors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--runs", type=int, default=500, metavar="N")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", action="store_true", help="print the raw samples")


def run(args: argparse.Namespace) -> int:
    """Print the floors; 1 if a launch API has none."""
    from collector import environment
    from collector.replay import kernel_replay

    environment.check_device(args.device)
    found = kernel_replay.floor(args.device, args.runs)
    if args.json:
        sys.stdout.write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n")
        return 0
    _print(found)
    for api, why in found.missing.items():
        sys.stderr.write(f"collector: no floor for {api}: {why}\n")
    return 1 if found.missing else 0


def _print(found: LaunchFloors) -> None:
    row = "{:<22} {:<28} {:>6} {:>9} {:>9} {:>9} {:>9}\n"
    sys.stdout.write(row.format("launch API", "definition", "n", "p5", "p50", "mean", "p95"))
    for entry in found.floors:
        samples = sorted(entry.samples_ns)
        if not samples:
            continue
        n = len(samples)
        figures = [
            samples[n * 5 // 100],
            samples[n // 2],
            round(sum(samples) / n),
            samples[n * 95 // 100],
        ]
        times = [f"{value / 1e3:.2f} us" for value in figures]
        sys.stdout.write(row.format(entry.launch_api, entry.definition, n, *times))
    for name, text in found.definitions.items():
        sys.stdout.write(f"{name}: {text}\n")
