"""The smallest Perfetto trace of PyTorch that shows something, built in the test that needs it.

Packets stand in the order in which PyTorch writes them: tracks, one packet of texts, then for each
group of events all begins and all ends, then the work of the GPU. Times are nanoseconds.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.protobuf import message

SECRET = "HB_SECRET"
PID = 4711
# The three dialects: all are slices; work of the GPU as render stages; slices with categories.
DIALECTS = ("slices", "stages", "categories")
_STAGES = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3}
_FIRST_LANE = 100


def fixed64(number: int, value: int) -> bytes:
    """A field of eight bytes."""
    key = message((number, 0))[:-1]
    return bytes([key[0] | 1, *key[1:]]) + struct.pack("<Q", value & (1 << 64) - 1)


def annotation(name: str | None, value: Any) -> bytes:
    """A `DebugAnnotation`."""
    head = message((10, name)) if name is not None else b""
    if isinstance(value, bool):
        return head + message((2, int(value)))
    if isinstance(value, int):
        return head + message((4, value))
    if isinstance(value, float):
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        return head + fixed64(5, bits)
    if isinstance(value, str):
        return head + message((6, value))
    return head + b"".join(message((12, annotation(None, item))) for item in value)


@dataclass
class Slice:
    track: int
    name: str
    start: int
    end: int
    category: str
    args: dict[str, Any] = field(default_factory=dict[str, Any])


class PftraceBuilder:
    """Collects events; `write` makes the file in one of the dialects."""

    def __init__(self, dialect: str = "categories") -> None:
        self.dialect = dialect
        self.groups: dict[str, list[Slice]] = {}
        self.stages: list[tuple[str, str, int, int, dict[str, Any]]] = []
        self.counters = 0
        self._tracks: dict[tuple[int, int], int] = {}
        self._process_tracks: dict[int, int] = {}

    def add_slice(
        self, category: str, name: str, start: int, dur: int, tid: int = 1, pid: int = PID,
        **args: Any,
    ) -> PftraceBuilder:  # fmt: skip
        self._process_tracks.setdefault(pid, 1_000 + pid)
        track = self._tracks.setdefault((pid, tid), len(self._tracks) + 1)
        group = "cpu" if category in ("cpu_op", "user_annotation", "python_function") else category
        made = Slice(track, name, start, start + dur, category, args)
        self.groups.setdefault(group, []).append(made)
        return self

    def add_op(self, name: str, start: int, dur: int, tid: int = 1, **args: Any) -> PftraceBuilder:
        noted = {"External id": start, "Record function id": 0, "Ev Idx": 1} | args
        return self.add_slice("cpu_op", name, start, dur, tid, **noted)

    def add_call(
        self, name: str, start: int, dur: int, correlation: int, tid: int = 1
    ) -> PftraceBuilder:
        is_driver = name.startswith("cu") and name[2:3].isupper()
        category = "cuda_driver" if is_driver else "cuda_runtime"
        return self.add_slice(category, name, start, dur, tid, cbid=211, correlation=correlation)

    def add_kernel(
        self, name: str, start: int, dur: int, correlation: int, stream: int = 7, device: int = 0,
        category: str = "kernel", **args: Any,
    ) -> PftraceBuilder:  # fmt: skip
        given: dict[str, Any] = {"device": device, "stream": stream, "correlation": correlation}
        if category == "kernel":
            given |= {"grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 32}
        elif category == "gpu_memcpy":
            given |= {"bytes": 64, "copy kind": "HtoD"}
        else:
            given |= {"bytes": 64, "memory kind": "device"}
        given |= args
        if self.dialect == "slices":
            return self.add_slice(category, name, start, dur, stream, device, **given)
        self.stages.append((category, name, start, dur, given))
        return self

    def add_launch(self, kernel: str, start: int, correlation: int, **args: Any) -> PftraceBuilder:
        """A call of 2,000 ns, whose kernel begins 5,000 ns after it and runs for 3,000."""
        self.add_call("cudaLaunchKernel", start, 2_000, correlation)
        return self.add_kernel(kernel, start + 5_000, 3_000, correlation, **args)

    def add_counters(self, number: int) -> PftraceBuilder:
        self.counters += number
        return self

    def data(self) -> bytes:
        """The bytes of the file, not compressed."""
        slices = [one for group in self.groups.values() for one in group]
        names = _ordinals([one.name for one in slices] + [name for _, name, *_ in self.stages])
        categories = _ordinals([one.category for one in slices])
        made = [self._clock()] if self.dialect == "categories" else []
        made += self._descriptors()
        made.append(self._texts(names, categories))
        for group in self.groups.values():
            made += [self._begin(one, names, categories) for one in group]
            made += [self._end(one) for one in group]
        lanes = {lane: _FIRST_LANE + i for i, lane in enumerate(self._lanes())}
        made += [self._stage(i, one, names, lanes) for i, one in enumerate(self.stages)]
        made += [message((8, i), (10, 1), (13, 2), (52, b"")) for i in range(self.counters)]
        return b"".join(message((1, packet)) for packet in made)

    def write(self, path: Path, compressed: bool = False) -> Path:
        path.write_bytes(gzip.compress(self.data(), 1, mtime=0) if compressed else self.data())
        return path

    def _clock(self) -> bytes:
        clocks = [(1, message((1, clock), (2, 1_000))) for clock in (6, 1)]
        return message((8, 1_000), (10, 1), (6, message(*clocks)))

    def _descriptors(self) -> list[bytes]:
        made: list[bytes] = []
        for pid, uuid in self._process_tracks.items():
            process = message((1, pid), (2, f"python --key={SECRET}"), (6, f"{SECRET} python"))
            made.append(message((60, message((1, uuid), (3, process)))))
        for (pid, tid), uuid in self._tracks.items():
            thread = message((1, pid), (2, tid), (5, f"{SECRET} thread"))
            parent = self._process_tracks[pid]
            made.append(message((60, message((1, uuid), (5, parent), (4, thread)))))
        return made

    def _texts(self, names: dict[str, int], categories: dict[str, int]) -> bytes:
        entries: list[tuple[int, bytes]] = []
        entries += [(2, message((1, iid), (2, name))) for name, iid in names.items()]
        if self.dialect == "categories":
            entries += [(1, message((1, iid), (2, text))) for text, iid in categories.items()]
        if self.dialect != "slices":
            stages = {1: ("Kernel", 2), 2: ("Memcpy", 0), 3: ("Memset", 0)}
            entries += [
                (24, message((1, iid), (2, text), (4, kind)))
                for iid, (text, kind) in stages.items()
            ]
            entries += [
                (24, message((1, _FIRST_LANE + i), (2, f"[{lane:03d}] stream {lane}")))
                for i, lane in enumerate(self._lanes())
            ]
            entries.append((1001, message((1, 1), (2, "registers_per_thread"))))
        return message((10, 1), (13, 1), (12, message(*entries)))

    def _lanes(self) -> Sequence[int]:
        return sorted({args["stream"] for *_, args in self.stages})

    def _begin(self, one: Slice, names: dict[str, int], categories: dict[str, int]) -> bytes:
        event = message((9, 1), (11, one.track), (10, names[one.name]))
        if self.dialect == "categories":
            event += message((3, categories[one.category]))
        secret = {"user": SECRET, "Process Group Description": SECRET}
        noted = [(4, annotation(key, value)) for key, value in (one.args | secret).items()]
        return message((8, one.start), (10, 1), (13, 2), (11, event + message(*noted)))

    def _end(self, one: Slice) -> bytes:
        return message((8, one.end), (10, 1), (11, message((9, 2), (11, one.track))))

    def _stage(
        self,
        i: int,
        stage: tuple[str, str, int, int, dict[str, Any]],
        names: dict[str, int],
        lanes: dict[int, int],
    ) -> bytes:
        category, name, start, dur, args = stage
        lane = lanes[args["stream"]]
        event = message((1, i + 1), (2, dur), (11, args["device"]), (13, lane))
        event += message((14, _STAGES[category]), (5, 1))
        if category == "kernel":
            event += message((20, names[name]), (21, self._launch(args)))
        own = ("device", "stream", "grid", "block", "registers per thread", "waits")
        extra = {key: value for key, value in args.items() if key not in own} | {
            "device id": args["device"],
            "stream id": args.get("original_stream", args["stream"]),
            "correlation": args["correlation"],
            "bytes": args.get("bytes"),
            "process_name": SECRET,
        }
        event += message(
            *((6, message((1, key), (2, str(v)))) for key, v in extra.items() if v is not None)
        )
        event += message(*((18, wait) for wait in args.get("waits", ())))
        return message((8, start), (10, 1), (13, 2), (53, event))

    def _launch(self, args: dict[str, Any]) -> bytes:
        sides = [
            (number, message(*enumerate(args[key], 1)))
            for number, key in ((1, "grid"), (2, "block"))
        ]
        registers = message((1, 1), (4, args["registers per thread"]))
        return message(*sides, (3, registers))


def _ordinals(texts: Sequence[str]) -> dict[str, int]:
    return {text: i for i, text in enumerate(dict.fromkeys(texts), 1)}


def small_run(dialect: str = "categories") -> PftraceBuilder:
    """Two steps of three operators and three launches each, then a copy and a memset without call.

    In all 6 operators, 7 calls, 6 kernels, a copy, a memset; the GPU is busy for 26,000 ns.
    """
    made = PftraceBuilder(dialect)
    for step in range(2):
        at = 100_000 * (step + 1)
        made.add_slice("user_annotation", f"ProfilerStep#{step}", at, 60_000, **{"External id": at})
        made.add_op(
            "aten::linear", at + 1_000, 20_000, **{"Input Dims": [[1, 8], []], "Input type": ["f"]}
        )
        made.add_op("aten::addmm", at + 2_000, 18_000)
        made.add_launch("gemm", at + 3_000, 10 * step + 1)
        made.add_op("aten::relu", at + 30_000, 9_000)
        made.add_launch("relu", at + 31_000, 10 * step + 2)
        made.add_launch("touching", at + 34_000, 10 * step + 3)
    made.add_call("cudaMemcpyAsync", 180_000, 1_000, 50)
    made.add_kernel("Memcpy", 190_000, 4_000, 50, category="gpu_memcpy")
    made.add_kernel("Memset", 195_000, 4_000, 51, stream=9, category="gpu_memset")
    return made
