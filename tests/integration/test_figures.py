"""Small traces whose figures once came out wrong: what each must say, and its kind in other shapes.

The files in `figures/` are made by hand. Times in tests are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analyzer.cli import main
from analyzer.ingest import Ingested, ingest
from analyzer.store.verify import verify
from analyzer.trace import native_scanner
from tests.support.tracebuilder import TraceBuilder

FIGURES = Path(__file__).with_name("figures")
US = 1000


class Loaded:
    """A loaded trace: what was said of it, and its store to ask."""

    def __init__(self, path: Path, result: Ingested) -> None:
        self.path = path
        self.result = result

    @property
    def said(self) -> dict[str, str]:
        """Message by code of each finding."""
        return {finding.code: finding.message for finding in self.result.findings}

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.path), read_only=True) as connection:
            return connection.execute(sql).fetchall()

    def whole(self, *columns: str) -> tuple[Any, ...]:
        """Totals of everything recorded; times in us."""
        (row,) = self.ask(f"SELECT {', '.join(columns)} FROM totals WHERE trace_id IS NULL")
        return tuple(
            value / US if column.endswith("_ns") and value is not None else value
            for column, value in zip(columns, row, strict=True)
        )

    def accounts(self) -> dict[str, float]:
        """The ledger of all steps, in us, accounts without time left out."""
        rows = self.ask(
            "SELECT account, sum(ns)::BIGINT FROM ledger WHERE step_id IS NOT NULL "
            "GROUP BY account HAVING sum(ns) > 0"
        )
        return {account: ns / US for account, ns in rows}


Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Ingest a file of `figures/` or a built trace; the store must verify."""

    def run(what: str | TraceBuilder, **options: Any) -> Loaded:
        path = what.write(tmp_path / "t.json") if isinstance(what, TraceBuilder) else _file(what)
        store = tmp_path / "s.duckdb"
        (result,) = ingest(path, store, jobs=1, **options)
        assert result.state == "stored", result.error
        assert verify(store) == []
        return Loaded(store, result)

    return run


def _file(name: str) -> Path:
    return FIGURES / f"{name}.json"


def command(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    """A command's exit code and what it printed on both streams."""
    capsys.readouterr()
    code = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def report(load: Loaded, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(command(capsys, "report", "latest", "--db", load.path, "--json")[1])


# -- what is unknown is no zero


def test_without_launch_calls_nothing_is_known_of_launching(load: Load, capsys) -> None:
    """A copy alone: no T_Orchestration, so no HDBI by busy time either."""
    loaded = load("copies-only-hdbi-busy")
    unknown = ("t_py_ns", "t_dispatch_ns", "ft_ns", "ct_ns", "kt_ns", "ct_paper_ns")
    unknown += ("orchestration_ns", "tklqt_ns", "hdbi", "hdbi_busy")
    assert loaded.whole(*unknown) == (None,) * len(unknown)
    assert loaded.whole("launches", "memcpys", "device_busy_ns") == (0, 1, 50)
    measured = report(loaded, capsys)["measured"]
    assert {measured[key] for key in unknown} == {None}


def test_without_device_events_nothing_is_known_of_a_device(load: Load, capsys) -> None:
    loaded = load("cpu-only-idle-known")
    unknown = ("device_active_ns", "device_busy_ns", "busy_in_window_ns", "device_idle_ns")
    assert loaded.whole(*unknown, "hdbi") == (None,) * 5
    assert set(loaded.ask("SELECT exposed_ns FROM ledger")) == {(None,)}
    value = report(loaded, capsys)
    assert value["measured"]["device_idle_ns"] is None
    assert {account["exposed_ns"] for account in value["measured"]["ledger"].values()} == {None}
    assert value["verdict"]["idle_ns"] is None


def test_a_device_that_does_not_tell_its_kernels_has_no_kernel_time(
    load: Load, trace: TraceBuilder, capsys
) -> None:
    """MTIA: device time, busy and idle are known, T_DeviceActive is not, and nowhere 0."""
    trace.add_op("aten::mm", 0, 100)
    trace.add("mtia_ccp_events", "mm", 20, 50, pid=3, tid=4, args={"device": 0, "stream": 1})
    loaded = load(trace)
    assert loaded.whole("kernels", "device_event_sum_ns", "device_idle_ns") == (0, 50, 50)
    assert loaded.whole("device_active_ns", "active_outside_steps_ns", "hdbi") == (None,) * 3
    assert report(loaded, capsys)["measured"]["device_active_ns"] is None


def test_launches_without_any_device_event_have_a_cost_and_no_balance(
    load: Load, trace: TraceBuilder
) -> None:
    for i in range(3):
        trace.add_op("aten::mm", 100 * i, 50).add_call("cudaLaunchKernel", 100 * i + 10, 5, i + 1)
    loaded = load(trace)
    assert loaded.whole("launches", "t_dispatch_ns", "t_py_ns") == (3, 30, 100)
    assert loaded.whole("device_active_ns", "tklqt_ns", "hdbi", "device_idle_ns") == (None,) * 4


def test_a_step_without_launches_in_a_trace_that_has_some_costs_nothing(
    load: Load, trace: TraceBuilder
) -> None:
    trace.add_annotation("step#0", 0, 100).add_annotation("step#1", 100, 100)
    trace.add_op("aten::mm", 10, 20).add_launch("gemm", 12, 5, 1)
    loaded = load(trace, step_annotation=["step#*"])
    rows = loaded.ask("SELECT launches, t_py_ns, tklqt_ns FROM totals WHERE step_id = 1")
    assert rows == [(0, 0, 0)]


def test_a_gate_on_what_is_unknown_is_refused(load: Load, tmp_path: Path, capsys) -> None:
    loaded = load("cpu-only-idle-known")
    (other,) = ingest(_file("copies-only-hdbi-busy"), loaded.path, jobs=1)
    assert other.state == "stored"
    names = ("cpu-only-idle-known", "copies-only-hdbi-busy")
    for metric in ("device_idle_ns", "ledger.python.exposed_ns", "orchestration_ns", "hdbi_busy"):
        code, said = command(
            capsys, "compare", *names, "--db", loaded.path, "--fail-if", f"{metric} > +5%"
        )
        assert (code, "unknown" in said) == (2, True), metric


def test_device_time_outside_the_steps_has_a_name_and_the_parts_add_up(
    load: Load, trace: TraceBuilder, capsys
) -> None:
    trace.add_annotation("step#0", 0, 100)
    trace.add_op("aten::mm", 10, 20).add_launch("gemm", 12, 5, 1)
    trace.add_kernel("orphan_gemm", 200, 30, 77).add_kernel(
        "Memcpy HtoD", 300, 7, category="gpu_memcpy"
    )
    loaded = load(trace, step_annotation=["step#*"])
    assert loaded.whole("device_active_ns", "active_outside_steps_ns") == (35, 30)
    assert loaded.whole("device_event_sum_ns", "event_sum_outside_steps_ns") == (42, 37)
    value = report(loaded, capsys)
    in_families = sum(family["device_ns"] for family in value["families"].values())
    in_steps = value["measured"]["device_event_sum_ns"]
    assert in_families == in_steps + value["totals"]["event_sum_outside_steps_ns"] == 42 * US
    text = command(capsys, "report", "latest", "--db", loaded.path)[1]
    assert "outside the steps" in text


def test_a_device_only_trace_names_all_its_time(load: Load, trace: TraceBuilder) -> None:
    trace.add_kernel("gemm", 0, 30).add_kernel("gemm", 50, 20)
    loaded = load(trace)
    assert loaded.whole("device_active_ns", "active_outside_steps_ns") == (50, 50)
    assert loaded.whole("launches", "orchestration_ns", "hdbi", "hdbi_busy") == (0,) + (None,) * 3


def test_the_report_without_a_floor_can_be_read(load: Load, capsys) -> None:
    loaded = load("report-without-floor")
    code, text = command(capsys, "report", "latest", "--db", loaded.path)
    assert code == 0
    assert max(map(len, text.splitlines())) <= 100
    assert max(line.count("█") for line in text.splitlines()) <= 24
    assert "T_DeviceActive        20 us" in text
    assert "dFT framework     4.25 ms" in text


def test_the_report_of_launches_without_device_events_can_be_read(
    load: Load, trace: TraceBuilder, capsys
) -> None:
    trace.add_op("aten::mm", 0, 9_000_000).add_call("cudaLaunchKernel", 8_000_000, 5, 1)
    code, text = command(capsys, "report", "latest", "--db", load(trace).path)
    assert code == 0
    assert max(line.count("█") for line in text.splitlines()) <= 24


# -- threads and processes


def test_waiting_for_another_thread_is_nobodys_python(load: Load) -> None:
    loaded = load("training-autograd-thread")
    figures = ("t_py_ns", "t_dispatch_ns", "kt_ns", "orchestration_ns", "launches")
    assert loaded.whole(*figures) == (266, 215, 360, 841, 60)
    assert round(loaded.whole("hdbi")[0], 2) == 0.26
    assert sum(loaded.accounts().values()) == 1000
    assert "thread 1 59%, thread 2 41%" in loaded.said["several_threads"]


def test_a_moment_of_a_step_belongs_to_the_thread_that_works(
    load: Load, trace: TraceBuilder
) -> None:
    """Thread 1 works [10, 40), thread 2 [60, 90) and, beside thread 1, [30, 50)."""
    trace.add_annotation("step#0", 0, 100)
    trace.add_op("aten::mm", 10, 30).add_launch("gemm", 20, 5, 1).add_launch("gemm", 24, 5, 2)
    trace.add_op("aten::add", 30, 20, tid=2).add_op("aten::mul", 60, 30, tid=2)
    trace.add_launch("add", 70, 5, 3, tid=2)
    loaded = load(trace, step_annotation=["step#*"])
    rows = loaded.ask(
        "SELECT tid, is_main, account, ns FROM ledger JOIN threads USING (run_id, thread_id) "
        "WHERE step_id = 0 AND ns > 0"
    )
    assert {(tid, account): ns // US for tid, _, account, ns in rows} == {
        ("1", "python"): 10 + 10,  # before its op, and the tail that nobody's op follows
        ("1", "framework"): 26,
        ("1", "launch"): 4,
        ("2", "framework"): 10 + 28,  # what thread 1 leaves of the first op, and the second
        ("2", "launch"): 2,
        ("2", "python"): 10,  # its op comes next
    }
    assert {tid for tid, is_main, _, _ in rows if is_main} == {"1"}


def test_a_thread_with_steps_of_its_own_has_no_others(load: Load, trace: TraceBuilder) -> None:
    """Two workers of one process; a third thread, without steps, launches for whichever runs."""
    trace.add_annotation("step#a", 0, 100, tid=1).add_annotation("step#b", 50, 100, tid=2)
    trace.add_launch("gemm", 60, 5, 1, tid=1).add_launch("gemm", 70, 5, 2, tid=2)
    trace.add_launch("gemm", 120, 5, 3, tid=1).add_launch("gemm", 130, 5, 4, tid=3)
    loaded = load(trace, step_annotation=["step#*"])
    rows = loaded.ask(
        "SELECT correlation_id, steps.name FROM calls LEFT JOIN steps USING (run_id, step_id)"
    )
    assert dict(rows) == {1: "step#a", 2: "step#b", 3: None, 4: "step#b"}


def test_merged_ranks_are_a_trace_each(load: Load) -> None:
    loaded = load("sglang-merged-ranks")
    assert "2 processes (TP00, TP01)" in loaded.said["merged_processes"]
    assert loaded.whole("tklqt_ns", "launches_without_device_event") == (360, 0)
    rows = loaded.ask(
        "SELECT trace_id, launches, kernels FROM totals WHERE step_id IS NOT NULL ORDER BY step_id"
    )
    assert rows == [(0, 4, 4), (1, 4, 4)]
    events = loaded.ask("SELECT sum(events) FROM traces")
    assert events == loaded.ask("SELECT sum(events) FROM event_counts") == [(26,)]


def merged(trace: TraceBuilder, *, devices: tuple[int, int], correlations: tuple[int, int]) -> None:
    """Two processes, 80 and 81, each with a step and a launch."""
    for pid, device, correlation in zip((80, 81), devices, correlations, strict=True):
        args = {"correlation": correlation}
        trace.add("user_annotation", "ProfilerStep#1", pid - 80, 100, pid=pid)
        trace.add("cpu_op", "aten::mm", 10, 30, pid=pid)
        trace.add("cuda_runtime", "cudaLaunchKernel", 20, 5, pid=pid, args=args)
        trace.add_kernel("gemm", 30 + pid - 80, 10, correlation, device=device)


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)])
def test_processes_without_a_mark_are_told_apart_by_correlation(
    load: Load, trace: TraceBuilder, devices: tuple[int, int]
) -> None:
    merged(trace, devices=devices, correlations=(5, 6))
    loaded = load(trace)
    assert "2 processes (80, 81)" in loaded.said["merged_processes"]
    rows = loaded.ask("SELECT trace_id, launches, tklqt_ns FROM totals WHERE step_id IS NOT NULL")
    assert sorted(rows) == [(0, 1, 10 * US), (1, 1, 11 * US)]


def test_processes_that_write_device_events_under_their_own_pid_are_told_apart(
    load: Load, trace: TraceBuilder
) -> None:
    merged(trace, devices=(0, 0), correlations=(5, 5))
    for event, pid in zip([e for e in trace.events if e["cat"] == "kernel"], (80, 81), strict=True):
        event["pid"] = pid
    loaded = load(trace)
    rows = loaded.ask("SELECT trace_id, tklqt_ns FROM totals WHERE step_id IS NOT NULL")
    assert sorted(rows) == [(0, 10 * US), (1, 11 * US)]


def test_calls_under_a_devices_number_are_no_process(load: Load, trace: TraceBuilder) -> None:
    trace.add_op("aten::mm", 0, 50).add_kernel("gemm", 30, 10, 1, device=17)
    trace.add("mtia_runtime", "enqueueCommand", 10, 5, pid=17, args={"correlation": 1})
    loaded = load(trace)
    assert loaded.ask("SELECT count(*) FROM traces") == [(1,)]
    assert "merged_processes" not in loaded.said


def test_processes_that_cannot_be_told_apart_are_refused(
    trace: TraceBuilder, tmp_path: Path, capsys
) -> None:
    merged(trace, devices=(0, 1), correlations=(5, 5))
    path = trace.write(tmp_path / "merged.json")
    code, said = command(capsys, "ingest", path, "--db", tmp_path / "s.duckdb")
    assert code == 2
    assert "2 processes (80, 81)" in said
    assert "Give each process's own file" in said
    assert "Traceback" not in said


# -- calls


def test_a_driver_call_in_a_runtime_call_is_one_launch(load: Load) -> None:
    loaded = load("nested-runtime-driver")
    assert loaded.whole("launches", "launches_without_device_event") == (25, 0)
    assert loaded.whole("kt_ns", "orchestration_ns") == (750, 2200)
    assert round(loaded.whole("hdbi")[0], 3) == 0.185


@pytest.mark.parametrize("owner", [1, 2], ids=["outer id", "inner id"])
def test_nested_launches_with_ids_of_their_own_are_one_launch(
    load: Load, trace: TraceBuilder, owner: int
) -> None:
    trace.add_op("aten::mm", 0, 50)
    trace.add_call("hipModuleLaunchKernel", 10, 20, 1).add_call("hipLaunchKernel", 14, 8, 2)
    trace.add_kernel("gemm", 40, 10, owner)
    loaded = load(trace)
    assert loaded.whole("launches", "tklqt_ns", "launches_without_device_event") == (1, 30, 0)
    assert loaded.accounts() == {"framework": 30, "launch": 20}


def test_nested_graph_launches_are_one_launch(load: Load, trace: TraceBuilder) -> None:
    trace.add_call("cudaGraphLaunch", 10, 20, 1).add_call("cuGraphLaunch", 12, 10, 1)
    trace.add_kernel("gemm", 40, 10, 1).add_kernel("gemm", 55, 10, 1)
    loaded = load(trace)
    assert loaded.whole("launches", "graph_launches", "kernels", "kt_ns") == (1, 1, 2, 20)


def test_a_launch_after_another_of_its_op_is_a_launch(load: Load, trace: TraceBuilder) -> None:
    trace.add_op("aten::mm", 0, 50).add_launch("a", 10, 5, 1).add_launch("b", 12, 5, 2)
    assert load(trace).whole("launches") == (2,)


def test_a_memset_that_runs_a_kernel_is_a_launch(load: Load) -> None:
    loaded = load("memset-owns-kernel")
    assert loaded.whole("launches", "kernels", "memsets") == (2, 2, 0)
    assert loaded.whole("tklqt_ns", "t_dispatch_ns") == (30, 20)
    assert loaded.accounts()["launch"] == 20


def test_a_memset_and_a_copy_with_events_of_their_own_are_no_launches(
    load: Load, trace: TraceBuilder
) -> None:
    trace.add_call("cudaMemsetAsync", 0, 10, 1).add_call("cudaMemcpyAsync", 20, 10, 2)
    trace.add_kernel("Memset (Device)", 15, 3, 1, category="gpu_memset")
    trace.add_kernel("Memcpy HtoD", 35, 3, 2, category="gpu_memcpy")
    trace.add_call("cudaLaunchKernel", 40, 5, 3).add_kernel("gemm", 50, 5, 3)
    loaded = load(trace)
    assert loaded.whole("launches", "memsets", "memcpys") == (1, 1, 1)
    assert loaded.accounts()["memory"] == 20


def test_virtual_memory_calls_allocate(load: Load) -> None:
    loaded = load("expandable-segments")
    assert loaded.accounts() == {"framework": 470, "launch": 50, "memory": 1480, "python": 160}
    assert loaded.whole("t_dispatch_ns", "launches") == (200, 1)


@pytest.mark.parametrize(
    "category", ["xpu_driver", "xpu_runtime", "musa_runtime", "musa_driver", "someone_runtime"]
)
def test_runtimes_and_drivers_of_every_vendor_are_calls(
    load: Load, trace: TraceBuilder, category: str
) -> None:
    trace.add_op("aten::mm", 0, 50)
    trace.add(category, "muLaunchKernel", 10, 5, args={"correlation": 1})
    trace.add_kernel("gemm", 30, 10, 1)
    loaded = load(trace)
    assert loaded.whole("launches", "orphan_device_events", "t_dispatch_ns") == (1, 0, 10)
    assert "unknown_calls" not in loaded.said


def test_intels_driver_calls_launch(load: Load) -> None:
    loaded = load("xpu-driver")
    assert loaded.whole("launches", "kernels", "orphan_device_events") == (22, 22, 0)
    assert loaded.whole("tklqt_ns") == (660,)


@pytest.mark.parametrize(
    ("category", "name", "correlation"),
    [("", "cudaLaunchKernel", 1), ("npu_api", "aclrtLaunchKernel", 1), ("host_api", "enqueue", 1)],
)
def test_a_launch_of_an_unknown_category_is_a_call_and_is_said(
    load: Load, trace: TraceBuilder, category: str, name: str, correlation: int
) -> None:
    trace.add_op("aten::mm", 0, 50)
    trace.add(category, name, 10, 5, args={"correlation": correlation})
    trace.add_kernel("gemm", 30, 10, 1)
    loaded = load(trace)
    assert loaded.whole("launches", "orphan_device_events") == (1, 0)
    assert f"1 {category or 'without one'}" in loaded.said["unknown_calls"]


def test_events_of_no_known_category_are_counted_and_said(load: Load, trace: TraceBuilder) -> None:
    trace.add_op("aten::mm", 0, 50).add_launch("gemm", 10, 5, 1)
    for i in range(3):
        trace.add("dequeue", "Dequeue@aclnnMatmul", 100 + i, 1)
    loaded = load(trace)
    assert loaded.said["events_not_read"].startswith("3 events")
    assert "3 dequeue" in loaded.said["events_not_read"]


@pytest.mark.parametrize("category", ["overhead", "Trace", "gpu_user_annotation", "cuda_sync"])
def test_events_that_are_known_and_in_no_figure_are_not_worth_a_word(
    load: Load, trace: TraceBuilder, category: str
) -> None:
    trace.add_op("aten::mm", 0, 50).add_launch("gemm", 10, 5, 1)
    trace.add(category, "something", 100, 1)
    assert not {"events_not_read", "unknown_calls"} & set(load(trace).said)


def test_begin_and_end_events_are_a_span(load: Load) -> None:
    """The operator from 0 to 50 us holds the launch at 10 us."""
    loaded = load("ops-as-begin-end")
    assert loaded.ask("SELECT op, start_ns, dur_ns FROM op_events") == [("aten::mm", 0, 50 * US)]
    assert loaded.whole("launches", "launches_without_op", "t_dispatch_ns") == (1, 0, 10)
    assert "begin_end_events" not in loaded.said


@pytest.mark.parametrize("pure", [False, True])
def test_begin_and_end_events_nest_on_their_thread(
    load: Load, trace: TraceBuilder, monkeypatch: pytest.MonkeyPatch, pure: bool
) -> None:
    """Ends have no name; two threads have spans at the same time, and one begin stays open."""
    if pure:
        monkeypatch.setattr(native_scanner, "library", lambda: None)
    for ph, name, tid, ts in (
        ("B", "outer", 1, 0),
        ("B", "other", 2, 5),
        ("B", "inner", 1, 10),
        ("E", "", 1, 20),
        ("E", "", 2, 25),
        ("B", "second", 1, 30),
        ("E", "", 1, 35),
        ("E", "", 1, 40),
        ("B", "open", 1, 50),
    ):
        event: dict[str, Any] = {"ph": ph, "pid": 1, "tid": tid, "ts": ts}
        trace.events.append(event | ({"name": name, "cat": "cpu_op"} if ph == "B" else {}))
    trace.add_launch("gemm", 12, 5, 1)
    loaded = load(trace)
    rows = loaded.ask("SELECT op, start_ns // 1000, dur_ns // 1000 FROM op_events")
    assert set(rows) == {
        ("outer", 0, 40),
        ("inner", 10, 10),
        ("second", 30, 5),
        ("other", 5, 20),
    }
    assert loaded.said["begin_end_events"].startswith("1 begin and end events have no partner")


def test_spans_of_no_category_are_said_to_be_in_no_figure(load: Load, trace: TraceBuilder) -> None:
    for i in range(4):
        trace.events.append({"ph": "B", "name": "compile", "pid": 1, "tid": 1, "ts": 2 * i})
        trace.events.append({"ph": "E", "name": "compile", "pid": 1, "tid": 1, "ts": 2 * i + 1})
    assert "4 without one" in load(trace).said["events_not_read"]


# -- old traces, doubled traces, captures, names


def test_ranges_among_old_operators_are_no_operators(load: Load, tmp_path: Path) -> None:
    loaded = load("old-user-range-is-operator")
    figures = ("t_py_ns", "t_dispatch_ns", "orchestration_ns", "hdbi")
    assert loaded.whole(*figures) == (1200, 250, 1750, 0.3)
    assert {key: loaded.accounts()[key] for key in ("framework", "launch")} == {
        "framework": 1000,
        "launch": 250,
    }


def test_a_range_among_old_operators_can_mark_steps(load: Load) -> None:
    loaded = load("old-user-range-is-operator", step_annotation=["## forward ##"])
    assert loaded.accounts() == {"python": 1250, "framework": 1000, "launch": 250}


@pytest.mark.parametrize(
    ("name", "is_op"),
    [
        ("aten::mm", True),
        ("AddmmBackward", True),
        ("detach", True),
        ("nccl:all_reduce", True),
        ("c10d::allreduce_", True),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", False),
        ("ProfilerStep#3", False),
        ("## backward ##", False),
        ("my model.forward", False),
    ],
)
def test_an_old_operator_has_a_name_of_one_word(
    load: Load, trace: TraceBuilder, name: str, is_op: bool
) -> None:
    trace.add("Operator", name, 0, 50)
    trace.add("Runtime", "cudaLaunchKernel", 10, 5, args={"correlation": 1})
    trace.add_kernel("gemm", 30, 10, 1, category="Kernel")
    loaded = load(trace)
    assert loaded.ask("SELECT count(*) FROM ops") == [(int(is_op),)]
    assert loaded.whole("launches", "launches_without_op") == (1, int(not is_op))


def test_old_profiler_steps_mark_steps(load: Load, trace: TraceBuilder) -> None:
    for i in range(2):
        trace.add("Operator", f"ProfilerStep#{i}", 100 * i, 90)
        trace.add("Operator", "aten::mm", 100 * i + 10, 30)
    assert load(trace).ask("SELECT name FROM steps ORDER BY step_id") == [
        ("ProfilerStep#0",),
        ("ProfilerStep#1",),
    ]


def test_events_that_stand_twice_count_once(load: Load) -> None:
    loaded = load("duplicated-events")
    assert loaded.said["duplicated_events"].startswith("9 events occur twice")
    assert loaded.whole("kernels", "device_active_ns", "launches") == (3, 150, 3)
    assert loaded.whole("launches_without_device_event") == (0,)


def test_equal_operators_without_an_id_may_be_two(load: Load, trace: TraceBuilder) -> None:
    trace.add_op("aten::to", 0, 5).add_op("aten::to", 0, 5)
    loaded = load(trace)
    assert loaded.ask("SELECT count(*) FROM ops") == [(2,)]
    assert "duplicated_events" not in loaded.said


def test_kernels_of_one_replay_on_two_streams_are_two(load: Load, trace: TraceBuilder) -> None:
    trace.add_call("cudaGraphLaunch", 0, 5, 1)
    trace.add_kernel("k", 10, 5, 1, stream=7).add_kernel("k", 10, 5, 1, stream=8)
    assert load(trace).whole("kernels") == (2,)


def test_a_capture_with_a_launch_more_lends_its_ops(load: Load) -> None:
    loaded = load("capture-one-more")
    rows = loaded.ask("SELECT kernel, op FROM links WHERE graph_index IS NOT NULL ORDER BY ALL")
    assert rows == [(k, f"aten::op_{k}") for k in ("ka", "kb", "kc")]
    assert "1 captured launch left over" in loaded.said["graph_ops"]


def captured(trace: TraceBuilder, names: str, replayed: str) -> TraceBuilder:
    """A capture of kernels, each a letter, by AMD's calls, and one replay."""
    trace.add_call("hipStreamBeginCapture", 0, 1)
    for i, name in enumerate(names):
        trace.add_op(f"op_{name}", 10 * i + 2, 8)
        trace.add_call("hipLaunchKernel", 10 * i + 4, 2, 100 + i, kernel=name)
    end = 10 * len(names) + 2
    trace.add_call("hipStreamEndCapture", end, 1).add_call("hipGraphLaunch", end + 10, 5, 1)
    for i, name in enumerate(replayed):
        trace.add_kernel(name, end + 20 + 10 * i, 5, 1)
    return trace


@pytest.mark.parametrize("replayed", ["bcde", "abde", "abcd"])
def test_the_launch_that_is_left_over_may_stand_anywhere(
    load: Load, trace: TraceBuilder, replayed: str
) -> None:
    loaded = load(captured(trace, "abcde", replayed))
    rows = loaded.ask("SELECT kernel, op FROM links ORDER BY start_ns")
    assert rows == [(name, f"op_{name}") for name in replayed]


@pytest.mark.parametrize("replayed", ["abc", "abce_", "edcb", "abxd"])
def test_a_capture_of_other_kernels_lends_nothing(
    load: Load, trace: TraceBuilder, replayed: str
) -> None:
    loaded = load(captured(trace, "abcde", replayed))
    assert loaded.ask("SELECT count(op) FROM links") == [(0,)]
    assert "graph_without_capture" in loaded.said


def test_a_step_name_with_brackets_matches_itself(load: Load) -> None:
    loaded = load("brackets-in-step-names", step_annotation=["step[DECODE bs=1]"])
    assert loaded.ask("SELECT count(*) FROM steps") == [(3,)]


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [("part[A n=*]", 2), ("part[*", 3), ("part?[0-9]", 1), ("part[XY]", 0), ("[p]art_1", 1)],
)
def test_brackets_in_a_pattern_are_a_set_or_stand_for_themselves(
    load: Load, trace: TraceBuilder, pattern: str, steps: int
) -> None:
    names = ("part[A n=1]", "part[A n=64]", "part[B n=1]", "part_1")
    for i, name in enumerate(names):
        trace.add_annotation(name, 100 * i, 90).add_op("aten::mm", 100 * i + 5, 20)
    found = load(trace, step_annotation=[pattern]).ask("SELECT name FROM steps")
    assert len([name for (name,) in found if name != "trace"]) == steps


# -- families


def test_kernels_of_serving_engines_are_in_their_families(load: Load) -> None:
    rows = load("families").ask("SELECT family, count(*) FROM kernels GROUP BY ALL ORDER BY ALL")
    assert dict(rows) == {
        "attention": 5,
        "communication": 3,
        "copy/cast": 2,
        "elementwise": 2,
        "gather/scatter/index": 2,
        "gemm": 5,
        "gemv": 1,
        "norm": 3,
        "other": 4,
        "rope": 1,
        "sampling": 1,
        "sort/topk": 1,
    }
