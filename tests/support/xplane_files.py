"""The smallest profile of JAX that shows something, built in the test that needs it.

Times are nanoseconds; in the file they are picoseconds from the start of their line.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.support.protobuf import message

SECRET = "HB_SECRET"
LINE_START = 5_000
_REFERENCES = ("kernel_details", "memcpy_details", "Memset_details", "hlo_op", "tf_op")

Stat = int | str


class XplaneBuilder:
    """Collects events by plane and line; `write` makes the file."""

    def __init__(self, details: str = "regs:24 static_shared:16 dynamic_shared:32") -> None:
        self.details = f"{details} grid:4,2,1 block:64,1,1 occ_pct:50"
        self._lines: dict[str, dict[tuple[int, str], list[bytes]]] = defaultdict(dict)
        self._names: dict[str, dict[str, int]] = defaultdict(dict)
        self._stats: dict[str, dict[str, int]] = defaultdict(dict)
        self._own: dict[str, list[bytes]] = defaultdict(list)
        self._secret = False

    def add(
        self, plane: str, line: tuple[int, str], name: str, start: int, dur: int, **stats: Stat
    ) -> XplaneBuilder:
        names = self._names[plane]
        offset = (start - LINE_START) * 1000
        event = message(
            (1, names.setdefault(name, len(names) + 1)),
            (2, offset),
            (3, dur * 1000),
            *((4, self._stat(plane, key, value)) for key, value in stats.items()),
        )
        self._lines[plane].setdefault(line, []).append(event)
        return self

    def _stat(self, plane: str, name: str, value: Stat) -> bytes:
        names = self._stats[plane]
        key = names.setdefault(name, len(names) + 1)
        if isinstance(value, int):
            return message((1, key), (4, value))
        if name in _REFERENCES:
            return message((1, key), (7, names.setdefault(value, len(names) + 1)))
        return message((1, key), (5, value))

    def add_mark(
        self, name: str, start: int, dur: int, tid: int = 7, **stats: Stat
    ) -> XplaneBuilder:
        return self.add("/host:CPU", (tid, "python"), name, start, dur, **stats)

    def add_call(
        self, name: str, start: int, dur: int, correlation: int, tid: int = 7, **stats: Stat
    ) -> XplaneBuilder:
        ids = {"device_id": 0, "correlation_id": correlation}
        return self.add_mark(name, start, dur, tid, **ids, **stats)

    def add_kernel(
        self, name: str, start: int, dur: int, correlation: int, gpu: int = 0, **stats: Stat
    ) -> XplaneBuilder:
        given: dict[str, Stat] = {"correlation_id": correlation, "kernel_details": self.details}
        line = (17, "Stream #17(Kernel,MemcpyH2D)")
        return self.add(f"/device:GPU:{gpu}", line, name, start, dur, **(given | stats))

    def add_copy(self, start: int, dur: int, correlation: int, size: int) -> XplaneBuilder:
        details = f"kind_src:host kind_dst:device size:{size} dest:0 async:1"
        given: dict[str, Stat] = {"correlation_id": correlation, "memcpy_details": details}
        line = (17, "Stream #17(Kernel,MemcpyH2D)")
        return self.add("/device:GPU:0", line, "MemcpyH2D", start, dur, **given)

    def add_launch(
        self, kernel: str, start: int, correlation: int, op: str, tid: int = 7
    ) -> XplaneBuilder:
        """A call of 2,000 ns, whose kernel begins 5,000 ns after it and runs for 3,000."""
        self.add_call("cuLaunchKernelEx", start, 2_000, correlation, tid)
        return self.add_kernel(kernel, start + 5_000, 3_000, correlation, hlo_op=op)

    def add_facts(self, plane: str = "/device:GPU:0", **facts: Stat) -> XplaneBuilder:
        """What is said of a plane: the first GPU, or another."""
        self._own[plane] += [self._stat(plane, name, value) for name, value in facts.items()]
        return self

    def add_secrets(self) -> XplaneBuilder:
        """What every real profile holds and nobody else may see."""
        self._secret = True
        self._names["/host:metadata"][f"jit_{SECRET}"] = 1
        self._own["Task Environment"].append(
            self._stat("Task Environment", "profile_options", SECRET)
        )
        return self

    def data(self) -> bytes:
        planes = dict.fromkeys([*self._own, *self._lines, *self._names])
        parts: list[tuple[int, int | bytes | str]] = [(1, self._plane(name)) for name in planes]
        if self._secret:
            parts += [(3, f"Detected GPU events dropped on {SECRET}"), (4, SECRET)]
        return message(*parts)

    def _plane(self, name: str) -> bytes:
        lines = [
            (3, message((1, number), (2, text), (3, LINE_START), *((4, e) for e in events)))
            for (number, text), events in self._lines[name].items()
        ]
        return message(
            (2, name),
            *lines,
            *((4, _entry(key, text)) for text, key in self._names[name].items()),
            *((5, _entry(key, text)) for text, key in self._stats[name].items()),
            *((6, stat) for stat in self._own[name]),
        )

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data())
        return path


def _entry(key: int, text: str) -> bytes:
    return message((1, key), (2, message((1, key), (2, text))))


def small_profile(steps: int = 3) -> XplaneBuilder:
    """Steps of a function with two launches and a copy, and one replay of a graph in each."""
    made = XplaneBuilder().add_facts(gpu_device_name="NVIDIA H200", core_count=132)
    for step in range(steps):
        at, first = 10_000 + 100_000 * step, 100 + 20 * step
        made.add_mark("decode", at, 90_000, step_num=step, _r=1)
        made.add_mark("PjitFunction(model)", at + 1_000, 40_000)
        made.add_mark("$model.py:7 decode", at + 1_500, 39_000)
        made.add_mark("Handle inputs", at + 2_000, 500)
        made.add_launch("fusion_1", at + 3_000, first, "fusion.1")
        made.add_launch("gemm", at + 9_000, first + 1, "dot.2")
        made.add_call("cuMemcpyHtoDAsync_v2", at + 20_000, 3_000, first + 2)
        made.add_copy(at + 24_000, 1_000, first + 2, 4096)
        made.add_call("cuGraphLaunch (CudaGraph:5)", at + 30_000, 3_000, first + 3)
        made.add_kernel("fusion_3", at + 35_000, 2_000, first + 3, hlo_op="fusion.3")
        made.add_kernel("fusion_4", at + 38_000, 2_000, first + 3, hlo_op="fusion.4")
        made.add_mark("my label", at + 60_000, 10_000)
    return made
