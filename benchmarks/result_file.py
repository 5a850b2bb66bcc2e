"""The form every benchmark reports in: a JSON file under `results/`, and the same as a table.

    {"benchmark", "commit", "command", "environment",
     "results": [{"metric", "unit", "parameters": {...},
                  "n", "p5", "p50", "mean", "p95", "p99", "samples"}]}

A peer is a row whose `parameters.system` has its name. Standard library only, so that a benchmark
of the GPU side can use it too.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Result:
    """One metric under one set of parameters; `samples` are raw, in the order they were taken."""

    metric: str
    unit: str
    parameters: dict[str, Any]
    n: int
    p5: float | None
    p50: float | None
    mean: float | None
    p95: float | None
    p99: float | None
    samples: list[float]


def result(metric: str, unit: str, parameters: dict[str, Any], samples: Sequence[float]) -> Result:
    """Summarise raw samples; without samples every summary is None."""
    ordered = sorted(samples)
    return Result(
        metric=metric,
        unit=unit,
        parameters=parameters,
        n=len(ordered),
        p5=percentile(ordered, 5),
        p50=percentile(ordered, 50),
        mean=statistics.fmean(ordered) if ordered else None,
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        samples=list(samples),
    )


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Return the percentile of sorted samples, by linear interpolation between the nearest two."""
    if not ordered:
        return None
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def environment(*distributions: str) -> dict[str, Any]:
    """Return what the numbers depend on: the host, Python and the versions of `distributions`."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in distributions:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": platform.platform(),
        "versions": versions,
    }


def cpu_name() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else None


def commit() -> str | None:
    """Return the commit, with "-dirty" if tracked files differ from it.

    A copy without history takes it from HOSTBOUND_COMMIT.
    """
    if given := os.environ.get("HOSTBOUND_COMMIT"):
        return given
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def write(
    benchmark: str, device: str, environment: dict[str, Any], results: Sequence[Result]
) -> Path:
    """Write `results/<benchmark>-<device>-<date>.json` and return its path."""
    RESULTS.mkdir(exist_ok=True)
    day = datetime.now(timezone.utc).date().isoformat()
    path = RESULTS / f"{benchmark}-{device}-{day}.json"
    module = Path(sys.argv[0]).resolve().relative_to(ROOT).with_suffix("")
    name = ".".join(module.parts).removesuffix(".__main__")
    command = ["python", "-m", name, *sys.argv[1:]]
    content = {
        "benchmark": benchmark,
        "commit": commit(),
        "command": shlex.join(command),
        "environment": environment,
        "results": [asdict(row) for row in results],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def print_table(results: Sequence[Result]) -> None:
    """Print the results, one line each: parameters, metric, median and spread."""
    rows = [("parameters", "metric", "unit", "n", "p5", "p50", "p95")]
    for row in results:
        parameters = " ".join(f"{key}={value}" for key, value in row.parameters.items())
        numbers = (number(row.p5), number(row.p50), number(row.p95))
        rows.append((parameters, row.metric, row.unit, str(row.n), *numbers))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        left = [row[i].ljust(widths[i]) for i in range(3)]
        right = [row[i].rjust(widths[i]) for i in range(3, len(row))]
        print("  ".join(left + right).rstrip())


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
