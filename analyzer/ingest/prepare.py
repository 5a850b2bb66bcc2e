"""One source to the rows of every table, as Arrow tables; no store is touched.

Order: read the traces, link them, find the floor, match replays, decompose, keep the ledger, add
up. Pure apart from reading files, so that it can run in another process.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analyzer.attribution import (
    classification,
    decomposition,
    graph_replay,
    kernel_match,
    ledger,
    links,
    totals,
)
from analyzer.attribution.decomposition import UNKNOWN, Floor, Launches, known
from analyzer.attribution.intervals import ordinals
from analyzer.attribution.links import DEVICE_KINDS, Attributed
from analyzer.errors import AnalyzerError
from analyzer.ingest.sources import Source, read_json
from analyzer.trace import kineto
from analyzer.trace.columns import UNIT_SEPARATOR
from analyzer.trace.kineto import Finding

FLOOR_DEFINITION = "api_start_to_kernel_start"

# An Arrow array: the library's stubs ask for the type of its scalars, which only its data know.
Column = Any


@dataclass
class Prepared:
    """Everything about one run, ready to be written.

    `tables` are Arrow tables by name. Seconds say where the time of this process went.
    """

    run_id: str
    name: str
    path: str
    tables: dict[str, pa.Table]
    findings: list[Finding]
    events: int
    json_bytes: int
    read_seconds: float
    analyse_seconds: float
    kernels: int
    steps: int


class _Texts:
    """Texts of one run by ordinal."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))

    def mapping(self, strings: list[str], used: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """From a trace's string ids to the run's; -1 stays -1. Only used ones get an ordinal."""
        table = np.full(len(strings) + 1, -1, np.int64)
        ids: list[int] = np.unique(used).tolist()
        for i in ids:
            if i >= 0:
                table[i] = self.id(strings[i])
        return table


@dataclass
class _Offsets:
    ops: int = 0
    calls: int = 0
    device: int = 0
    steps: int = 0
    kernels: int = 0


def prepare(source: Source, progress: Callable[[int], None] | None = None) -> Prepared:
    """Read and analyse one source.

    Raises:
        TraceError, AnalyzerError: The source cannot be read; the message is one line.
    """
    began = time.perf_counter()
    manifest = source.manifest
    globs = source.options.step_annotation or tuple(manifest.step_annotation if manifest else ())
    # A file is hashed by one core while the other reads it.
    hasher = Thread(target=_hash_all, args=(source,), name="hash")
    hasher.start()
    loaded: list[tuple[Any, list[kineto.Trace]]] = []
    lent: list[tuple[Any, list[kineto.Trace]]] = []
    for file in source.files:
        if file.role in ("trace", "capture"):
            traces = kineto.read(
                file.path,
                keep_python=source.options.python_functions,
                progress=progress,
                most_bytes=source.options.most_json_bytes,
                most_events=source.options.most_events,
            )
            (loaded if file.role == "trace" else lent).append((file, traces))
    hasher.join()
    read_seconds = time.perf_counter() - began
    began = time.perf_counter()

    captured = [
        c for _, traces in lent for t in traces for c in graph_replay.captures(links.attribute(t))
    ]
    attributed: list[tuple[str, Attributed]] = []
    for file, traces in loaded:
        for trace in traces:
            one = links.attribute(trace, globs)
            graph_replay.lend(one, graph_replay.captures(one) + captured)
            attributed.append((file.path.name, one))
    spans = [decomposition.spans(a) for _, a in attributed]
    floor, floor_rows = _floor(source, spans)
    builder = _Builder(source, floor, globs)
    for (file, one), launches in zip(attributed, spans, strict=True):
        builder.add_trace(file, one, launches)
    for file, traces in lent:
        for trace in traces:
            builder.add_trace_row(file.path.name, trace, "capture", None)
    tables = builder.finish(floor_rows)
    return Prepared(
        run_id=source.run_id(),
        name=source.name,
        path=str(source.path),
        tables=tables,
        findings=builder.findings,
        events=sum(t.events for _, ts in loaded + lent for t in ts),
        json_bytes=sum(t.json_bytes for _, ts in loaded + lent for t in ts),
        read_seconds=read_seconds,
        analyse_seconds=time.perf_counter() - began,
        kernels=builder.run_totals.kernels,
        steps=builder.offsets.steps,
    )


def _hash_all(source: Source) -> None:
    # An error is met again, and raised, where the hash is asked for.
    with suppress(AnalyzerError):
        for file in source.files:
            _ = file.sha256


def _floor(source: Source, spans: list[Launches]) -> tuple[Floor, list[dict[str, Any]]]:
    """The measured floor if the run has one, else an estimate from the clean launches of its
    traces.
    """
    rows: list[dict[str, Any]] = []
    by_api: dict[str, int] = {}
    for file in source.files:
        if file.role != "floor":
            continue
        entries: Any = read_json(file.path).get("floors", [])
        if not isinstance(entries, list):
            raise AnalyzerError(f"{file.path} has no list of floors; measure it again.")
        for entry in cast("list[Any]", entries):
            try:
                samples = np.array([int(v) for v in entry["samples_ns"]], np.int64)
                api, definition = str(entry["launch_api"]), str(entry["definition"])
            except (KeyError, TypeError, ValueError) as error:
                raise AnalyzerError(
                    f"{file.path} has a floor without {error}; measure it again."
                ) from error
            if not len(samples):
                continue
            p50 = decomposition.percentile(samples, 50)
            rows.append(
                {
                    "launch_api": api,
                    "definition": definition,
                    "samples_ns": samples.tolist(),
                    "n": len(samples),
                    "p5_ns": decomposition.percentile(samples, 5),
                    "p50_ns": p50,
                    "mean_ns": round(float(samples.mean())),
                    "p95_ns": decomposition.percentile(samples, 95),
                }
            )
            if definition == FLOOR_DEFINITION and p50 >= 0:  # else the clocks differ
                by_api[api] = p50
    if by_api:
        default = by_api.get("cudaLaunchKernel") or sorted(by_api.values())[len(by_api) // 2]
        return Floor("null_kernel", default, by_api), rows
    samples = [decomposition.clean_gaps(s) for s in spans]
    return decomposition.trace_floor(
        np.concatenate(samples) if samples else np.empty(0, np.int64)
    ), rows


class _Builder:
    """Collects rows of all traces of a run; ids go on from trace to trace."""

    def __init__(self, source: Source, floor: Floor, globs: tuple[str, ...]) -> None:
        self.source = source
        self.floor = floor
        self.globs = globs
        self.names, self.shapes = _Texts(), _Texts()
        self.threads: dict[tuple[str, str], int] = {}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.identities: dict[tuple[int, str, int, int], int] = {}
        self.identity_rows: list[dict[str, Any]] = []
        self.match_rows: list[dict[str, Any]] = []
        self.offsets = _Offsets()
        self.parts: dict[str, list[pa.Table]] = {}
        self.findings: list[Finding] = []
        self.quality: list[dict[str, Any]] = []
        self.parts_totals: list[totals.Totals] = []
        self.replays = _replays(source)
        self.trace_number = 0
        self.gpu: str | None = None
        self.metadata: dict[str, Any] | None = None
        self.steps_lack_floor = False
        self.run_totals: totals.Totals

    # -- one trace

    def add_trace(self, file: str, a: Attributed, launches: Launches) -> None:
        trace_id = self.trace_number
        strings = a.trace.strings
        used = np.concatenate(
            (a.ops.name, a.calls.name, a.device.name, a.device.captured_op, a.python["name"])
        )
        name_of = self.names.mapping(strings, used)
        shape_of = self.shapes.mapping(
            strings, np.concatenate((a.ops.shape, a.device.captured_shape))
        )
        thread_of = np.array([self._thread(a, pair) for pair in a.threads] + [-1], np.int64)
        kernel_ids = self._identities(a, name_of, shape_of)
        self._match(a, launches, kernel_ids)
        decomposition.decompose(a, launches, self.floor)
        busy = ledger.busy_measure(a)
        entries = ledger.ledger(a, launches, busy)
        self.add_trace_row(file, a.trace, "trace", a)
        off = self.offsets

        def add(table: str, **columns: Any) -> None:
            self._append(table, trace_id, columns)

        ops, calls, device = a.ops, a.calls, a.device
        add(
            "ops",
            op_id=np.arange(len(ops.start)) + off.ops,
            event_index=ops.index,
            thread_id=thread_of[ops.thread],
            name_id=name_of[ops.name],
            start_ns=ops.start,
            dur_ns=ops.dur,
            is_region=ops.region,
            bad_time=ops.bad,
            external_id=_where(ops.has_external, ops.external),
            shape_id=_id(shape_of[ops.shape]),
            parent_op_id=_id(ops.parent, off.ops),
            outermost_op_id=_id(ops.outermost, off.ops),
            step_id=_id(ops.step, off.steps),
        )
        add(
            "calls",
            call_id=np.arange(len(calls.start)) + off.calls,
            event_index=calls.index,
            thread_id=thread_of[calls.thread],
            name_id=name_of[calls.name],
            account=_words(calls.account, classification.ACCOUNTS),
            is_launch=calls.kind > 0,
            start_ns=calls.start,
            dur_ns=calls.dur,
            bad_time=calls.bad,
            correlation_id=_where(calls.correlation > 0, calls.correlation),
            external_id=_where(calls.has_external, calls.external),
            op_id=_id(calls.op, off.ops),
            outermost_op_id=_id(calls.outermost, off.ops),
            step_id=_id(calls.step, off.steps),
            device_events=calls.device_events,
            in_capture=calls.capture >= 0,
        )
        texts = pa.array([*strings, None], pa.string())
        add(
            "device_events",
            device_event_id=np.arange(len(device.start)) + off.device,
            event_index=device.index,
            kind=_words(device.kind, DEVICE_KINDS),
            name_id=name_of[device.name],
            kernel_id=_id(kernel_ids),
            device=_unquoted(texts, device.device),
            stream=_unquoted(texts, device.stream),
            start_ns=device.start,
            dur_ns=device.dur,
            bad_time=device.bad,
            correlation_id=_where(device.correlation > 0, device.correlation),
            external_id=_where(device.has_external, device.external),
            bytes=_where(device.has_bytes, device.bytes),
            call_id=_id(device.call, off.calls),
            op_id=_id(device.op, off.ops),
            captured_op_name_id=_id(name_of[device.captured_op]),
            step_id=_id(device.step, off.steps),
            graph_index=_id(device.graph_index),
        )
        first_kernel = np.where(
            launches.first >= 0, kernel_ids[launches.first] if len(kernel_ids) else -1, -1
        )
        tiers = self._tiers(first_kernel, launches)
        add(
            "launches",
            call_id=launches.call + off.calls,
            step_id=_id(launches.step, off.steps),
            kernel_id=_id(first_kernel),
            kernels=launches.kernels,
            is_graph=launches.is_graph,
            t_py_ns=_null(launches.t_py),
            t_dispatch_ns=_null(launches.t_dispatch),
            t_dispatch_raw_ns=_null(launches.t_dispatch_raw),
            t_dispatch_inner_ns=_null(launches.t_dispatch_inner),
            t_launch_ns=_null(launches.t_launch),
            is_clean=launches.is_clean,
            t_exec_ns=launches.t_exec,
            is_library=launches.is_library,
            dct_ns=_null(launches.dct),
            dft_ns=_null(launches.dft),
            dkt_ns=_null(launches.dkt),
            dkt_fw_ns=_null(launches.dkt_fw),
            dct_paper_ns=_null(launches.dct_paper),
            match_tier=tiers,
            replay_dispatch_ns=_null(launches.replay_dispatch),
            replay_launch_ns=_null(launches.replay_launch),
        )
        if len(a.python["start"]):
            add(
                "python_functions",
                event_index=a.python["index"],
                thread_id=thread_of[a.python["thread"]],
                name_id=name_of[a.python["name"]],
                start_ns=a.python["start"],
                dur_ns=a.python["dur"],
            )
        self._add_steps(trace_id, a, launches, thread_of, busy, entries)
        off.ops += len(ops.start)
        off.calls += len(calls.start)
        off.device += len(device.start)
        off.steps += len(a.steps)

    def add_trace_row(
        self, file: str, trace: kineto.Trace, role: str, a: Attributed | None
    ) -> None:
        trace_id, self.trace_number = self.trace_number, self.trace_number + 1
        rank = trace.metadata.get("distributedInfo")
        rank = rank.get("rank") if isinstance(rank, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self._append_rows(
            "traces",
            [
                {
                    "trace_id": trace_id,
                    "file": file,
                    "document": trace.document,
                    "role": role,
                    "rank": rank if isinstance(rank, int) else None,
                    "events": trace.events,
                    "json_bytes": trace.json_bytes,
                    "start_ns": a.whole.start if a else None,
                    "end_ns": a.whole.end if a else None,
                    "metadata": json.dumps(trace.metadata, ensure_ascii=False),
                }
            ],
        )
        self._append_rows(
            "event_counts",
            [
                {"trace_id": trace_id, "ph": ph, "category": cat, "events": n}
                for (ph, cat), n in sorted(trace.counts.items())
            ],
        )
        for finding in trace.findings:
            self.findings.append(finding)
            self.quality.append({"trace_id": trace_id, **asdict(finding)})
        devices = trace.metadata.get("deviceProperties")
        if self.gpu is None and role == "trace" and isinstance(devices, list):
            for entry in devices:  # pyright: ignore[reportUnknownVariableType]
                name: Any = entry.get("name") if isinstance(entry, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                if isinstance(name, str) and name:
                    self.gpu = name
                    break
        if role == "trace" and self.metadata is None:
            self.metadata = trace.metadata

    def _add_steps(
        self,
        trace_id: int,
        a: Attributed,
        launches: Launches,
        thread_of: npt.NDArray[np.int64],
        busy: Any,
        entries: list[ledger.Entry],
    ) -> None:
        off = self.offsets.steps
        last = _last_ends(a)
        self._append_rows(
            "steps",
            [
                {
                    "step_id": off + i,
                    "trace_id": trace_id,
                    "name": step.name,
                    "phase": step.phase,
                    "step_index": step.index,
                    "thread_id": int(thread_of[step.thread]) if step.thread >= 0 else None,
                    "start_ns": step.start,
                    "end_ns": step.end,
                    "elapsed_ns": max(step.end, int(last[i])) - step.start,
                }
                for i, step in enumerate(a.steps)
            ],
        )
        self._append_rows(
            "ledger",
            [
                {
                    "trace_id": trace_id,
                    "step_id": off + e.step if e.step >= 0 else None,
                    "thread_id": int(thread_of[e.thread]),
                    "is_main": e.is_main,
                    "account": e.account,
                    "ns": e.ns,
                    "exposed_ns": e.exposed_ns,
                }
                for e in entries
            ],
        )
        whole = totals.of_step(
            a, launches, self.floor, None, a.whole.end - a.whole.start, ledger.window(busy, a.whole)
        )
        rows = [{"trace_id": trace_id, "step_id": None, **asdict(whole)}]
        for i, step in enumerate(a.steps):
            row = totals.of_step(
                a, launches, self.floor, i, step.end - step.start, ledger.window(busy, step)
            )
            self.steps_lack_floor |= row.orchestration_ns is None
            rows.append({"trace_id": trace_id, "step_id": off + i, **asdict(row)})
        self._append_rows("totals", rows)
        self.parts_totals.append(whole)

    # -- kernels and their matches

    def _thread(self, a: Attributed, pair: tuple[str, str]) -> int:
        if pair in a.trace.thread_names:
            self.thread_names[pair] = a.trace.thread_names[pair]
        return self.threads.setdefault(pair, len(self.threads))

    def _identities(
        self, a: Attributed, name_of: npt.NDArray[np.int64], shape_of: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Kernel identity of each device event; -1 for copies and memsets."""
        device, ops, strings = a.device, a.ops, a.trace.strings
        result = np.full(len(device.start), -1, np.int64)
        at = np.flatnonzero(device.kind == DEVICE_KINDS.index("kernel"))
        if not len(at):
            return result
        op = device.op[at]
        has = op >= 0
        own = np.full(len(at), -1, np.int64)
        own_shape = np.array(own)
        own[has] = ops.name[op[has]]
        own_shape[has] = ops.shape[op[has]]
        lent = device.captured_op[at]
        op_name = np.where(lent >= 0, lent, own)
        shape = np.where(lent >= 0, device.captured_shape[at], own_shape)
        key = device.name[at]
        for column in (device.config[at], op_name, shape):
            distinct, rank = ordinals(column)
            _, key = ordinals(key * len(distinct) + rank)
        first = np.zeros(int(key.max()) + 1, np.int64)
        first[key[::-1]] = np.arange(len(key))[::-1]
        ids: list[int] = []
        firsts: list[int] = first.tolist()
        for i in firsts:
            config = strings[device.config[at[i]]] if device.config[at[i]] >= 0 else ""
            parts = (
                int(name_of[device.name[at[i]]]),
                config,
                int(name_of[op_name[i]]) if op_name[i] >= 0 else -1,
                int(shape_of[shape[i]]) if shape[i] >= 0 else -1,
            )
            known_id = self.identities.get(parts)
            if known_id is None:
                known_id = self.identities[parts] = len(self.identities)
                name = strings[device.name[at[i]]]
                grid, block, shared, registers = _config(config)
                self.identity_rows.append(
                    {
                        "kernel_id": known_id,
                        "name_id": parts[0],
                        "clean_name": classification.clean_name(name),
                        "family": classification.kernel_family(name),
                        "is_library_paper": classification.is_library_paper(name),
                        "is_library_evidence": classification.is_library_evidence(name),
                        "grid": grid,
                        "block": block,
                        "shared_memory": shared,
                        "registers": registers,
                        "op_name_id": parts[2] if parts[2] >= 0 else None,
                        "shape_id": parts[3] if parts[3] >= 0 else None,
                    }
                )
            ids.append(known_id)
        result[at] = np.array(ids, np.int64)[key]
        return result

    def _match(self, a: Attributed, launches: Launches, kernel_ids: npt.NDArray[np.int64]) -> None:
        """Match this trace's new identities and set the replay figures of its launches."""
        if self.replays is None:
            return
        names, shapes = list(self.names.ids), list(self.shapes.ids)
        duration = np.zeros(len(self.identity_rows), np.int64)
        has = kernel_ids >= 0
        duration[kernel_ids[has]] = (a.device.end - a.device.start)[has]
        new = self.identity_rows[len(self.match_rows) :]
        traced: list[kernel_match.Traced] = []
        for row in new:
            shape_id: int | None = row["shape_id"]
            op_id: int | None = row["op_name_id"]
            shape = shapes[shape_id] if shape_id is not None else ""
            dims, types, strides, concrete = _shape(shape)
            traced.append(
                kernel_match.Traced(
                    clean_name=row["clean_name"],
                    grid=row["grid"],
                    block=row["block"],
                    shared_memory=row["shared_memory"],
                    op=names[op_id] if op_id is not None else None,
                    dims=dims,
                    types=types,
                    strides=strides,
                    concrete=concrete,
                    duration_ns=int(duration[row["kernel_id"]]),
                )
            )
        for row, found in zip(new, kernel_match.match(traced, self.replays), strict=True):
            self.match_rows.append(
                {
                    "kernel_id": row["kernel_id"],
                    "tier": found.tier,
                    "replay_id": found.replay,
                    "same_configuration": found.same_configuration,
                    "reason": found.reason,
                }
            )
        dispatch = np.full(len(self.match_rows) + 1, UNKNOWN, np.int64)
        launch = np.array(dispatch)
        for row in self.match_rows:
            replay_id: int | None = row["replay_id"]
            if replay_id is not None:
                replay = self.replays[replay_id]
                if replay.dispatch_ns:
                    dispatch[row["kernel_id"]] = decomposition.median_ns(
                        np.array(replay.dispatch_ns)
                    )
                if replay.launch_ns:
                    launch[row["kernel_id"]] = decomposition.median_ns(np.array(replay.launch_ns))
        first = np.where(
            launches.first >= 0, kernel_ids[launches.first] if len(kernel_ids) else -1, -1
        )
        plain = ~launches.is_graph
        launches.replay_dispatch = np.where(plain, dispatch[first], UNKNOWN)
        launches.replay_launch = np.where(plain, launch[first], UNKNOWN)

    def _tiers(self, kernel: npt.NDArray[np.int64], launches: Launches) -> Column:
        if self.replays is None:
            return pa.nulls(len(kernel), pa.string())
        tiers = [row["tier"] for row in self.match_rows]
        codes = np.array(
            [kernel_match.TIERS.index(t) for t in tiers] + [kernel_match.TIERS.index("unmatched")]
        )
        words = codes[kernel]
        return pa.array(
            [kernel_match.TIERS[i] for i in words.tolist()], pa.string(), mask=launches.is_graph
        )

    # -- all traces together

    def finish(self, floor_rows: list[dict[str, Any]]) -> dict[str, pa.Table]:
        source, manifest = self.source, self.source.manifest
        self.run_totals = totals.add(self.parts_totals)
        self._append_rows(
            "totals", [{"trace_id": None, "step_id": None, **asdict(self.run_totals)}]
        )
        self._run_findings()
        self._append_rows("trace_quality", self.quality)
        self._append_rows("names", [{"name_id": i, "name": t} for t, i in self.names.ids.items()])
        self._append_rows(
            "shapes",
            [
                dict(
                    zip(
                        (
                            "shape_id",
                            "input_dims",
                            "input_types",
                            "input_strides",
                            "concrete_inputs",
                        ),
                        (i, *_shape(text)),
                        strict=True,
                    )
                )
                for text, i in self.shapes.ids.items()
            ],
        )
        self._append_rows(
            "threads",
            [
                {
                    "thread_id": i,
                    "pid": _plain(pair[0]),
                    "tid": _plain(pair[1]),
                    "thread_name": self.thread_names.get(pair),
                }
                for pair, i in self.threads.items()
            ],
        )
        self._append_rows("kernels", self.identity_rows)
        self._append_rows("matches", self.match_rows)
        self._append_rows("floors", floor_rows)
        self._append_rows("replay_kernels", _replay_rows(self.replays))
        self._append_rows(
            "files",
            [
                {"file": f.path.name, "role": f.role, "sha256": f.sha256, "bytes": f.bytes}
                for f in source.files
            ],
        )
        self._latency()
        environment = asdict(manifest.environment) if manifest else None
        host_id = None
        if environment and any(v for v in environment.values()):
            host_id = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[
                :16
            ]
            row = {k: v for k, v in environment.items() if k != "gpu_clocks"}
            row["versions"] = json.dumps(row["versions"])
            self.parts.setdefault("hosts", []).append(
                pa.Table.from_pylist([{"host_id": host_id, **row}])
            )
        self.parts["runs"] = [pa.Table.from_pylist([self._run_row(host_id)])]
        return {
            name: pa.concat_tables(parts, promote_options="permissive")
            for name, parts in self.parts.items()
        }

    def _run_row(self, host_id: str | None) -> dict[str, Any]:
        source, manifest = self.source, self.source.manifest
        globs = self.globs
        return {
            "run_id": source.run_id(),
            "name": source.name,
            "source": "run_directory" if manifest else "trace",
            "path": str(source.path.resolve()),
            "content_sha256": source.content_sha256(),
            "recording_id": manifest.run_id if manifest else None,
            "created_at": manifest.created_at if manifest else None,
            "ingested_at": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
            "analyzer_version": _version(),
            "host_id": host_id,
            "model": manifest.model if manifest else None,
            "mode": manifest.mode if manifest else "foreign",
            "attention": manifest.attention if manifest else None,
            "dtype": manifest.dtype if manifest else None,
            "batch_size": manifest.batch_size if manifest else None,
            "prompt_len": manifest.prompt_len if manifest else None,
            "new_tokens": manifest.new_tokens if manifest else None,
            "gpu": (manifest.environment.gpu if manifest else None) or self.gpu,
            "step_annotation": ",".join(globs),
            "phases": json.dumps(manifest.phases) if manifest else None,
            "manifest": json.dumps(asdict(manifest), ensure_ascii=False) if manifest else None,
            "trace_metadata": json.dumps(self.metadata or {}, ensure_ascii=False),
        }

    def _run_findings(self) -> None:
        t = self.run_totals
        found: list[Finding] = []
        if t.launches and t.floor_source == "none" and t.launches > t.graph_launches:
            where = "of some steps" if self.steps_lack_floor else "outside the steps"
            found.append(
                Finding(
                    "no_floor",
                    "warning" if self.steps_lack_floor else "note",
                    1,
                    None,
                    "no launch floor: none was measured and the trace has fewer than "
                    f"{decomposition.FEWEST_CLEAN_SAMPLES} clean launches, or kernels before their "
                    f"launch; dKT, T_Orchestration and HDBI {where} are unknown",
                )
            )
        elif t.floor_source == "trace":
            found.append(
                Finding(
                    "floor_from_trace",
                    "note",
                    1,
                    None,
                    "the launch floor is estimated from the trace (5th percentile of clean launch "
                    "gaps), not measured; `collector floor` measures it",
                )
            )
        if t.negative_gaps:
            found.append(
                Finding(
                    "negative_gaps",
                    "warning",
                    t.negative_gaps,
                    None,
                    f"{t.negative_gaps} of {t.launches} kernels start before their launch call: "
                    "host and device clocks differ; the values are kept as they are",
                )
            )
        if t.launches and t.clean_launches < t.launches / 2:
            found.append(
                Finding(
                    "dirty_launches",
                    "note",
                    t.launches - t.clean_launches,
                    None,
                    f"{t.launches - t.clean_launches} of {t.launches} launches found their stream "
                    "busy or unseen: their T_launch holds queueing",
                )
            )
        if t.launches_without_device_event:
            found.append(
                Finding(
                    "launches_without_device_event",
                    "warning",
                    t.launches_without_device_event,
                    None,
                    f"{t.launches_without_device_event} launch calls have no device event in "
                    "the trace",
                )
            )
        if t.launches_without_op:
            found.append(
                Finding(
                    "launches_without_op",
                    "note",
                    t.launches_without_op,
                    None,
                    f"{t.launches_without_op} of {t.launches} launches stand in no operator: they "
                    "add only their launch path",
                )
            )
        for finding in found:
            self.findings.append(finding)
            self.quality.append({"trace_id": None, **asdict(finding)})

    def _latency(self) -> None:
        for file in self.source.files:
            if file.role != "latency":
                continue
            with _as_written(file.path):
                self._add_latency(read_json(file.path))

    def _add_latency(self, value: dict[str, Any]) -> None:
        rows: list[dict[str, Any]] = []
        for i, request in enumerate(value.get("requests", [])):
            itl: list[Any] = request.get("itl_ns") or []
            gaps = [int(v) for v in itl]
            rows.append(
                {
                    "request": i,
                    "ttft_ns": request.get("ttft_ns"),
                    "tpot_ns": round(sum(gaps) / len(gaps)) if gaps else None,
                    "total_ns": request.get("total_ns"),
                    "itl_ns": gaps,
                }
            )
        self._append_rows("latency", rows)
        steps: dict[str, list[Any]] = value.get("steps") or {}
        self._append_rows(
            "step_latency",
            [{"phase": p, "wall_ns": [int(v) for v in s]} for p, s in steps.items() if s],
        )

    def _append(self, table: str, trace_id: int, columns: dict[str, Any]) -> None:
        arrays: dict[str, Column] = {
            name: value if isinstance(value, pa.Array) else pa.array(value)
            for name, value in columns.items()
        }
        n = len(next(iter(arrays.values())))
        if not n:
            return
        arrays["run_id"] = _constant(self.source.run_id(), n)
        arrays["trace_id"] = pa.array(np.full(n, trace_id, np.int32))
        self.parts.setdefault(table, []).append(pa.table(arrays))

    def _append_rows(self, table: str, rows: list[dict[str, Any]]) -> None:
        if rows:
            run_id = self.source.run_id()
            self.parts.setdefault(table, []).append(
                pa.Table.from_pylist([{"run_id": run_id, **row} for row in rows])
            )


def _constant(text: str, n: int) -> Column:
    return _dictionary(np.zeros(n, np.int8), pa.array([text]))


def _words(codes: npt.NDArray[np.int64], words: tuple[str, ...]) -> Column:
    return _dictionary(codes.astype(np.int8), pa.array(words))


def _dictionary(codes: npt.NDArray[np.integer[Any]], words: Column) -> Column:
    indices: Any = pa.array(codes)
    return pa.DictionaryArray.from_arrays(indices, words)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _last_ends(a: Attributed) -> npt.NDArray[np.int64]:
    """When the last device event of each step ends; before everything for a step without one."""
    last = np.full(len(a.steps), np.iinfo(np.int64).min, np.int64)
    good = (a.device.step >= 0) & ~a.device.bad
    np.maximum.at(last, a.device.step[good], a.device.end[good])
    return last


def _id(ids: npt.NDArray[np.int64], offset: int = 0) -> Column:
    return pa.array((ids + offset).astype(np.int32), mask=ids < 0)


def _where(has: npt.NDArray[np.bool_], values: npt.NDArray[np.int64]) -> Column:
    return pa.array(values, mask=~has)


def _null(values: npt.NDArray[np.int64]) -> Column:
    return pa.array(values, mask=~known(values))


def _unquoted(texts: Column, ids: npt.NDArray[np.int64]) -> Column:
    used, inverse = ordinals(ids)
    at: list[int] = used.tolist()
    words = [_plain(texts[i].as_py()) if i >= 0 else None for i in at]
    if not words:
        return pa.nulls(len(ids), pa.string())
    return _dictionary(inverse.astype(np.int32), pa.array(words, pa.string()))


def _plain(text: str | None) -> str | None:
    """An id as a person writes it: JSON text of a string without its quotes."""
    if not text:
        return text
    if text[0] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text.strip('"')
    return text


def _config(text: str) -> tuple[str | None, str | None, int | None, int | None]:
    if not text:
        return None, None, None, None
    grid, block, shared, registers = text.split(UNIT_SEPARATOR)
    return grid or None, block or None, _int(shared), _int(registers)


def _int(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _shape(text: str) -> tuple[str | None, str | None, str | None, str | None]:
    parts = [*text.split(UNIT_SEPARATOR), "", "", "", ""][:4]
    dims, types, strides, concrete = (part or None for part in parts)
    return dims, types, strides, concrete


@contextmanager
def _as_written(path: Path) -> Generator[None, None, None]:
    """What is not of the form that the collector writes is the file's fault, not ours."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise AnalyzerError(
            f"{path} is not as the collector writes it ({error}); record the run again."
        ) from error


def _replays(source: Source) -> list[kernel_match.Replayed] | None:
    found: list[kernel_match.Replayed] | None = None
    for file in source.files:
        if file.role != "replay":
            continue
        found = found or []
        with _as_written(file.path):
            for op in read_json(file.path).get("ops", []):
                head: dict[str, Any] = {
                    "op": op.get("op"),
                    "dims": op.get("input_dims"),
                    "types": op.get("input_types"),
                    "strides": op.get("input_strides"),
                    "concrete": op.get("concrete_inputs"),
                    "reason": op.get("reason"),
                }
                kernels: list[dict[str, Any]] = op.get("kernels") or [{}]
                for kernel in kernels:
                    name = kernel.get("name")
                    found.append(
                        kernel_match.Replayed(
                            **head,
                            name=name,
                            clean_name=classification.clean_name(name) if name else None,
                            position=kernel.get("position", 0),
                            grid=_list_text(kernel.get("grid")),
                            block=_list_text(kernel.get("block")),
                            shared_memory=kernel.get("shared_memory"),
                            launch_api=kernel.get("launch_api"),
                            occurrences=kernel.get("count", 0),
                            dispatch_ns=[int(v) for v in kernel.get("dispatch_ns", [])],
                            launch_ns=[int(v) for v in kernel.get("launch_ns", [])],
                            exec_ns=[int(v) for v in kernel.get("exec_ns", [])],
                        )
                    )
    return found


def _list_text(value: Any) -> str | None:
    """A grid or block as the trace writes it."""
    if value is None:
        return None
    return value if isinstance(value, str) else "[" + ", ".join(str(v) for v in value) + "]"


def _replay_rows(replays: list[kernel_match.Replayed] | None) -> list[dict[str, Any]]:
    names = {
        "op": "op_name",
        "dims": "input_dims",
        "types": "input_types",
        "strides": "input_strides",
        "concrete": "concrete_inputs",
        "name": "kernel_name",
    }
    return [
        {"replay_id": i}
        | {names.get(f.name, f.name): getattr(r, f.name) for f in fields(kernel_match.Replayed)}
        for i, r in enumerate(replays or [])
    ]


def _version() -> str:
    try:
        return metadata.version("hostbound")
    except metadata.PackageNotFoundError:
        return "unknown"
