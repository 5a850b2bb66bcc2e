"""The study's second part: run directories into one result file; needs the analyzer, no GPU.

Everything that docs/study.md says comes from rows of `benchmarks/results/study-*.json`. A sample is
one step, one launch or one request, as the row's `grain` says. Times are integer nanoseconds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analyzer import queries
from analyzer.ingest import ingest
from analyzer.reports import prediction
from analyzer.store import Connection
from benchmarks.collector_analyse import above_floor
from benchmarks.result_file import ROOT, Result, result
from benchmarks.study import index
from benchmarks.study.results import STUDY
from schemas.run_directory import read_manifest

STORE = "study.duckdb"
SAMPLES = ROOT / "analyzer" / "samples"
COMPILED = ("gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-compile")
# Hosts that take 10 and 29 % less time: the least and the most that the paper saw between two.
CHANGES = ("graphs", "compile", "cpu-faster:1.11", "cpu-faster:1.41", "cpu-faster:2", "fuse:2")
# The share of the core that the scheduler's weights leave to the slow host's runs.
SHARES = {"pinned": 1.0, "nice5": 1024 / (1024 + 335), "nice0": 1 / 2, "two": 1 / 3}


def analyse(folder: Path, target: Path = STUDY) -> Path:
    """Ingest every run of a folder and write the result file; returns its path."""
    entries = [e for e in index.read(folder) if e["state"] == "done"]
    runs = {e["name"]: e for e in entries if (folder / e["name"] / "manifest.json").is_file()}
    store = folder / STORE
    store.unlink(missing_ok=True)
    paths = [folder / name for name in runs] + [SAMPLES / name for name in COMPILED]
    made = ingest(paths, store, jobs=1)
    broken = {r.name: r.error for r in made if r.state == "failed"}
    if broken:
        raise SystemExit(f"these runs cannot be read: {broken}")
    rows: list[Result] = []
    with queries.connect(store) as connection:
        ids = {name: queries.find_run(connection, name) for name in runs}
        for name, entry in runs.items():
            rows += _run(connection, ids[name], entry)
            if entry["item"] == 4:
                rows += _families(connection, ids[name], entry)
        rows += _predictions(connection, runs, ids)
        rows += _slow_predictions(connection, ids)
        rows += _compiled(connection)
    rows += _floors(folder)
    rows += _blocks(folder)
    rows += _graph_nodes(folder)
    environment = read_manifest(folder / next(iter(runs))).environment
    content: dict[str, Any] = {
        "benchmark": "study",
        "commit": " and ".join(sorted({e["commit"] for e in entries if e.get("commit")})) or None,
        "command": "python -m benchmarks.study record, then analyse",
        "environment": vars(environment),
        "not_recorded": [
            {"name": e["name"], "item": e.get("item"), "reason": e["reason"]}
            for e in index.read(folder)
            if e["state"] == "failed"
        ],
    }
    lines = ",\n".join(json.dumps(vars(row)) for row in rows)
    head = json.dumps(content, indent=1).rstrip("\n}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f'{head},\n "results": [\n{lines}\n]}}\n', encoding="utf-8")
    return target


def _parameters(entry: dict[str, Any]) -> dict[str, Any]:
    keys = ("item", "name", "model", "mode", "batch_size", "prompt_len", "new_tokens")
    found = {key: entry[key] for key in keys}
    for key in ("attention", "experts"):
        found |= {key: entry[key]} if entry[key] else {}
    return found


STEP_FIGURES = {
    "device_active": "device_active_ns",
    "device_busy": "device_busy_ns",
    "orchestration": "orchestration_ns",
    "framework": "ft_ns",
    "library": "ct_ns",
    "launch_path": "kt_ns",
    "tklqt": "tklqt_ns",
    "step_profiled": "elapsed_ns",
    "device_idle": "device_idle_ns",
}
STEP_COUNTS = {"launches": "launches", "kernels": "kernels", "graph_launches": "graph_launches"}


def _run(connection: Connection, run_id: str, entry: dict[str, Any]) -> Iterator[Result]:
    """Of each phase: figures of the profiled steps, un-profiled step times, the ledger."""
    steps = queries.steps(connection, run_id)
    run = queries.run(connection, run_id)
    manifest = json.loads(run.manifest or "")
    base = _parameters(entry)
    clocks = (manifest["environment"] or {}).get("gpu_clocks") or {}
    for key, value in clocks.items():
        yield result(f"gpu_{key}", key.rpartition("_")[2], {**base, "grain": "recording"}, [value])
    unprofiled = _unprofiled(connection, run_id)
    for phase in dict.fromkeys(step.phase for step in steps):
        own = [step for step in steps if step.phase == phase]
        tags = {**base, "phase": phase, "grain": "step"}
        for metric, key in STEP_FIGURES.items():
            values = [ns for step in own if (ns := getattr(step, key)) is not None]
            yield result(metric, "ns", tags, values)
        for metric, key in STEP_COUNTS.items():
            values = [n for step in own if (n := getattr(step, key)) is not None]
            yield result(metric, "count", tags, values)
        for metric in ("hdbi", "hdbi_busy"):
            yield result(
                metric, "", tags, [v for s in own if (v := getattr(s, metric)) is not None]
            )
        accounts: dict[str, list[int]] = defaultdict(list)
        exposed: dict[str, list[int]] = defaultdict(list)
        for step in own:
            for account, time in step.ledger.items():
                accounts[account].append(time.ns)
                if time.exposed_ns is not None:
                    exposed[account].append(time.exposed_ns)
        for account, values in accounts.items():
            if any(values):
                yield result("account", "ns", {**tags, "account": account}, values)
                if exposed[account]:
                    yield result("exposed", "ns", {**tags, "account": account}, exposed[account])
        sums = [sum(e.ns for e in step.ledger.values()) - step.wall_ns for step in own]
        yield result("ledger_less_wall", "ns", tags, sums)
        if phase in unprofiled:
            yield result("step_unprofiled", "ns", {**tags, "grain": "step"}, unprofiled[phase])


def _unprofiled(connection: Connection, run_id: str) -> dict[str, list[int]]:
    rows = connection.execute(
        "SELECT phase, wall_ns FROM step_latency WHERE run_id = $run_id", {"run_id": run_id}
    ).fetchall()
    return {phase: list(values) for phase, values in rows}


def _families(connection: Connection, run_id: str, entry: dict[str, Any]) -> Iterator[Result]:
    """Launch cost above the floor: the replay's median of each kernel identity, by family."""
    for label, (values, launches) in above_floor(connection, run_id).items():
        tags = {**_parameters(entry), "family": label, "launches": launches}
        yield result("above_floor", "ns", {**tags, "grain": "kernel identity"}, values)


def _predictions(
    connection: Connection, runs: dict[str, Any], ids: dict[str, str]
) -> Iterator[Result]:
    """Each change predicted from an eager run; beside graphs, what the captured run took."""
    for name, entry in runs.items():
        if entry["mode"] != "eager" or entry["item"] not in (2, 8):
            continue
        if not queries.totals(connection, ids[name]).kernels:
            continue  # rehearsed on a CPU
        value = prediction.predict(connection, ids[name], CHANGES)
        graph = ids.get(name.removesuffix("-eager") + "-graph")
        unprofiled = _unprofiled(connection, graph) if graph else {}
        for phase, figures in value.phases.items():
            tags = {**_parameters(entry), "phase": phase, "grain": "phase"}
            for key in ("replay_error", "fit_error", "host_scale"):
                yield result(key, "", tags, [getattr(figures, key)])
        for one in value.predictions:
            tags = {**_parameters(entry), "item": 8, "phase": one.phase, "change": one.what}
            for key in ("predicted_ns", "low_ns", "high_ns", "base_ns"):
                if getattr(one, key) is not None:
                    yield result(
                        key[:-3], "ns", {**tags, "grain": "median step"}, [getattr(one, key)]
                    )
            for key in ("nodes", "pieces"):
                if getattr(one, key) is not None:
                    yield result(
                        key, "count", {**tags, "grain": "median step"}, [getattr(one, key)]
                    )
            if graph and one.what == "graphs" and one.phase in unprofiled:
                yield result("measured", "ns", {**tags, "grain": "step"}, unprofiled[one.phase])
                events, others = (_events(connection, r, one.phase) for r in (ids[name], graph))
                differ = (events - others).total() + (others - events).total()
                tags = {**tags, "events": events.total(), "grain": "first step"}
                yield result("events_that_differ", "count", tags, [differ])
        if graph:
            gaps = queries.graph_gaps(connection, graph)
            for key in ("p5_ns", "mean_ns", "p95_ns"):
                if gaps.n:
                    tags = {**_parameters(entry), "item": 8, "of": key[:-3], "gaps": gaps.n}
                    yield result("graph_gap", "ns", {**tags, "grain": "gap"}, [getattr(gaps, key)])


def _events(connection: Connection, run_id: str, phase: str) -> Counter[str]:
    """Names of the device events of the run's first step of a phase."""
    rows = connection.execute(
        "SELECT links.kernel, count(*) FROM links JOIN steps USING (run_id, step_id) "
        "WHERE run_id = $run_id AND step_id = (SELECT min(step_id) FROM steps "
        "WHERE run_id = $run_id AND phase = $phase) GROUP BY links.kernel",
        {"run_id": run_id, "phase": phase},
    ).fetchall()
    return Counter(dict(rows))


def _compiled(connection: Connection) -> Iterator[Result]:
    """The package's eager and compiled samples: bounds, and what a compiled step took."""
    eager, compiled = (queries.find_run(connection, name) for name in COMPILED)
    (one,) = prediction.predict(connection, eager, ("compile",)).predictions
    tags = {"item": 8, "name": COMPILED[0], "change": "compile", "grain": "median step"}
    for key in ("low_ns", "high_ns"):
        yield result(f"compile_{key[:-3]}", "ns", tags, [getattr(one, key)])
    steps = [step.elapsed_ns for step in queries.steps(connection, compiled)]
    yield result("compile_measured", "ns", {**tags, "grain": "profiled step"}, steps)


def _slow_predictions(connection: Connection, ids: dict[str, str]) -> Iterator[Result]:
    """The pinned host's run predicts those with less of the core."""
    base = ids.get("gpt2-slow-pinned-eager")
    if base is None or not queries.totals(connection, base).kernels:
        return
    for label, share in SHARES.items():
        other = ids.get(f"gpt2-slow-{label}-eager")
        if other is None or label == "pinned":
            continue
        unprofiled = _unprofiled(connection, other)
        what = f"cpu-faster:{share:.4f}"
        for one in prediction.predict(connection, base, (what,)).predictions:
            tags = {"item": 6, "load": label, "phase": one.phase, "share": round(share, 4)}
            for key in ("predicted_ns", "low_ns", "high_ns", "base_ns"):
                if getattr(one, key) is not None:
                    yield result(
                        key[:-3], "ns", {**tags, "grain": "median step"}, [getattr(one, key)]
                    )
            yield result("measured", "ns", {**tags, "grain": "step"}, unprofiled.get(one.phase, []))


def _floors(folder: Path) -> Iterator[Result]:
    path = folder / "floor.json"
    if not path.is_file():
        return
    for floor in json.loads(path.read_text())["floors"]:
        tags = {"item": 1, "launch_api": floor["launch_api"], "definition": floor["definition"]}
        yield result("launch_floor", "ns", {**tags, "grain": "launch"}, floor["samples_ns"])


def _blocks(folder: Path) -> Iterator[Result]:
    """Replayed launch cost by block size: medians of each kernel, and of the floor's samples."""
    for path in sorted(folder.glob("blocks-*.json")):
        value = json.loads(path.read_text())
        tags = {"item": 9, "block": value["block"]}
        medians = [
            sorted(kernel["launch_ns"])[len(kernel["launch_ns"]) // 2]
            for op in value["ops"]
            for kernel in op["kernels"]
        ]
        yield result("replay_launch", "ns", {**tags, "grain": "kernel of an op"}, medians)
        for floor in value["floors"]:
            if floor["definition"] == "api_start_to_kernel_start":
                api = {**tags, "launch_api": floor["launch_api"], "grain": "launch"}
                yield result("launch_floor", "ns", api, floor["samples_ns"])


def _graph_nodes(folder: Path) -> Iterator[Result]:
    path = folder / "graph-nodes.json"
    if not path.is_file():
        return
    for nodes, samples in json.loads(path.read_text())["samples_ns"].items():
        tags = {"item": 8, "nodes": int(nodes), "grain": "replay"}
        yield result("graph_replay", "ns", tags, samples)
