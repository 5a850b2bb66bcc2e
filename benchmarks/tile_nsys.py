"""Make a large export of Nsight Systems from a sample run: its events as tables, tile after tile.

Every tile is later than the one before by the sample's length and has correlation and op ids of its
own. Operators become NVTX ranges as PyTorch writes them, so a row has the size that it has in a
real export; tables have the columns of schema 3.25.
"""

from __future__ import annotations

import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

from analyzer.trace import kineto
from analyzer.trace.columns import launch_config, op_shape
from analyzer.trace.events import Trace

PID = 4711
GLOBAL_PID = (1 << 48) | (PID << 24)
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId contextId greenContextId streamId "
    "correlationId globalPid demangledName shortName mangledName launchType cacheConfig "
    "registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory "
    "dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig graphId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId contextId streamId correlationId globalPid "
    "bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId "
    "returnValue callchainId",
    "NVTX_EVENTS": "start end eventType globalTid domainId textId text opId sizes",
    "StringIds": "id value",
    "META_DATA_EXPORT": "name value",
}


def tile(source: Path, target: Path, size: int) -> int:
    """Write about `size` bytes of tiles of a Kineto trace; return the number of events."""
    target.unlink(missing_ok=True)
    (trace,) = kineto.read(source)
    with sqlite3.connect(target) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        _first_tile(connection, trace)
        tables = [table for table in COLUMNS if "start" in COLUMNS[table].split()]
        for table in tables:
            connection.execute(f"CREATE TABLE {table} ({_defined(table)})")
        starts = trace.rows["ts"]
        period = int(starts.max() - starts.min()) + 1_000_000
        stride = int(trace.rows["correlation"].max()) + 1
        events = 0
        for number in count():
            for table in tables:
                values = _shifted(table, number * period, number * stride)
                events += connection.execute(
                    f"INSERT INTO {table} SELECT {values} FROM temp.first_{table}"
                ).rowcount
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            if pages * 4096 >= size:
                break
    connection.close()
    return events


def _defined(table: str) -> str:
    """The columns of the export: without those that only the tiling needs."""
    kept = [column for column in COLUMNS[table].split() if column not in ("opId", "sizes")]
    return ", ".join(f'"{column}" {"TEXT" if column == "text" else "INTEGER"}' for column in kept)


def _shifted(table: str, time: int, number: int) -> str:
    shifts = {"start": time, "end": time, "correlationId": number}
    values: list[str] = []
    for column in COLUMNS[table].split():
        if column == "text":
            values.append(f"text || ', op_id = ' || (opId + {number}) || sizes")
        elif column not in ("opId", "sizes"):
            values.append(f'"{column}" + {shifts[column]}' if column in shifts else f'"{column}"')
    return ", ".join(values)


def _first_tile(connection: sqlite3.Connection, trace: Trace) -> None:
    """The first tile as temporary tables, and the strings of all tiles."""
    strings: dict[str, int] = {}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings) + 1)

    rows: dict[str, list[dict[str, Any]]] = {table: [] for table in COLUMNS}
    for row in trace.rows:
        category, name = trace.strings[row["category"]], trace.strings[row["name"]]
        start, end = int(row["ts"]), int(row["ts"] + row["dur"])
        common = {"start": start, "end": end, "correlationId": int(row["correlation"])}
        thread = {"globalTid": GLOBAL_PID | (hash(int(row["tid"])) % 64 + 1)}
        device = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": GLOBAL_PID}
        if category == "kernel":
            config = launch_config(trace.strings[row["config"]] if row["config"] >= 0 else "")
            grid = dict(zip(("gridX", "gridY", "gridZ"), _numbers(config.grid), strict=False))
            block = dict(zip(("blockX", "blockY", "blockZ"), _numbers(config.block), strict=False))
            names = {"demangledName": string(name), "shortName": string(name[:40])}
            memory = {"staticSharedMemory": 0, "dynamicSharedMemory": config.shared_memory}
            rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(
                common
                | device
                | names
                | grid
                | block
                | memory
                | {"registersPerThread": config.registers, "launchType": 1, "gridId": len(rows)}
            )
        elif category == "gpu_memcpy":
            kind = {"bytes": int(row["bytes"]), "copyKind": 1, "srcKind": 0, "dstKind": 2}
            rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append(common | device | kind)
        elif category in ("cuda_runtime", "cuda_driver"):
            call = {"eventClass": int(category == "cuda_driver"), "returnValue": 0}
            call |= {"nameId": string(f"{name}_v7000")}
            rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(common | thread | call)
        elif category == "cpu_op":
            dims = op_shape(trace.strings[row["shape"]]).dims if row["shape"] >= 0 else None
            given = {"text": name, "opId": int(row["external"]), "domainId": 0, "eventType": 59}
            given |= {"sizes": f", sizes = {dims}" if dims else ""}
            rows["NVTX_EVENTS"].append({"start": start, "end": end} | thread | given)
    rows["StringIds"] = [{"id": i, "value": text} for text, i in strings.items()]
    rows["META_DATA_EXPORT"] = [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.25.0"}]
    for table, values in rows.items():
        columns = COLUMNS[table].split()
        where = f"temp.first_{table}" if "start" in columns else table
        names = ", ".join(f'"{column}"' for column in columns)
        connection.execute(f"CREATE TABLE {where} ({names})")
        marks = ", ".join("?" for _ in columns)
        connection.executemany(
            f"INSERT INTO {where} VALUES ({marks})",
            [[row.get(column) for column in columns] for row in values],
        )


def _numbers(text: str | None) -> list[int]:
    return [int(part) for part in text.strip("[]").split(",")] if text else []
