"""Faults planted into real traces, one for each way in which a recording cannot be trusted.

`python -m tests.support.planted_faults FOLDER` writes them, for a look with `analyzer doctor`.
"""

from __future__ import annotations

import copy
import gzip
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

SAMPLES = Path(__file__).resolve().parents[2] / "analyzer" / "samples"
EAGER, GRAPH = "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph"
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

Document = dict[str, Any]
Event = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A fault, and what must be said of it.

    Attributes:
        name: Of the fault.
        sample: The recording into which it is planted.
        plant: Changes the document, or gives the bytes of the file.
        check: The check that names it.
        says: What the finding has in it.
        remedy: What the remedy has in it.
        touches: A group of figures that it touches, and how.
    """

    name: str
    sample: str
    plant: Callable[[Document], bytes | None]
    check: str
    says: str
    remedy: str
    touches: tuple[str, str]


def sample_document(name: str) -> Document:
    """The trace of a sample."""
    return orjson.loads(gzip.decompress((SAMPLES / name / "trace.json.gz").read_bytes()))


def write_fault(fault: Fault, folder: Path) -> Path:
    """Plant a fault; returns the file."""
    document = sample_document(fault.sample)
    text = fault.plant(document)
    path = folder / f"{fault.name}.json"
    path.write_bytes(orjson.dumps(document) if text is None else text)
    return path


def device_events(document: Document) -> list[Event]:
    """The device events of a trace, in the file's order."""
    return [event for event in document["traceEvents"] if event.get("cat") in DEVICE]


def without(document: Document, lost: list[Event]) -> None:
    """Remove events, by identity."""
    gone = {id(event) for event in lost}
    document["traceEvents"] = [e for e in document["traceEvents"] if id(e) not in gone]


def _calls(document: Document, word: str) -> list[Event]:
    return [
        event
        for event in document["traceEvents"]
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and word in event["name"]
    ]


def _correlation(event: Event) -> int:
    return event.get("args", {}).get("correlation", 0)


def _graph_events(document: Document, replays: slice) -> list[list[Event]]:
    """The device events of some graph launches."""
    own = [_correlation(call) for call in _calls(document, "GraphLaunch")[replays]]
    return [[e for e in device_events(document) if _correlation(e) == one] for one in own]


def _lose_replays(replays: slice) -> Callable[[Document], None]:
    def plant(document: Document) -> None:
        without(document, [e for events in _graph_events(document, replays) for e in events])

    return plant


def _lose_kernels(document: Document) -> None:
    without(document, device_events(document)[::3])


def _lose_nodes(document: Document) -> None:
    without(document, _graph_events(document, slice(1, 2))[0][::2])


def _make_opaque(document: Document) -> None:
    for events in _graph_events(document, slice(None)):
        first, end = events[0], max(e["ts"] + e["dur"] for e in events)
        without(document, events[1:])
        first.update(cat="gpu_graph", name="CUDA graph", dur=end - first["ts"])


def _shift_device(by_us: float) -> Callable[[Document], None]:
    def plant(document: Document) -> None:
        for event in device_events(document):
            event["ts"] += by_us

    return plant


def _stamp_all_at_the_end(document: Document) -> None:
    """One step's work after the other, but all of it after the last launch."""
    at = max(call["ts"] for call in _calls(document, "Launch")) + 100
    for event in sorted(device_events(document), key=lambda event: event["ts"]):
        event["ts"], at = at, at + event["dur"]


def _turn_time_back(document: Document) -> None:
    """Every fifth outermost operator begins before the one before it has ended."""
    ops = sorted(
        (e for e in document["traceEvents"] if e.get("cat") == "cpu_op" and e["dur"] > 20),
        key=lambda event: event["ts"],
    )
    for before, event in list(pairwise(ops))[::5]:
        if before["ts"] + before["dur"] < event["ts"]:
            event["ts"] = before["ts"] + before["dur"] - 5


def _profile_dearly(document: Document) -> None:
    (overhead,) = [e for e in document["traceEvents"] if e.get("cat") == "overhead"]
    for number in range(40):
        more = copy.deepcopy(overhead)
        more["ts"] += 600 * number
        document["traceEvents"].append(more)


def _cut_at_60_percent(document: Document) -> bytes:
    text = orjson.dumps(document)
    return text[: len(text) * 6 // 10]


def _break_some_events(document: Document) -> bytes:
    lines = orjson.dumps(document).split(b'{"ph":"X","cat":"kernel"')
    return b'{"ph":"X","cat":"kernel",,"'.join(lines[:4]) + b"".join(
        b'{"ph":"X","cat":"kernel"' + line for line in lines[4:]
    )


def _cut_the_last_step(document: Document) -> None:
    events = document["traceEvents"]
    (span,) = [e for e in events if e.get("cat") == "Trace"]
    steps = [e for e in events if e.get("cat") == "user_annotation"]
    for step in steps:
        step["name"] = step["name"].replace("step#", "ProfilerStep#")
    steps[-1]["dur"] = span["ts"] + span["dur"] - steps[-1]["ts"]


def _lose_calls(document: Document) -> None:
    launches = _calls(document, "LaunchKernel")
    without(document, launches[len(launches) // 3 :: 7])


def _add_foreign_work(document: Document) -> None:
    for event in device_events(document)[100:400:3]:
        other = copy.deepcopy(event)
        other["tid"] = other["args"]["stream"] = 99
        other["args"]["correlation"] = 0
        other["name"] = "another_process_kernel"
        document["traceEvents"].append(other)


def _use_a_second_context(document: Document) -> None:
    for event in device_events(document)[::4]:
        event["args"]["context"] = 2


def _write_twice(document: Document) -> None:
    document["traceEvents"] += copy.deepcopy(
        [e for e in document["traceEvents"] if e.get("ph") == "X"]
    )


def _append_a_trace(document: Document) -> bytes:
    text = orjson.dumps(document)
    return text + b"\n" + text


FAULTS = (
    Fault(
        "some-graph-launches-silent",
        GRAPH,
        _lose_replays(slice(1, 3)),
        "graph_launches",
        "2 of 3 graph launches have no device events",
        "--cuda-graph-trace=node",
        ("device_idle", "at_most"),
    ),
    Fault(
        "all-graph-launches-silent",
        GRAPH,
        _lose_replays(slice(None)),
        "graph_launches",
        "3 of 3 graph launches have no device events",
        "TEARDOWN_CUPTI=0",
        ("device_time", "at_least"),
    ),
    Fault(
        "kernels-dropped",
        EAGER,
        _lose_kernels,
        "dropped_events",
        "have no device event",
        "ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB",
        ("device_time", "at_least"),
    ),
    Fault(
        "graph-nodes-dropped",
        GRAPH,
        _lose_nodes,
        "dropped_events",
        "1 graph replay lacks events that like replays have",
        "ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB",
        ("hdbi", "not_judged"),
    ),
    Fault(
        "opaque-graphs",
        GRAPH,
        _make_opaque,
        "opaque_graphs",
        "3 graph replays recorded as one block each",
        "--cuda-graph-trace=node",
        ("hdbi", "not_judged"),
    ),
    Fault(
        "device-stamped-late",
        EAGER,
        _shift_device(20_000),
        "late_bursts",
        "the device stood idle for up to",
        "warmup",
        ("device_idle", "not_judged"),
    ),
    Fault(
        "all-steps-at-once",
        EAGER,
        _stamp_all_at_the_end,
        "late_bursts",
        "the device stood idle for up to",
        "synchronise",
        ("step_time", "not_judged"),
    ),
    Fault(
        "device-before-launch",
        EAGER,
        _shift_device(-500),
        "clocks",
        "before their call",
        "driver",
        ("launch_time", "not_judged"),
    ),
    Fault(
        "time-goes-back",
        EAGER,
        _turn_time_back,
        "clocks",
        "time went back",
        "clock",
        ("host_cost", "not_judged"),
    ),
    Fault(
        "dear-profiler",
        EAGER,
        _profile_dearly,
        "profiler_cost",
        "the profiler itself took",
        "with_stack=False",
        ("host_cost", "at_most"),
    ),
    Fault(
        "cut-at-60-percent",
        EAGER,
        _cut_at_60_percent,
        "truncated",
        "truncated",
        "again",
        ("step_time", "not_judged"),
    ),
    Fault(
        "events-unreadable",
        EAGER,
        _break_some_events,
        "truncated",
        "could not be read as JSON",
        "again",
        ("hdbi", "not_judged"),
    ),
    Fault(
        "step-cut-at-the-window",
        EAGER,
        _cut_the_last_step,
        "cut_steps",
        "1 of 3 steps (ProfilerStep#2)",
        "prof.step()",
        ("step_time", "not_judged"),
    ),
    Fault(
        "launch-calls-lost",
        EAGER,
        _lose_calls,
        "outside_steps",
        "belongs to no step",
        "ProfilerActivity.CPU",
        ("hdbi", "not_judged"),
    ),
    Fault(
        "other-process-on-the-device",
        EAGER,
        _add_foreign_work,
        "other_processes",
        "100 device events on streams",
        "CUDA_VISIBLE_DEVICES",
        ("device_idle", "not_judged"),
    ),
    Fault(
        "two-contexts",
        EAGER,
        _use_a_second_context,
        "contexts",
        "of a second context",
        "one context",
        ("device_time", "at_most"),
    ),
    Fault(
        "written-twice",
        EAGER,
        _write_twice,
        "duplicates",
        "stand twice",
        "Export the trace once",
        ("launches", "at_least"),
    ),
    Fault(
        "two-traces-in-a-file",
        EAGER,
        _append_a_trace,
        "several_traces",
        "2 traces",
        "a file of its own",
        ("hdbi", "not_judged"),
    ),
)


def main() -> None:
    """Write every fault into the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for fault in FAULTS:
        sys.stdout.write(f"{write_fault(fault, folder)}\n")


if __name__ == "__main__":
    main()
