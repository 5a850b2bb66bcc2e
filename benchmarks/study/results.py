"""The rows of result files, asked by metric and parameters, and how their numbers are written.

A cell is a median with its spread and number of samples: `5.41 (5.38 to 5.60; 100)`. The spread is
p5 to p95, of fewer than ten samples the least and the largest. `-`: not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.result_file import RESULTS

STUDY = RESULTS / "study-nvidia-h200.json"
HYBRID = RESULTS / "hybrid-nvidia-h200-2026-11-30.json"
BATCHES = RESULTS / "collector-batches-h200-2026-11-30.json"

Row = dict[str, Any]
MS, US = 1e6, 1e3


class Results:
    """The rows of one result file that have samples."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.rows: list[Row] = [row for row in content["results"] if row["n"]]

    def all(self, metric: str, **wanted: Any) -> list[Row]:
        """Return the metric's rows with these parameters; None matches a parameter not there."""
        return [
            row
            for row in self.rows
            if row["metric"] == metric
            and all(row["parameters"].get(key) == value for key, value in wanted.items())
        ]

    def one(self, metric: str, **wanted: Any) -> Row | None:
        """Return the row, or None where it was not recorded.

        Raises:
            ValueError: The parameters fit several rows.
        """
        found = self.all(metric, **wanted)
        if len(found) > 1:
            raise ValueError(f"{len(found)} rows of {metric} for {wanted}")
        return found[0] if found else None

    def p50(self, metric: str, **wanted: Any) -> float | None:
        """Return the row's median."""
        row = self.one(metric, **wanted)
        return None if row is None else row["p50"]

    def cells(
        self, metric: str, key: str, values: Iterable[Any], unit: float = 1.0, **wanted: Any
    ) -> str:
        """Return neighbouring cells of one table row, for each value of a parameter."""
        return " | ".join(self.cell(metric, unit, **{key: one}, **wanted) for one in values)

    def cell(self, metric: str, unit: float = 1.0, **wanted: Any) -> str:
        """Return the row as a cell, its numbers divided by `unit`."""
        return cell(self.one(metric, **wanted), unit)


@dataclass(frozen=True)
class Recorded:
    """The result files that docs/study.md is written from."""

    study: Results  # the study's own
    hybrid: Results  # of benchmarks.hybrid: TTFT and gaps between tokens
    batches: Results  # of benchmarks.collector: batches side by side


def read(path: Path) -> Results:
    """Read one result file."""
    return Results(json.loads(path.read_text(encoding="utf-8")))


def recorded() -> Recorded:
    """Read the files of the last recordings."""
    return Recorded(read(STUDY), read(HYBRID), read(BATCHES))


def number(value: float | None) -> str:
    """Write three digits that count."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.0f}"


def milliseconds(ns: float | None) -> str:
    """Write a time with its unit."""
    return "-" if ns is None else f"{number(ns / MS)} ms"


def percent(share: float | None, sign: bool = True) -> str:
    """Write a share in per cent, a change with its sign."""
    return "-" if share is None else f"{100 * share:{'+' if sign else ''}.1f} %"


def cell(row: Row | None, unit: float = 1.0) -> str:
    """Write median, spread and number of samples; of one sample the sample."""
    if row is None:
        return "-"
    if row["n"] == 1:
        return number(row["p50"] / unit)
    low, high = (number(value / unit) for value in spread(row))
    return f"{number(row['p50'] / unit)} ({low} to {high}; {row['n']})"


def spread(row: Row) -> tuple[float, float]:
    """Return p5 and p95, of fewer than ten samples the least and the largest."""
    if row["n"] < 10:
        return min(row["samples"]), max(row["samples"])
    return row["p5"], row["p95"]
