"""A run's trace with our attribution, event by event, for a writer of some format.

Read row by row, so that its size does not matter. Times are nanoseconds of the store, moved to the
clock that the traces of a file share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from analyzer.queries.rows import select_tuples
from analyzer.store import Connection
from analyzer.store.sql_text import named_sql
from analyzer.store.store import second_connection

_ROWS_AT_ONCE = 20_000
_CATEGORIES = {
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "mtia": "mtia_ccp_events",
    "graph": "gpu_graph",
}

Place = tuple[int, int]  # process and thread of the viewer


class TraceWriter(Protocol):
    """A file of some format. Names and arguments come as JSON texts."""

    def write_name(self, what: str, pid: int, tid: int, value: str, key: str = "name") -> None:
        """Name or order a process or thread; `what` and `key` as in Chrome's metadata events."""
        ...

    def write_slice(
        self, category: str, name: str, at: Place, start: int, dur: int, args: str, flows: list[int]
    ) -> None:
        """Write an event; `flows` are the numbers of the arrows from or to it."""
        ...

    def write_arrow(self, number: int, source: Place, begin: int, target: Place, end: int) -> None:
        """Draw the arrow of a number, whose two events have been written."""
        ...


@dataclass
class ViewerIds:
    """Small numbers for pids or tids: the trace's own where it is one, else one that is free."""

    taken: dict[int, str] = field(default_factory=dict[int, str])
    given: dict[str, int] = field(default_factory=dict[str, int])

    def number(self, key: str, wish: str) -> int:
        """The number of `key`, which would like to be the number written in `wish`."""
        if key in self.given:
            return self.given[key]
        value = int(wish) if wish.isascii() and wish.isdigit() and len(wish) < 10 else 1_000_000
        while value in self.taken:
            value = max(value + 1, 1_000_000)
        self.taken[value] = key
        self.given[key] = value
        return value


@dataclass
class _Stream:
    """A device's stream and its rows in the viewer, which drops slices that overlap in one row."""

    pid: int
    rows: list[tuple[int, int]]  # (tid, end of its last event in ns)


class AnnotatedTrace:
    """Gives one trace to a writer.

    Names and shapes are held as JSON text, each once; events are not held.

    Args:
        pids: Numbers of the viewer's processes; several traces of a file share them.
        shift: Nanoseconds to add to every time.
    """

    def __init__(
        self,
        connection: Connection,
        run_id: str,
        trace_id: int,
        out: TraceWriter,
        pids: ViewerIds | None = None,
        shift: int = 0,
    ) -> None:
        self.connection = connection
        self.parameters = {"run_id": run_id, "trace_id": trace_id}
        self.out = out
        self.shift = shift
        by_run = {"run_id": run_id}
        self.names: dict[int | None, str] = {
            i: _text(name)
            for i, name in select_tuples(
                connection, "SELECT name_id, name FROM names WHERE run_id = $run_id", by_run
            )
        }
        self.shapes: dict[int | None, str] = {
            i: _shape_fields(dims, types, strides, concrete)
            for i, dims, types, strides, concrete in select_tuples(
                connection,
                "SELECT shape_id, input_dims, input_types, input_strides, concrete_inputs "
                "FROM shapes WHERE run_id = $run_id",
                by_run,
            )
        }
        self.steps: dict[int | None, str] = {
            i: _text(name)
            for i, name in select_tuples(
                connection,
                "SELECT step_id, name FROM steps WHERE run_id = $run_id AND phase <> 'trace'",
                by_run,
            )
        }
        self.pids = pids or ViewerIds()
        self.of_trace = f"trace {trace_id}"
        self.tids: dict[int, ViewerIds] = {}
        self.threads: dict[int | None, tuple[int, int]] = {}
        self.thread_rows = {
            i: (str(pid or ""), str(tid or ""), name)
            for i, pid, tid, name in select_tuples(
                connection,
                "SELECT thread_id, pid, tid, thread_name FROM threads WHERE run_id = $run_id",
                by_run,
            )
        }
        self.streams: dict[tuple[str, str], _Stream] = {}

    def write(self) -> None:
        """Give all events, table by table."""
        self._steps()
        self._ops()
        self._calls()
        self._device_events()
        self._python_functions()

    def _rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        cursor = second_connection(self.connection)
        try:
            cursor.execute(sql, self.parameters)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield from rows
        finally:
            cursor.close()

    def _slice(
        self,
        category: str,
        name: str,
        at: Place,
        start: int,
        dur: int,
        args: str,
        flows: list[int] | None = None,
    ) -> None:
        self.out.write_slice(category, name, at, start + self.shift, dur, args, flows or [])

    # -- rows of the viewer

    def _thread(self, thread_id: int | None) -> tuple[int, int]:
        if thread_id in self.threads:
            return self.threads[thread_id]
        pid_text, tid_text, name = self.thread_rows.get(
            thread_id if thread_id is not None else -1, ("", "", None)
        )
        known = self.pids.given.get(f"{self.of_trace} host {pid_text}")
        pid = self.pids.number(f"{self.of_trace} host {pid_text}", pid_text)
        if known is None:
            self.out.write_name("process_name", pid, 0, _text(f"host process {pid_text}".strip()))
            self.out.write_name("process_sort_index", pid, 0, "0", "sort_index")
        tid = self.tids.setdefault(pid, ViewerIds()).number(f"{pid_text} {tid_text}", tid_text)
        self.out.write_name("thread_name", pid, tid, _text(name or f"thread {tid_text}"))
        self.threads[thread_id] = (pid, tid)
        return pid, tid

    def _lane(self, device: str, stream: str, start: int, end: int) -> tuple[int, int]:
        """The row of a device event: its stream's first one that is free."""
        found = self.streams.get((device, stream))
        if found is None:
            known = self.pids.given.get(f"{self.of_trace} device {device}")
            pid = self.pids.number(f"{self.of_trace} device {device}", device)
            if known is None:
                self.out.write_name("process_name", pid, 0, _text(f"device {device}"))
                self.out.write_name("process_sort_index", pid, 0, "1", "sort_index")
            found = self.streams[device, stream] = _Stream(pid, [])
        for i, (tid, until) in enumerate(found.rows):
            if until <= start:
                found.rows[i] = (tid, end)
                return found.pid, tid
        more = len(found.rows)
        tid = self.tids.setdefault(found.pid, ViewerIds()).number(
            f"{stream} {more}", "" if more else stream
        )
        name = f"stream {stream}" + (f", overlapping {more}" if more else "")
        self.out.write_name("thread_name", found.pid, tid, _text(name))
        found.rows.append((tid, end))
        return found.pid, tid

    # -- events

    def _steps(self) -> None:
        for row in self._rows(named_sql("export_steps")):
            step_id, name, phase, index, thread_id, start, end, *figures, accounts = row
            keys = (
                "kernels",
                "launches",
                "orchestration_ns",
                "device_active_ns",
                "device_idle_ns",
                "hdbi",
            )
            ours = _fields(
                {"step_id": step_id, "phase": phase, "step_index": index}
                | dict(zip(keys, figures, strict=True))
            )
            if accounts:
                ours += f',"ledger":{accounts}'
            self._slice(
                "user_annotation",
                _text(name),
                self._thread(thread_id),
                start,
                end - start,
                f'"hostbound":{{{ours}}}',
            )

    def _ops(self) -> None:
        for row in self._rows(named_sql("export_ops")):
            thread_id, name_id, start, dur, external, shape_id, is_region, step_id, op_id = row
            args = f'"hostbound":{{"op_id":{op_id}{self._step(step_id)}'
            args += ',"region":true}' if is_region else "}"
            if external is not None:
                args += f',"External id":{external}'
            args += self.shapes.get(shape_id, "")
            self._slice("cpu_op", self.names[name_id], self._thread(thread_id), start, dur, args)

    def _calls(self) -> None:
        for row in self._rows(named_sql("export_calls")):
            thread_id, name_id, start, dur, correlation, external, account, captured = row[:8]
            step_id, call_id, op, py, dispatch, launch, dft, dct, dkt, dkt_fw, tier = row[8:19]
            is_clean, is_library, kernels, started = row[19:]
            ours = _fields(
                {
                    "call_id": call_id,
                    "account": account,
                    "in_capture": captured or None,
                    "kernels": kernels,
                    "t_py_ns": py,
                    "t_dispatch_ns": dispatch,
                    "t_launch_ns": launch,
                    "is_clean": is_clean,
                    "dft_ns": dft,
                    "dct_ns": dct,
                    "dkt_ns": dkt,
                    "dkt_fw_ns": dkt_fw,
                    "is_library": is_library,
                    "match_tier": tier,
                }
            )
            if op is not None:
                ours += f',"op":{self.names[op]}'
            args = f'"hostbound":{{{ours}{self._step(step_id)}}}'
            if correlation is not None:
                args += f',"correlation":{correlation}'
            if external is not None:
                args += f',"External id":{external}'
            name = self.names[name_id]
            driver = name.startswith('"cu') and not name.startswith('"cuda')
            self._slice(
                "cuda_driver" if driver else "cuda_runtime",
                name,
                self._thread(thread_id),
                start,
                dur,
                args,
                [event_id + 1 for event_id in started or ()],
            )

    def _device_events(self) -> None:
        for row in self._rows(named_sql("export_device_events")):
            kind, name_id, device, stream, start, dur, correlation, external, size = row[:9]
            step_id, graph_index, event_id, kernel_id, op, from_capture, family = row[9:16]
            grid, block, shared, registers = row[16:20]
            call_id, call_name, call_thread, call_start, bad_time = row[20:25]
            ours = _fields(
                {
                    "kernel_id": kernel_id,
                    "family": family,
                    "graph_index": graph_index,
                    "launch_call_id": call_id,
                    "op_from_capture": from_capture or None,
                }
            )
            if call_name is not None:
                ours += f'{"," if ours else ""}"launch_call":{self.names[call_name]}'
            if op is not None:
                ours += f'{"," if ours else ""}"op":{self.names[op]}'
            ours += self._step(step_id)
            args = f'"hostbound":{{{ours.removeprefix(",")}}}'
            device, stream = str(device or ""), str(stream or "")
            args += f',"device":{_id(device)},"stream":{_id(stream)}'
            for key, value in (
                ("correlation", correlation),
                ("External id", external),
                ("bytes", size),
                ("shared memory", shared),
                ("registers per thread", registers),
            ):
                if value is not None:
                    args += f',"{key}":{value}'
            args += _json_field("grid", grid) + _json_field("block", block)
            args += _collective(*row[25:])
            at = self._lane(device, stream, start, start + (0 if bad_time else dur))
            flows = [] if call_id is None else [event_id + 1]
            self._slice(_CATEGORIES[kind], self.names[name_id], at, start, dur, args, flows)
            if call_id is not None:
                begin, end = call_start + self.shift, start + self.shift
                self.out.write_arrow(event_id + 1, self._thread(call_thread), begin, at, end)

    def _python_functions(self) -> None:
        sql = (
            "SELECT thread_id, name_id, start_ns, dur_ns FROM python_functions "
            "WHERE run_id = $run_id AND trace_id = $trace_id ORDER BY event_index"
        )
        for thread_id, name_id, start, dur in self._rows(sql):
            at = self._thread(thread_id)
            self._slice("python_function", self.names[name_id], at, start, dur, "")

    def _step(self, step_id: int | None) -> str:
        name = self.steps.get(step_id)
        return f',"step":{name}' if name else ""


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _fields(values: Mapping[str, object]) -> str:
    """The known ones as the inside of a JSON object."""
    return ",".join(f'"{key}":{_text(value)}' for key, value in values.items() if value is not None)


def _id(text: str) -> str:
    """A device or stream as the trace had it: a number where it is one."""
    plain = text.removeprefix("-")
    whole = plain.isascii() and plain.isdigit() and (plain == "0" or plain[0] != "0")
    return text if whole and len(plain) < 19 and text != "-0" else _text(text)


def _collective(name: str | None, group: str | None, size: int | None) -> str:
    """What tells a collective on other ranks, under PyTorch's names; its ranks are in the group."""
    if group is None:
        return ""
    args = f',"Collective name":{_text(name or "")},"Process Group Name":{_text(group)}'
    return args if size is None else f'{args},"In msg nelems":{size},"dtype":"Byte"'


def _json_field(key: str, text: str | None) -> str:
    """A field whose stored text is JSON; as a string if it is not."""
    if text is None:
        return ""
    try:
        json.loads(text)
    except ValueError:
        text = _text(text)
    return f',"{key}":{text}'


def _shape_fields(
    dims: str | None, types: str | None, strides: str | None, concrete: str | None
) -> str:
    return (
        _json_field("Input Dims", dims)
        + _json_field("Input type", types)
        + _json_field("Input Strides", strides)
        + _json_field("Concrete Inputs", concrete)
    )
