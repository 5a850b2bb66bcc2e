"""The smallest results of rocprofv3 that show something: one job as databases or as JSON.

Times are nanoseconds. The tables are those of rocpd 3.0 or 4.1, with the columns that are read and
those that nobody else may see.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECRET = "HB_SECRET"
PID, GPU_AGENT, CPU_AGENT = 908, 4, 0
_KINDS = ("HIP_RUNTIME_API", "HSA_CORE_API", "MARKER_CORE_RANGE_API", "RCCL_API")
_DISPATCH, _COPY = "KERNEL_DISPATCH", "MEMORY_COPY"
_THERE = ("MEMORY_COPY_HOST_TO_DEVICE", GPU_AGENT, CPU_AGENT)
_BACK = ("MEMORY_COPY_DEVICE_TO_HOST", CPU_AGENT, GPU_AGENT)

Row = dict[str, Any]


@dataclass
class RocprofBuilder:
    """Collects the records of one process; `write` makes the database, `write_json` the JSON."""

    pid: int = PID
    init: int = 0
    regions: list[Row] = field(default_factory=list[Row])
    dispatches: list[Row] = field(default_factory=list[Row])
    copies: list[Row] = field(default_factory=list[Row])

    def add_call(
        self,
        name: str,
        start: int,
        dur: int,
        correlation: int,
        kind: str = "HIP_RUNTIME_API",
        parent: int = 0,
        tid: int = PID,
    ) -> RocprofBuilder:
        row = {"name": name, "start": start, "end": start + dur, "correlation": correlation}
        self.regions.append(row | {"kind": kind, "parent": parent, "tid": tid, "message": None})
        return self

    def add_range(self, text: str, start: int, dur: int, correlation: int) -> RocprofBuilder:
        self.add_call("roctxThreadRangeA", start, dur, correlation, "MARKER_CORE_RANGE_API")
        self.regions[-1]["message"] = text
        return self

    def add_kernel(
        self, name: str, start: int, dur: int, correlation: int, queue: int = 16, stream: int = 0
    ) -> RocprofBuilder:
        row = {"name": name, "start": start, "end": start + dur, "correlation": correlation}
        self.dispatches.append(row | {"queue": queue, "stream": stream})
        return self

    def add_launch(self, kernel: str, start: int, correlation: int) -> RocprofBuilder:
        """A call of 2,000 ns, whose kernel begins 5,000 ns after it and runs for 3,000."""
        self.add_call("hipLaunchKernel", start, 2_000, correlation)
        return self.add_kernel(kernel, start + 5_000, 3_000, correlation)

    def add_copy(
        self, start: int, dur: int, correlation: int, size: int, back: bool = False
    ) -> RocprofBuilder:
        row = {"start": start, "end": start + dur, "correlation": correlation, "size": size}
        self.copies.append(row | {"way": _BACK if back else _THERE})
        return self

    # -- the database

    def write(self, path: Path, version: str = "3.0.2") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path)
        with connection:
            self.write_to(connection, version)
        connection.close()
        return path

    def write_to(self, connection: sqlite3.Connection, version: str = "3.0.2") -> None:
        """Add the tables of this process, as a merged database has them of several."""
        suffix = f"_0199_{self.pid}"
        for table, rows in self._tables(version).items():
            columns = list(dict.fromkeys(column for row in rows for column in row))
            typed = ", ".join(
                f'"{c}" {"INTEGER PRIMARY KEY" if c == "id" else ""}' for c in columns
            )
            connection.execute(f'CREATE TABLE "{table}{suffix}" ({typed})')
            marks = ", ".join("?" for _ in columns)
            values = [[row.get(column) for column in columns] for row in rows]
            connection.executemany(f'INSERT INTO "{table}{suffix}" VALUES ({marks})', values)
            connection.execute(f'CREATE VIEW IF NOT EXISTS "{table}" AS SELECT 1')

    def _tables(self, version: str) -> dict[str, list[Row]]:
        is_new = version.startswith("4")
        strings = _Strings()
        events: list[Row] = []
        tracks: list[Row] = []

        def event(kind: str, row: Row) -> Row:
            shown = {"message": row["message"]} if row.get("message") else {}
            category = _KINDS.index(kind) if is_new and kind in _KINDS else strings.id(kind)
            events.append(
                {
                    "id": len(events) + 1,
                    "category_id": category + 1 if is_new and kind in _KINDS else category,
                    "stack_id": row["correlation"],
                    "parent_stack_id": row.get("parent", row["correlation"]),
                    "correlation_id": 0,
                    "extdata": json.dumps(shown),
                }
            )
            return {"event_id": len(events), "start": row["start"], "end": row["end"]}

        def owner(tid: int | None, **device: int) -> Row:
            own = {"nid": 1, "pid": self.pid, "tid": tid, **device}
            if not is_new:
                return own
            tracks.append({"id": len(tracks) + 1, **own})
            return {"track_id": len(tracks)}

        names = list(dict.fromkeys(row["name"] for row in self.dispatches))
        regions = [
            owner(row["tid"]) | event(row["kind"], row) | {"name_id": strings.id(row["name"])}
            for row in self.regions
        ]
        dispatches = [
            owner(PID, agent_id=GPU_AGENT, queue_id=row["queue"], stream_id=row["stream"])
            | event(_DISPATCH, row)
            | {"kernel_id": names.index(row["name"]) + 1, "group_segment_size": 64}
            | {f"workgroup_size_{axis}": size for axis, size in zip("xyz", (64, 1, 1), strict=True)}
            | {f"grid_size_{axis}": size for axis, size in zip("xyz", (512, 2, 1), strict=True)}
            for row in self.dispatches
        ]
        copies = [
            owner(PID, stream_id=0)
            | event(_COPY, row)
            | {"name_id": strings.id(row["way"][0]), "size": row["size"]}
            | {"dst_agent_id": row["way"][1], "src_agent_id": row["way"][2]}
            for row in self.copies
        ]
        symbols = [
            {"id": i + 1, "kernel_name": name, "display_name": name, "arch_vgpr_count": 24}
            for i, name in enumerate(names)
        ]
        path = f"file:///home/{SECRET}/lib.so"
        tables: dict[str, list[Row]] = {
            "rocpd_metadata": [{"id": 1, "tag": "schema_version", "value": version}],
            "rocpd_info_node": [{"id": 1, "machine_id": SECRET, "hostname": SECRET}],
            "rocpd_info_process": [
                {"id": self.pid, "pid": self.pid, "init": self.init, "fini": self.init + 10**9}
                | {"command": SECRET, "environment": SECRET}
            ],
            "rocpd_info_thread": [{"id": PID, "pid": self.pid, "tid": PID, "name": SECRET}],
            "rocpd_info_agent": [
                {"id": CPU_AGENT, "type": "CPU", "type_index": 0, "product_name": "EPYC"},
                {"id": GPU_AGENT, "type": "GPU", "type_index": 2, "product_name": "MI350X"},
            ],
            "rocpd_info_kernel_symbol": symbols,
            "rocpd_info_code_object": [{"id": 1, "uri": path}],
            "rocpd_region": regions,
            "rocpd_kernel_dispatch": dispatches,
            "rocpd_memory_copy": copies,
            "rocpd_event": events,
            "rocpd_arg": [{"id": 1, "event_id": 1, "name": "path", "value": SECRET}],
        }
        strings.id(path)
        tables["rocpd_string"] = strings.rows()
        if is_new:
            kinds = [{"id": i + 1, "name": name} for i, name in enumerate(_KINDS)]
            tables |= {"rocpd_track": tracks, "rocpd_info_category": kinds}
        return {table: rows for table, rows in tables.items() if rows}

    # -- the JSON

    def as_json(self) -> Row:
        kinds = ("NONE", *_KINDS, _DISPATCH, _COPY)
        names = list(dict.fromkeys(row["name"] for row in self.dispatches))
        operations = list(dict.fromkeys(row["name"] for row in self.regions))
        operations += [_THERE[0], _BACK[0]]

        def record(kind: str, row: Row, operation: str) -> Row:
            own = {"internal": row["correlation"], "external": 0, "ancestor": row.get("parent", 0)}
            return {
                "kind": kinds.index(kind),
                "operation": operations.index(operation) if operation else 2,
                "thread_id": row.get("tid", PID),
                "correlation_id": own,
                "start_timestamp": row["start"],
                "end_timestamp": row["end"],
            }

        def dispatch(row: Row) -> Row:
            info = {
                "agent_id": {"handle": GPU_AGENT},
                "queue_id": {"handle": row["queue"]},
                "kernel_id": names.index(row["name"]) + 1,
                "group_segment_size": 64,
                "workgroup_size": {"x": 64, "y": 1, "z": 1},
                "grid_size": {"x": 512, "y": 2, "z": 1},
            }
            return record(_DISPATCH, row, "") | {"dispatch_info": info}

        def copy(row: Row) -> Row:
            name, target, source = row["way"]
            ends = {"dst_agent_id": {"handle": target}, "src_agent_id": {"handle": source}}
            stream = {"stream_id": {"handle": 0}, "bytes": row["size"]}
            return record(_COPY, row, name) | ends | stream

        def regions(kind: str) -> list[Row]:
            return [record(kind, row, row["name"]) for row in self.regions if row["kind"] == kind]

        lists = dict(zip(("hip_api", "hsa_api", "marker_api", "rccl_api"), _KINDS, strict=True))
        messages = [r for r in self.regions if r["message"]]
        return {
            "metadata": {"node": {"hostname": SECRET}, "pid": self.pid, "command": [SECRET]},
            "agents": [
                {"id": {"handle": CPU_AGENT}, "type": 1, "logical_node_type_id": 0},
                {
                    "id": {"handle": GPU_AGENT},
                    "type": 2,
                    "logical_node_type_id": 2,
                    "product_name": "MI350X",
                },
            ],
            "strings": {
                "buffer_records": [{"kind": kind, "operations": operations} for kind in kinds],
                "marker_api": [{"key": r["correlation"], "value": r["message"]} for r in messages],
                "att_filenames": [SECRET],
            },
            "code_objects": [{"uri": f"file:///home/{SECRET}"}],
            "kernel_symbols": [
                {"kernel_id": i + 1, "formatted_kernel_name": name, "arch_vgpr_count": 24}
                for i, name in enumerate(names)
            ],
            "buffer_records": {
                "kernel_dispatch": [dispatch(row) for row in self.dispatches],
                "memory_copy": [copy(row) for row in self.copies],
            }
            | {name: regions(kind) for name, kind in lists.items()},
        }

    def write_json(self, path: Path, *others: RocprofBuilder) -> Path:
        processes = [self.as_json(), *(other.as_json() for other in others)]
        path.write_text(json.dumps({"rocprofiler-sdk-tool": processes}), encoding="utf-8")
        return path


class _Strings:
    """The table of strings."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        return self._ids.setdefault(text, 100 + len(self._ids))

    def rows(self) -> list[Row]:
        return [{"id": i, "string": text} for text, i in self._ids.items()]


def small_run(pid: int = PID, init: int = 0) -> RocprofBuilder:
    """Two steps of an operator with two launches and a copy, and a kernel from before."""
    made = RocprofBuilder(pid, init)
    made.add_kernel("before", 100, 50, 7)
    for step in range(2):
        at, first = 10_000 + 100_000 * step, 100 + 20 * step
        made.add_range(f"decode {step}", at, 90_000, first)
        made.add_range(f"aten::linear, seq = {step}, op_id = {step}", at + 1_000, 20_000, first + 1)
        made.add_launch("gemm", at + 3_000, first + 2)
        # An HSA call within the next launch is what its dispatch names.
        made.add_call("hipLaunchKernel", at + 9_000, 4_000, first + 3)
        made.add_call("hsa_queue_add", at + 10_000, 1_000, first + 4, "HSA_CORE_API", first + 3)
        made.add_kernel("relu", at + 14_000, 2_000, first + 4)
        made.add_call("hipMemcpyAsync", at + 30_000, 3_000, first + 5)
        made.add_copy(at + 34_000, 1_000, first + 5, 4096)
        made.add_call("hipStreamSynchronize", at + 50_000, 5_000, first + 6)
    return made
