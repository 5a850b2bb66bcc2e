"""Make a large Kineto trace by tiling a real one: later tiles are shifted in time and renumbered.

Every tile keeps its events, their order and their durations to the nanosecond. Correlation,
external and flow ids, event indices, Python ids and step numbers get a stride a tile, so that no
tile links into another. Process names and the profiler's own marks are written once. The text has
Kineto's layout (one event over several lines), which is what a reader meets in the wild.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

# Kinds of numbers that differ between tiles; within a kind all share one stride.
TIME, CORRELATION, EXTERNAL, INDEX, PYTHON, STEP = range(6)
RENUMBERED_ARGS = {
    "correlation": CORRELATION,
    "External id": EXTERNAL,
    "Ev Idx": INDEX,
    "Python id": PYTHON,
    "Python parent id": PYTHON,
    "Python module id": None,
}
STEP_NAME = re.compile(r"^(.*#)(\d+)$")
HEAD_KEYS_LEFT_OUT = ("traceEvents", "metadata", "traceName")


@dataclass
class Template:
    """Text of one tile with `%d` for each renumbered value, and those values of the first tile."""

    parts: list[str] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    def text(self, text: str) -> None:
        self.parts.append(text.replace("%", "%%"))

    def value(self, value: int, kind: int) -> None:
        self.parts.append("%d")
        self.values.append(value)
        self.kinds.append(kind)


def tile(
    source: Path,
    target: Path,
    size_bytes: int | None = None,
    *,
    events: int | None = None,
    head: dict[str, Any] | None = None,
    span_us: int | None = None,
) -> int:
    """Write tiles of `source` to `target` until it has `size_bytes`, or so many events; return how
    many events.

    Args:
        head: Fields of the document in place of the source's.
        span_us: Length of a tile: that of the longest of several traces whose clocks stay alike.
    """
    document = _document(source) | (head or {})
    tiled: list[dict[str, Any]] = []
    once: list[dict[str, Any]] = []
    for event in document["traceEvents"]:
        (tiled if "cat" in event and event["cat"] != "Trace" else once).append(event)

    template = Template()
    for event in tiled:
        add_event(template, event)
    text = "".join(template.parts)
    strides = strides_of(template, tiled)
    strides[TIME] = span_us or strides[TIME]
    step = [strides[kind] for kind in template.kinds]

    partial = target.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as out:
        head = {k: v for k, v in document.items() if k not in HEAD_KEYS_LEFT_OUT}
        for key, value in head.items():
            out.write(f"{'  ' if out.tell() else '{' + chr(10) + '  '}{json.dumps(key)}: ")
            out.write(json.dumps(value, default=float) + ",\n")
        out.write('  "traceEvents": [\n')
        tiles = written = 0
        while (
            written < size_bytes if size_bytes is not None else tiles * len(tiled) < (events or 1)
        ):
            values = [value + tiles * by for value, by in zip(template.values, step, strict=True)]
            written += out.write(text % tuple(values))
            tiles += 1
        tail = Template()
        for event in once:
            if event.get("cat") == "Trace":
                event = {**event, "dur": event["dur"] + (tiles - 1) * strides[TIME]}
            add_event(tail, event)
        closing = "".join(tail.parts) % tuple(tail.values)
        out.write(closing.rstrip().rstrip(","))
        out.write(f'\n  ],\n  "traceName": "{target.name}"\n}}\n')
    partial.replace(target)
    return tiles * len(tiled) + len(once)


def span_us(source: Path) -> int:
    """Return the length of a tile of a trace."""
    events = [e for e in _document(source)["traceEvents"] if "cat" in e and e["cat"] != "Trace"]
    return strides_of(Template(), events)[TIME]


def _document(source: Path) -> dict[str, Any]:
    opener = gzip.open if source.suffix == ".gz" else open
    with opener(source, "rt", encoding="utf-8") as stream:
        return json.load(stream, parse_float=Decimal)


def add_event(template: Template, event: dict[str, Any]) -> None:
    """Append one event in Kineto's layout, with a comma behind it."""
    template.text("  {\n    ")
    between = ""
    for key, value in event.items():
        if key == "args":
            continue
        new_line = key in ("ts", "dur") and between and key == "ts"
        template.text(between if not new_line else ",\n    ")
        between = ", "
        template.text(f"{json.dumps(key)}: ")
        if key == "ts":
            whole, _, fraction = f"{Decimal(value):.3f}".partition(".")
            template.value(int(whole), TIME)
            template.text("." + fraction)
        elif key == "dur":
            template.text(f"{Decimal(value):.3f}")
        elif key == "id" and isinstance(value, int):
            template.value(value, CORRELATION)
        elif key == "name" and "annotation" in str(event.get("cat")) and STEP_NAME.match(value):
            name, step = STEP_NAME.match(value).groups()  # type: ignore[union-attr]
            template.text(json.dumps(name)[:-1])
            template.value(int(step), STEP)
            template.text('"')
        else:
            template.text(json.dumps(value, default=float))
    if args := event.get("args"):
        template.text(',\n    "args": {\n      ')
        between = ""
        for key, value in args.items():
            template.text(f"{between}{json.dumps(key)}: ")
            between = ", "
            kind = RENUMBERED_ARGS.get(key)
            # 0 and below mean "none": they stay what they are.
            if kind is not None and isinstance(value, int) and value > 0:
                template.value(value, kind)
            else:
                template.text(json.dumps(value, default=float))
        template.text("\n    }")
    template.text("\n  },\n")


def strides_of(template: Template, events: list[dict[str, Any]]) -> list[int]:
    """Return by how much each kind of number grows from one tile to the next."""
    strides = [1] * 6
    for kind in (CORRELATION, EXTERNAL, INDEX, PYTHON, STEP):
        values = [v for v, k in zip(template.values, template.kinds, strict=True) if k == kind]
        if values:
            strides[kind] = max(values) - min(values) + 1
    starts = [Decimal(event["ts"]) for event in events if "ts" in event]
    ends = [Decimal(e["ts"]) + Decimal(e.get("dur", 0)) for e in events if "ts" in e]
    # A pause of a millisecond keeps the tiles apart.
    strides[TIME] = int(max(ends) - min(starts)) + 1_000
    return strides
