"""The smallest trace of an Ascend NPU that shows something, built in the test that needs it.

As `torch_npu` writes `trace_view.json`: a bare list, times as texts, processes told by their names.
Times are nanoseconds here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HOST, CANN, DEVICE, VIEW, OVERLAP = 4711, 4824064, 4824160, 4824224, 4824288
MAIN, QUEUE = 4711, 4790  # threads
EPOCH_US = 1_778_655_624_000_000


class AscendBuilder:
    """Collects events; `write` makes the file."""

    def __init__(self, queue: bool = True, texts: bool = True) -> None:
        self.queue = queue
        self.texts = texts
        self.events: list[dict[str, Any]] = []
        self._flows = 0
        self._connection = 100
        for pid, name in (
            (HOST, "Python"),
            (CANN, "CANN"),
            (DEVICE, "Ascend Hardware"),
            (VIEW, "Communication"),
            (OVERLAP, "Overlap Analysis"),
        ):
            self._name("process_name", pid, 0, name)
        self._name("thread_name", HOST, MAIN, f"Thread {MAIN}")
        self._name("thread_name", DEVICE, 2, "Stream 2")

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        self.events.append(
            {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
        )

    def _time(self, ns: int) -> str | float:
        text = f"{EPOCH_US + ns // 1000}.{ns % 1000:03d}" if self.texts else f"{ns / 1000:.3f}"
        return text if self.texts else float(text)

    def add(
        self, name: str, start: int, dur: int, pid: int, tid: int, cat: str = "", **args: Any
    ) -> AscendBuilder:
        event: dict[str, Any] = {"ph": "X", "name": name, "pid": pid, "tid": tid}
        event |= {"ts": self._time(start), "dur": dur / 1000, "args": args}
        self.events.append(event | ({"cat": cat} if cat else {}))
        return self

    def add_op(
        self, name: str, start: int, dur: int, tid: int = MAIN, **args: Any
    ) -> AscendBuilder:
        noted = {"Sequence number": -1, "Fwd thread id": 0, "Call stack": "/home/HB_SECRET/x.py"}
        return self.add(name, start, dur, HOST, tid, "cpu_op", **(noted | args))

    def add_flow(
        self, category: str, name: str, id_: Any, start: tuple[int, int, int],
        end: tuple[int, int, int],
    ) -> AscendBuilder:  # fmt: skip
        """A flow from one (process, thread, time) to another."""
        for ph, (pid, tid, time) in (("s", start), ("f", end)):
            self.events.append(
                {"ph": ph, "bp": "e", "name": name, "id": id_, "pid": pid, "tid": tid,
                 "ts": self._time(time), "cat": category}
            )  # fmt: skip
        return self

    def add_task(
        self, name: str, start: int, dur: int, task_type: str = "AI_CORE", stream: int = 2,
        **args: Any,
    ) -> AscendBuilder:  # fmt: skip
        given = {"Model Id": 4294967295, "Task Type": task_type, "Physic Stream Id": stream}
        return self.add(name, start, dur, DEVICE, stream, **(given | {"Task Id": 1} | args))

    def add_kernel(
        self, op: str, name: str, start: int, at: int, dur: int = 3_000, task_type: str = "AI_CORE"
    ) -> AscendBuilder:
        """An operator of 10,000 ns and its kernel, by way of the queue if there is one."""
        self._connection += 1
        connection, number = self._connection, len(self.events)
        self.add_op(op, start, 10_000)
        if self.queue:
            self.add("Enqueue", start + 4_000, 1_000, HOST, MAIN, "enqueue", correlation_id=number)
            self.add(
                "Dequeue@x", start + 8_000, 9_000, HOST, QUEUE, "dequeue", correlation_id=number
            )
            queue = (HOST, MAIN, start + 4_000), (HOST, QUEUE, start + 8_000)
            self.add_flow("async_task_queue", "enqueue_to_dequeue", number, *queue)
        launch, thread = (start + 9_000, QUEUE) if self.queue else (start + 5_000, MAIN)
        self.add("AscendCL@aclopExecute", launch - 500, 3_000, CANN, thread, id="x")
        self.add("Node@launch", launch, 2_000, CANN, thread, connection_id=connection)
        self.add_task(name, at, dur, task_type, connection_id=connection)
        id_ = EPOCH_US * 1000 + at
        self.add_flow("async_npu", "torch_to_npu", id_, (HOST, MAIN, start), (DEVICE, 2, at))
        host = (CANN, thread, launch)
        return self.add_flow("HostToDevice", f"HostToDevice{at}", str(at), host, (DEVICE, 2, at))

    def text(self) -> str:
        return json.dumps(self.events)

    def write(self, path: Path) -> Path:
        path.write_text(self.text(), encoding="utf-8")
        return path


def small_run(queue: bool = True, texts: bool = True) -> AscendBuilder:
    """Two steps of two kernels each and a copy; the device is busy for 14,000 ns."""
    made = AscendBuilder(queue, texts)
    for step in range(2):
        at = 200_000 * (step + 1)
        made.add_op(f"ProfilerStep#{step}", at, 100_000)
        shapes = {"Input Dims": "1,8;8,8", "Input type": "float;float"}
        made.add_kernel("aten::mm", "MatMulV2", at + 10_000, at + 40_000)
        made.add_kernel("aten::relu", "Relu", at + 30_000, at + 50_000)
        made.add_op("aten::add", at + 60_000, 1_000, **shapes)
    made.add_kernel("aten::copy_", "MEMCPY_ASYNC", 350_000, 380_000, 2_000, "MEMCPY_ASYNC")
    made.add_task("EVENT_WAIT", 385_000, 50_000, "EVENT_WAIT")
    made.add("hcom_allReduce__1", 240_000, 3_000, VIEW, 0, connection_id=101)
    made.add("Computing", 240_000, 3_000, OVERLAP, 0)
    made.events.append(
        {
            "ph": "C",
            "name": "AI Core Freq",
            "pid": 9,
            "tid": 0,
            "ts": "1.000",
            "args": {"MHz": 1650},
        }
    )
    return made
