"""`collector doctor`: what this host can do for a recording."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

import orjson


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Print the checks; 1 if something is missing."""
    from collector.doctor import examine

    checks = examine()
    if args.json:
        sys.stdout.write(orjson.dumps([asdict(c) for c in checks]).decode() + "\n")
    else:
        for check in checks:
            sys.stdout.write(f"{check.state:<8} {check.name:<14} {check.found}\n")
            if check.remedy:
                sys.stdout.write(f"{'':<23} -> {check.remedy}\n")
    return 1 if any(check.state == "missing" for check in checks) else 0
