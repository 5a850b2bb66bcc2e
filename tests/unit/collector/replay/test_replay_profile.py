"""The whole of a kernel replay on a CPU: CUDA's calls and the profiler are stood in for.

The stand-in profiler has a clock that each call moves by a known time, so every sample that the
replay reports has a value known beforehand.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from collector.errors import CollectorError  # noqa: E402
from collector.replay import kernel_replay, null_kernel  # noqa: E402  (after importorskip)
from collector.replay.op_calls import CannotReplay  # noqa: E402

API_US, TO_KERNEL_US, KERNEL_US, OP_US = 2, 9, 5, 3


class Device:
    """A clock in microseconds, and the events of a trace."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000
        self.events: list[dict[str, Any]] = []
        self.recording = False
        self.correlation = 0
        self.synchronised = 0

    def add(self, category: str, name: str, start: int, us: int, **args: Any) -> None:
        if self.recording:
            self.events.append(
                {"ph": "X", "cat": category, "name": name, "ts": start, "dur": us, "args": args}
            )

    def launch(self, api: str, kernel: str) -> None:
        start, self.correlation = self.now, self.correlation + 1
        self.now += API_US
        self.add("cuda_runtime", api, start, API_US, correlation=self.correlation)
        shape = {"grid": [1, 1, 1], "block": [1, 1, 1], "shared memory": 0}
        self.add(
            "kernel", kernel, start + TO_KERNEL_US, KERNEL_US, correlation=self.correlation, **shape
        )

    def synchronise(self) -> None:
        self.synchronised += 1
        self.now += 100

    @contextmanager
    def mark(self, label: str) -> Iterator[None]:
        start = self.now
        self.now += 1
        yield
        self.add("user_annotation", label, start, self.now - start)

    @contextmanager
    def profile(self, **_: Any) -> Iterator[Device]:
        self.recording = True
        yield self
        self.recording = False

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(json.dumps({"traceEvents": self.events}))


class Call:
    """An op call that launches `kernels` kernels, or fails as `fails` says."""

    node: dict[str, Any] | None = None
    count = 4

    def __init__(self, device: Device, op: str, kernels: int, fails: Exception | None = None):
        self.key = (op, "[[2, 3]]", '["float"]', "", "")
        self.reason: str | None = None
        self._device, self._kernels, self._fails = device, kernels, fails

    def bind(self, _: str) -> tuple[Any, list[Any], dict[str, Any]]:
        if isinstance(self._fails, CannotReplay):
            raise self._fails
        return self._run, [], {}

    def _run(self) -> None:
        if self._fails is not None:
            raise self._fails
        start = self._device.now
        self._device.now += OP_US
        for number in range(self._kernels):
            self._device.launch("cudaLaunchKernel", f"{self.key[0]}_kernel_{number}")
        self._device.add("cpu_op", self.key[0], start, self._device.now - start)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronise)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.profiler, "profile", made.profile)
    monkeypatch.setattr(torch.profiler, "record_function", made.mark)
    launchers = {
        api: lambda api=api: made.launch(api, null_kernel.NAME)
        for api in ("cuLaunchKernel", "cudaLaunchKernel")
    }
    found = null_kernel.NullKernel(launchers, {"cuLaunchKernelEx": "this driver has none"}, [])
    monkeypatch.setattr(null_kernel, "load", lambda: found)
    return made


def test_every_sample_of_a_call_is_told_by_kernel_and_part(device: Device) -> None:
    calls: list[Any] = [Call(device, "aten::one", 1), Call(device, "aten::two", 2)]

    replayed, _ = kernel_replay.replay(calls, "cuda:0", 7, None)

    one, two = replayed.ops
    assert (one.samples, one.reason, one.calls_in_trace) == (7, None, 4)
    (kernel,) = one.kernels
    assert (kernel.name, kernel.count) == ("aten::one_kernel_0", 7)
    assert kernel.dispatch_ns == [OP_US * 1000] * 7
    assert kernel.launch_ns == [TO_KERNEL_US * 1000] * 7
    assert kernel.exec_ns == [KERNEL_US * 1000] * 7
    first, second = two.kernels
    assert (first.position, second.position) == (0, 1)
    # A later launch of the same op is charged from the end of the one before.
    assert (first.dispatch_ns[0], second.dispatch_ns[0]) == (OP_US * 1000, 0)


def test_floors_have_each_definition_of_each_api_and_why_one_is_missing(device: Device) -> None:
    floors = kernel_replay.floor("cuda:0", 10)

    by = {(f.launch_api, f.definition): f.samples_ns for f in floors.floors}
    assert by["cuLaunchKernel", "api_start_to_kernel_start"] == [TO_KERNEL_US * 1000] * 10
    late = (TO_KERNEL_US - API_US) * 1000
    assert by["cudaLaunchKernel", "api_end_to_kernel_start"] == [late] * 10
    marked = (TO_KERNEL_US + 1) * 1000
    assert by["cudaLaunchKernel", "annotation_to_kernel_start"] == [marked] * 10
    assert len(by["cudaLaunchKernel", "unsynchronised_host_cost"]) == 50
    assert floors.missing == {"cuLaunchKernelEx": "this driver has none"}
    assert set(floors.definitions) == {definition for _, definition in by}


def test_each_sample_is_synchronised_alone(device: Device) -> None:
    kernel_replay.replay([Call(device, "aten::one", 1)], "cuda:0", 6, None)  # type: ignore[list-item]

    marks = [e for e in device.events if e["cat"] == "user_annotation"]
    assert len(marks) == 6 * 3  # the call and two empty kernels
    assert all(mark["dur"] >= 100 for mark in marks)


def test_a_call_that_cannot_be_made_keeps_its_reason_and_stops_no_other(device: Device) -> None:
    calls: list[Any] = [
        Call(device, "aten::no", 1, CannotReplay("the op has no schema")),
        Call(device, "aten::bad", 1, RuntimeError("size mismatch\nmore")),
        Call(device, "aten::big", 1, torch.cuda.OutOfMemoryError("no room")),
        Call(device, "aten::quiet", 0),
        Call(device, "aten::one", 1),
    ]

    replayed, _ = kernel_replay.replay(calls, "cuda:0", 5, None)

    reasons = {op.op: op.reason for op in replayed.ops}
    assert reasons == {
        "aten::no": "the op has no schema",
        "aten::bad": "the call failed: size mismatch",
        "aten::big": "its tensors do not fit beside the model",
        "aten::quiet": "the replay launched nothing",
        "aten::one": None,
    }


def test_a_broken_cuda_context_ends_the_replay_in_one_line(device: Device) -> None:
    call: Any = Call(device, "aten::worse", 1, RuntimeError("CUDA error: illegal address"))

    with pytest.raises(CollectorError, match=r"aten::worse.*broke the CUDA context") as error:
        kernel_replay.replay([call], "cuda:0", 5, None)

    assert "\n" not in str(error.value)


def test_progress_reaches_its_end(device: Device) -> None:
    seen: list[tuple[int, int]] = []

    kernel_replay.replay([], "cuda:0", 30, None, lambda done, total: seen.append((done, total)))

    assert seen[0][0] == 0
    assert seen[-1] == (12, 12)  # two APIs, six blocks of five each


class Library:
    """A CUDA library of which every function answers with a code, 0 unless told otherwise."""

    def __init__(self, codes: dict[str, int] | None = None, lacks: tuple[str, ...] = ()) -> None:
        self._codes, self._lacks = codes or {}, lacks
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in self._lacks:
            raise AttributeError(name)

        def function(*_: Any) -> int:
            self.called.append(name)
            return self._codes.get(name, 0)

        setattr(self, name, function)
        return function


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {"libcuda.so.1": Library(), "runtime": Library()}

    def opened(name: str) -> Library:
        library = found[name]
        if isinstance(library, Exception):
            raise library
        return library

    stream = type("Stream", (), {"cuda_stream": 0})
    monkeypatch.setattr(ctypes, "CDLL", opened)
    monkeypatch.setattr(null_kernel, "_loaded_runtime", lambda: "runtime")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    return found


def test_the_empty_kernel_goes_through_every_launch_api(libraries: dict[str, Any]) -> None:
    found = null_kernel.load()

    for launch in found.launchers.values():
        launch()

    assert list(found.launchers) == [
        "cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernel", "cudaLaunchKernelExC",
    ]  # fmt: skip
    called = libraries["libcuda.so.1"].called + libraries["runtime"].called
    assert [name for name in called if "Launch" in name] == list(found.launchers)
    assert not found.missing


def test_an_old_driver_or_runtime_leaves_the_apis_it_has(libraries: dict[str, Any]) -> None:
    libraries["libcuda.so.1"] = Library(lacks=("cuLaunchKernelEx",))
    libraries["runtime"] = Library(lacks=("cudaLibraryLoadData",))

    found = null_kernel.load()

    assert list(found.launchers) == ["cuLaunchKernel"]
    assert found.missing["cuLaunchKernelEx"] == "this driver has none"
    assert "12.8" in found.missing["cudaLaunchKernel"]


def test_no_launch_api_at_all_is_refused_with_the_reasons(libraries: dict[str, Any]) -> None:
    libraries["libcuda.so.1"] = OSError("libcuda.so.1: cannot open")
    libraries["runtime"] = Library({"cudaLibraryLoadData": 209})

    with pytest.raises(CollectorError, match=r"cannot open.*failed with code 209"):
        null_kernel.load()
