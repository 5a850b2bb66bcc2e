"""Make a large Kineto trace by tiling a real one: later tiles are shifted in time and renumbered.

Every tile keeps its events, their order and their durations to the nanosecond. Correlation,
external and flow ids, event indices, Python ids and step numbers get a stride a tile, so that no
tile links into another. Process names and the profiler's own marks are written once. The text has
Kineto's layout (one event over several lines), which is what a reader meets in the wild.

A `Variant` asks for what hurts a reader whose cost is a product: many steps, many threads at once,
many events of metadata.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

# Kinds of numbers that differ between tiles; within a kind all share one stride.
TIME, CORRELATION, EXTERNAL, INDEX, PYTHON, STEP, LANE = range(7)
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


@dataclass(frozen=True)
class Variant:
    """What a tiled trace has that its source has not.

    Attributes:
        steps: Marks of steps, all of one length, in place of the source's annotations; None: as in
            the source.
        threads: Tiles that run at once, each on a thread and a stream of its own.
        metadata: Further events of metadata: names of threads that did nothing.
        head: Fields of the document in place of the source's.
        span_us: Length of a tile: that of the longest of several traces whose clocks stay alike.
        events: As many, whatever the size.
    """

    steps: int | None = None
    threads: int = 1
    metadata: int = 0
    head: dict[str, Any] = field(default_factory=dict)
    span_us: int | None = None
    events: int | None = None


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


def tile(source: Path, target: Path, size_bytes: int, variant: Variant = Variant()) -> int:
    """Write tiles of `source` to `target` until it has `size_bytes`; return how many events."""
    document = _document(source) | variant.head
    tiled: list[dict[str, Any]] = []
    once: list[dict[str, Any]] = []
    for event in document["traceEvents"]:
        if variant.steps is not None and "annotation" in str(event.get("cat")):
            continue
        (tiled if "cat" in event and event["cat"] != "Trace" else once).append(event)

    template = Template()
    for event in tiled:
        add_event(template, event, numbered_lanes=variant.threads > 1)
    text = "".join(template.parts)
    strides = strides_of(template, tiled)
    strides[TIME] = variant.span_us or strides[TIME]

    partial = target.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as out:
        head = {k: v for k, v in document.items() if k not in HEAD_KEYS_LEFT_OUT}
        for key, value in head.items():
            out.write(f"{'  ' if out.tell() else '{' + chr(10) + '  '}{json.dumps(key)}: ")
            out.write(json.dumps(value, default=float) + ",\n")
        out.write('  "traceEvents": [\n')
        written = sum(out.write(text) for text in metadata_events(variant.metadata))
        tiles = 0
        while tiles * len(tiled) < variant.events if variant.events else written < size_bytes:
            round_, lane = divmod(tiles, variant.threads)
            # Threads that run at once begin a little after each other.
            shifts = [tiles * stride for stride in strides]
            shifts[TIME] = round_ * strides[TIME] + lane * 7
            shifts[LANE] = lane * strides[LANE]
            by_kind = zip(template.values, template.kinds, strict=True)
            written += out.write(text % tuple(value + shifts[kind] for value, kind in by_kind))
            tiles += 1
        time = -(-tiles // variant.threads) * strides[TIME]
        marks = step_marks(tiled, variant.steps or 0, time)
        tail = Template()
        for event in [*marks, *once]:
            if event.get("cat") == "Trace":
                event = {**event, "dur": event["dur"] + time - strides[TIME]}
            add_event(tail, event)
        closing = "".join(tail.parts) % tuple(tail.values)
        out.write(closing.rstrip().rstrip(","))
        out.write(f'\n  ],\n  "traceName": "{target.name}"\n}}\n')
    partial.replace(target)
    return tiles * len(tiled) + len(marks) + len(once) + variant.metadata


def span_us(source: Path) -> int:
    """Return the length of a tile of a trace."""
    events = [e for e in _document(source)["traceEvents"] if "cat" in e and e["cat"] != "Trace"]
    return strides_of(Template(), events)[TIME]


def _document(source: Path) -> dict[str, Any]:
    opener = gzip.open if source.suffix == ".gz" else open
    with opener(source, "rt", encoding="utf-8") as stream:
        return json.load(stream, parse_float=Decimal)


def metadata_events(number: int) -> Iterator[str]:
    """Names of threads as Kineto writes them, each of about 290 bytes."""
    for i in range(number):
        labels = f"worker {i} of the pool that loads and tokenizes requests " + "x" * 90
        event = {"name": "thread_name", "ph": "M", "ts": 0.0, "pid": 1 + i % 977, "tid": i}
        yield f"  {json.dumps({**event, 'args': {'name': labels}}, indent=2)},\n"


def step_marks(events: list[dict[str, Any]], number: int, time: int) -> list[dict[str, Any]]:
    """Marks of steps, one behind the other, over the whole trace of `time` us."""
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    start = min(Decimal(event["ts"]) for event in ops)
    edges = [start + i * time // number for i in range(number + 1)] if number else []
    common = {"ph": "X", "cat": "user_annotation", "pid": ops[0]["pid"], "tid": ops[0]["tid"]}
    return [
        {**common, "name": f"ProfilerStep#{i}", "ts": edge, "dur": following - edge}
        for i, (edge, following) in enumerate(pairwise(edges))
    ]


def add_event(template: Template, event: dict[str, Any], *, numbered_lanes: bool = False) -> None:
    """Append one event in Kineto's layout, with a comma behind it.

    Args:
        numbered_lanes: Threads and streams differ between tiles.
    """
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
        elif key == "tid" and isinstance(value, int) and numbered_lanes:
            template.value(value, LANE)
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
            kind = LANE if key == "stream" and numbered_lanes else RENUMBERED_ARGS.get(key)
            # 0 and below mean "none": they stay what they are.
            if kind is not None and isinstance(value, int) and value > 0:
                template.value(value, kind)
            else:
                template.text(json.dumps(value, default=float))
        template.text("\n    }")
    template.text("\n  },\n")


def strides_of(template: Template, events: list[dict[str, Any]]) -> list[int]:
    """Return by how much each kind of number grows from one tile to the next."""
    strides = [1] * 7
    for kind in (CORRELATION, EXTERNAL, INDEX, PYTHON, STEP, LANE):
        values = [v for v, k in zip(template.values, template.kinds, strict=True) if k == kind]
        if values:
            strides[kind] = max(values) - min(values) + 1
    starts = [Decimal(event["ts"]) for event in events if "ts" in event]
    ends = [Decimal(e["ts"]) + Decimal(e.get("dur", 0)) for e in events if "ts" in e]
    # A pause of a millisecond keeps the tiles apart.
    strides[TIME] = int(max(ends) - min(starts)) + 1_000
    return strides
