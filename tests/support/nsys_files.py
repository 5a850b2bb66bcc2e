"""The smallest export of Nsight Systems that shows something, built in the test that needs it.

Times are nanoseconds, as in the format. Tables have the columns that a row was given, so that a
test decides which are there; strings are interned in `StringIds`.
"""

from __future__ import annotations

import random
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SECRET = "HB_SECRET"
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
PID = 4711


def global_id(pid: int, tid: int = 0) -> int:
    """Process and thread in one number, above the number of a virtual machine."""
    return (1 << 48) | (pid << 24) | tid


class NsysBuilder:
    """Collects rows by table; `write` makes the SQLite file, `write_parquet` the folder."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.tables["StringIds"].append({"id": self._strings[text], "value": text})
        return self._strings[text]

    def add(self, table: str, **columns: Any) -> NsysBuilder:
        self.tables[table].append(columns)
        return self

    def add_kernel(
        self,
        name: str,
        start: int,
        dur: int,
        correlation: int,
        pid: int = PID,
        device: int = 0,
        stream: int = 7,
        node: int | None = None,
        **columns: Any,
    ) -> NsysBuilder:
        given = dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 1)
        given |= {"staticSharedMemory": 16, "dynamicSharedMemory": 32, "registersPerThread": 24}
        return self.add(
            KERNEL,
            start=start,
            end=start + dur,
            deviceId=device,
            streamId=stream,
            correlationId=correlation,
            globalPid=global_id(pid),
            demangledName=self.string(name),
            graphNodeId=node,
            **(given | columns),
        )

    def add_call(
        self,
        name: str,
        start: int,
        dur: int,
        correlation: int,
        pid: int = PID,
        tid: int = 1,
        event_class: int = 0,
    ) -> NsysBuilder:
        return self.add(
            RUNTIME,
            start=start,
            end=start + dur,
            eventClass=event_class,
            globalTid=global_id(pid, tid),
            correlationId=correlation,
            nameId=self.string(name),
        )

    def add_launch(self, kernel: str, start: int, correlation: int, **columns: Any) -> NsysBuilder:
        """A call of 2,000 ns, whose kernel begins 5,000 ns after it and runs for 3,000."""
        pid, tid = columns.get("pid", PID), columns.pop("tid", 1)
        self.add_call("cudaLaunchKernel_v7000", start, 2_000, correlation, pid, tid)
        return self.add_kernel(kernel, start + 5_000, 3_000, correlation, **columns)

    def add_range(
        self,
        text: str | None,
        start: int,
        dur: int | None,
        pid: int = PID,
        tid: int = 1,
        kind: int = 59,
        registered: str | None = None,
    ) -> NsysBuilder:
        """An NVTX range; `registered` is a text that stands in the table of strings."""
        return self.add(
            "NVTX_EVENTS",
            start=start,
            end=None if dur is None else start + dur,
            eventType=kind,
            text=text,
            globalTid=global_id(pid, tid),
            textId=self.string(registered) if registered else None,
        )

    def add_node(
        self, node: int, start: int, origin: int | None = None, pid: int = PID, tid: int = 1
    ) -> NsysBuilder:
        """The creation of a graph node, or its clone from another."""
        return self.add(
            "CUDA_GRAPH_NODE_EVENTS",
            start=start,
            end=start,
            globalTid=global_id(pid, tid),
            nameId=self.string("CUDA graph node"),
            graphNodeId=node,
            originalGraphNodeId=origin,
        )

    def add_secrets(self) -> NsysBuilder:
        """What every real report holds and nobody else may see."""
        path = self.string(f"/home/{SECRET}/model")
        self.add("PROCESSES", globalPid=global_id(PID), pid=PID, name=f"{SECRET} --token")
        self.add("ThreadNames", nameId=path, priority=20, globalTid=global_id(PID, 1))
        self.add("ProcessStreams", globalPid=global_id(PID), filenameId=path, contentId=path)
        self.add("TARGET_INFO_SYSTEM_ENV", globalVid=1, name=SECRET, nameEnum=1, value=SECRET)
        self.add("META_DATA_CAPTURE", name="COMMAND_LINE", value=SECRET)
        self.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.25.0")
        self.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value=SECRET)
        self.add("DIAGNOSTIC_EVENT", timestamp=0, severity=3, text=SECRET)
        gpu = {"id": 0, "cuDevice": 0, "name": "NVIDIA H200", "busLocation": SECRET, "uuid": SECRET}
        return self.add("TARGET_INFO_GPU", **gpu, smCount=132, memoryBandwidth=4_800_000_000_000)

    def shuffle(self, seed: int) -> NsysBuilder:
        """Put the rows of every table in another order."""
        dice = random.Random(seed)
        for rows in self.tables.values():
            dice.shuffle(rows)
        return self

    def write(self, path: Path) -> Path:
        connection = sqlite3.connect(path)
        with connection:
            for table, rows in self.tables.items():
                columns = _columns(rows)
                typed = ", ".join(f'"{c}" {_type(rows, c)}' for c in columns)
                connection.execute(f'CREATE TABLE "{table}" ({typed})')
                marks = ", ".join("?" for _ in columns)
                values = [[row.get(column) for column in columns] for row in rows]
                connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)
        connection.close()
        return path

    def write_parquet(self, folder: Path) -> Path:
        folder.mkdir()
        for table, rows in self.tables.items():
            whole = [{column: row.get(column) for column in _columns(rows)} for row in rows]
            pq.write_table(pa.Table.from_pylist(whole), folder / f"{table}.parquet")
        return folder


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def _type(rows: list[dict[str, Any]], column: str) -> str:
    return "TEXT" if any(isinstance(row.get(column), str) for row in rows) else "INTEGER"


def graph_run(mode: str) -> NsysBuilder:
    """Two replays of a graph of two kernels, captured under operators.

    Args:
        mode: "node": each kernel with its graph node; "graph": one block a replay.
    """
    made = NsysBuilder()
    made.add_call("cudaStreamBeginCapture_v10000", 500, 100, 80)
    made.add_call("cudaStreamEndCapture_v10000", 18_000, 100, 81)
    made.add_range("aten::linear, op_id = 1, sizes = [[1, 8], [8, 8]]", 1_000, 9_000)
    made.add_range("aten::addmm, seq = 3, op_id = 2, sizes = [[8], [1, 8], [8, 8]]", 2_000, 6_000)
    made.add_call("cudaLaunchKernel_v7000", 3_000, 1_000, 90)
    made.add_range("aten::relu, op_id = 3", 11_000, 4_000)
    made.add_call("cudaLaunchKernel_v7000", 12_000, 1_000, 91)
    made.add_node(10, 3_500).add_node(11, 12_500)  # captured
    made.add_node(20, 20_000, origin=10).add_node(21, 20_000, origin=11)  # instantiated
    made.add_node(30, 21_000, origin=20).add_node(31, 21_000, origin=21)  # and cloned once more
    for replay in range(2):
        start, correlation = 100_000 + 50_000 * replay, 100 + replay
        made.add_call("cudaGraphLaunch_v10000", start, 4_000, correlation)
        if mode == "node":
            made.add_kernel("gemm", start + 6_000, 8_000, correlation, node=30)
            made.add_kernel("relu", start + 15_000, 2_000, correlation, node=31)
        else:
            made.add(
                "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
                start=start + 6_000,
                end=start + 17_000,
                deviceId=0,
                streamId=7,
                correlationId=correlation,
                globalPid=global_id(PID),
                graphId=5,
            )
    return made
