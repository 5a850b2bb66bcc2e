"""Turns of several recordings: in their order, never two at once, nobody waits for the dead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.errors import CollectorError
from collector.record.turns import FLOOR, LATENCY, TRACES, Turns

ROOT = Path(__file__).parents[4]


class Clock:
    """Seconds of one process; its pauses are over at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses = 0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1


@pytest.fixture
def come(tmp_path: Path) -> Generator[Callable[..., Turns], None, None]:
    """Make and enter a seat in one folder; those that are left over leave in the end."""
    with ExitStack() as stack:

        def made(name: str, of: int = 2, patience_s: float = 60.0, clock: Clock | None = None):
            clock = clock or Clock()
            seat = Turns(tmp_path / "t", of, f"id of {name}", name, patience_s, clock.pause, clock)
            return stack.enter_context(seat)

        yield made


def die(seat: Turns) -> None:
    """What an error, Ctrl-C or a signal does: the lock is free, nothing else is said."""
    seat.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def take(seat: Turns, stage: int) -> None:
    seat.ask(stage)
    assert seat.is_next()
    seat.end()


def test_two_alternate_and_every_second_round_goes_the_other_way(come) -> None:
    a, b = come("a"), come("b")
    order: list[str] = []
    a.ask(TRACES)
    b.ask(TRACES)
    for _ in range(8):
        (seat,) = [seat for seat in (a, b) if seat.is_next()]
        order.append("a" if seat is a else "b")
        seat.end()

    assert order == ["a", "b", "b", "a"] * 2


def test_three_go_forth_and_back(come) -> None:
    seats = {name: come(name, of=3) for name in "abc"}
    for seat in seats.values():
        seat.ask(LATENCY)
    order = ""
    for _ in range(9):
        ((name, seat),) = [(name, seat) for name, seat in seats.items() if seat.is_next()]
        order += name
        seat.end()

    assert order == "abc" + "cba" + "abc"


def test_nobody_measures_before_all_are_ready(come, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = come("a"), come("b")

    a.ask(LATENCY)

    assert not a.is_next()
    assert not a.is_next()
    assert capsys.readouterr().err == "in turns: waiting until b is ready\n"
    b.ask(LATENCY)
    assert a.is_next()


def test_a_stage_begins_when_all_are_through_the_one_before(come) -> None:
    a, b = come("a"), come("b")
    a.ask(LATENCY)
    b.ask(LATENCY)
    take(a, LATENCY)
    a.ask(TRACES)
    take(b, LATENCY)
    assert not a.is_next()
    take(b, LATENCY)
    b.ask(TRACES)
    take(a, TRACES)
    take(b, TRACES)


@pytest.mark.parametrize("holds_the_turn", [True, False])
def test_a_partner_that_dies_is_not_waited_for(
    come, capsys: pytest.CaptureFixture[str], holds_the_turn: bool
) -> None:
    a, b = come("a"), come("b")
    b.ask(TRACES)
    take(a, TRACES)
    if not holds_the_turn:
        take(b, TRACES)

    die(b)

    for _ in range(3):
        take(a, TRACES)
    taken, notes = a.described()
    assert notes == ["turns: b ended early; going on without it"]
    assert [partner.name for partner in taken.partners] == ["b"]
    assert capsys.readouterr().err == "in turns: b ended early; going on without it\n"


def test_a_partner_that_holds_its_turn_for_long_is_named_once(
    come, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may replay kernels, or was stopped with Ctrl-Z: it lives, so it is waited for."""
    clock = Clock()
    a, b = come("a", clock=clock), come("b")
    b.ask(TRACES)
    take(a, TRACES)
    assert not a.is_next()
    for seconds in (59.0, 1.0, 100.0):
        said = capsys.readouterr().err
        assert said == ""
        clock.now += seconds
        assert not a.is_next()
        if seconds == 1.0:
            assert capsys.readouterr().err == (
                "in turns: it has been the turn of b for 60 s; if it is stopped or hangs, end it, "
                "and this recording goes on\n"
            )
    take(b, TRACES)
    assert a.described()[1] == []


def test_many_short_turns_of_others_are_no_long_one(
    come, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    a, *others = come("a", of=4, clock=clock), *(come(name, of=4) for name in "bcd")
    for seat in others:
        seat.ask(TRACES)
    take(a, TRACES)
    for seat in others:
        assert not a.is_next()
        clock.now += 59.0
        assert not a.is_next()
        take(seat, TRACES)

    assert capsys.readouterr().err == ""


def test_a_partner_that_is_through_is_not_waited_for_and_no_cause_for_a_note(come) -> None:
    a, b = come("a"), come("b")
    b.ask(TRACES)
    take(a, TRACES)
    take(b, TRACES)

    b.__exit__(None, None, None)

    take(a, TRACES)
    take(a, FLOOR)
    taken, notes = a.described()
    assert (taken.seat, taken.of, notes) == (1, 2, [])
    assert [(partner.run_id, partner.name) for partner in taken.partners] == [("id of b", "b")]


def test_one_that_never_comes_is_given_up_in_time_with_one_line(
    come, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clock = Clock()
    a = come("a", patience_s=60.0, clock=clock)

    for _ in range(2):
        with a.turn(LATENCY):
            assert 60 <= clock.now < 61

    assert capsys.readouterr().err.splitlines() == [
        f"in turns: waiting for 1 more in {tmp_path / 't'}, 60 s at most",
        "in turns: 1 of 2 recordings did not come in time; going on without",
    ]
    taken, notes = a.described()
    assert taken.partners == []
    assert notes == ["turns: 1 of 2 recordings did not come in time; going on without"]


def test_who_was_given_up_by_one_is_given_up_by_all(come) -> None:
    clock = Clock()
    a, b = come("a", of=3, clock=clock, patience_s=5), come("b", of=3, patience_s=5)
    a.ask(LATENCY)
    b.ask(LATENCY)
    assert not a.is_next()
    clock.now = 5.0

    assert a.is_next()
    a.end()
    assert b.is_next()
    assert b.described()[1] == a.described()[1] != []


def test_one_that_comes_late_is_refused(come) -> None:
    a = come("a", patience_s=0)
    take(a, LATENCY)

    with pytest.raises(CollectorError, match="is in use by a, which did not wait"):
        come("b")


def test_a_third_of_two_is_refused_and_the_two_go_on(come) -> None:
    a, b = come("a"), come("b")

    with pytest.raises(CollectorError, match="is in use by a, b") as refused:
        come("c")

    assert "\n" not in str(refused.value)
    b.ask(LATENCY)
    take(a, LATENCY)
    take(b, LATENCY)


def test_a_seat_is_not_taken_again_while_another_one_lives(come) -> None:
    come("a")
    die(come("b"))

    with pytest.raises(CollectorError, match="is in use by a"):
        come("b")


def test_different_numbers_are_refused(come) -> None:
    come("a", of=3)

    with pytest.raises(CollectorError, match="expects 3 recordings, not 2"):
        come("b", of=2)


def test_a_folder_in_which_all_have_ended_may_be_used_again(come) -> None:
    """Also by fewer, also after a latecomer was given up."""
    for name in ("a", "b", "c"):
        die(come(name, of=3))
    late = come("d", patience_s=0)
    take(late, LATENCY)
    late.__exit__(None, None, None)

    a, b = come("a"), come("b")

    b.ask(LATENCY)
    take(a, LATENCY)
    take(b, LATENCY)
    assert (a.number, b.number) == (1, 2)
    assert a.described()[1] == []


def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "t"):
        with pytest.raises(CollectorError, match="cannot be shared for turns"):
            Turns(folder, 2, "i", "n").__enter__()


def test_files_of_another_program_in_the_folder_are_no_traceback(come, tmp_path: Path) -> None:
    a = come("a")
    (tmp_path / "t" / "seat-2.json").write_text("{}")
    a.ask(LATENCY)

    with pytest.raises(CollectorError, match=r"seat-2\.json is not of this collector"):
        a.is_next()


def test_a_folder_that_vanishes_meanwhile_is_no_traceback(come, tmp_path: Path) -> None:
    a = come("a")
    for path in (tmp_path / "t").iterdir():
        path.unlink()
    (tmp_path / "t").rmdir()

    with pytest.raises(CollectorError, match="cannot be shared for turns: No such file"):
        a.ask(LATENCY)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_happens_in_whichever_order_one_measures_at_a_time_and_all_get_through(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two to four recordings with turns of their own come, ask, measure and die at random."""
    folder = tmp_path_factory.mktemp("t")
    of = data.draw(st.integers(2, 4))
    plans = [
        [stage for stage in (LATENCY, TRACES, FLOOR) for _ in range(data.draw(st.integers(0, 3)))]
        for _ in range(of)
    ]
    comes = data.draw(st.lists(st.booleans(), min_size=of, max_size=of))
    clocks = [Clock() for _ in range(of)]
    seats: dict[int, Turns] = {}
    out: set[int] = {n for n in range(of) if not comes[n]}
    done = [0] * of
    measuring: int | None = None

    def act(n: int) -> None:
        nonlocal measuring
        if n not in seats:
            seats[n] = Turns(folder, of, str(n), str(n), 1e3, clocks[n].pause, clocks[n])
            try:
                seats[n].__enter__()
            except CollectorError:  # all others have ended, or did not wait
                out.add(n)
            return
        if done[n] == len(plans[n]):
            seats[n].__exit__(None, None, None)
            out.add(n)
        elif measuring == n:
            seats[n].end()
            measuring = None
            done[n] += 1
        else:
            stage = plans[n][done[n]]
            seats[n].ask(stage)
            if seats[n].is_next():
                assert measuring is None
                living = [m for m in seats if m not in out and m != n and done[m] < len(plans[m])]
                for m in living:  # nobody is behind by a stage, or by more than one turn
                    assert plans[m][done[m]] >= stage
                    taken = [plans[k][: done[k]].count(stage) for k in (n, m)]
                    assert plans[m][done[m]] > stage or 0 <= taken[1] - taken[0] <= 1
                measuring = n
            elif len(seats) < of:
                clocks[n].now += 0.1

    try:
        for _ in range(data.draw(st.integers(0, 60))):
            alive = [n for n in range(of) if n not in out]
            if not alive:
                break
            n = data.draw(st.sampled_from(alive))
            if n in seats and data.draw(st.integers(0, 30)) == 0:
                die(seats[n])
                out.add(n)
                measuring = None if measuring == n else measuring
            else:
                act(n)
        for _ in range(400):  # everybody left acts in turn: all get through
            for n in range(of):
                if n not in out:
                    clocks[n].now += 10
                    act(n)
        assert out == set(range(of))
    finally:
        for seat in seats.values():
            die(seat)


# -- CPUs


@pytest.fixture
def cpus() -> Generator[set[int], None, None]:
    """Those of this thread, which are given back to it."""
    allowed = os.sched_getaffinity(0)
    yield allowed
    os.sched_setaffinity(0, allowed)


def test_all_measure_on_the_first_seats_cpu_and_wait_on_any(come, cpus: set[int]) -> None:
    last = max(cpus)
    os.sched_setaffinity(0, {last})
    a = come("a")
    os.sched_setaffinity(0, {min(cpus)})
    b = come("b")
    os.sched_setaffinity(0, cpus)
    b.ask(LATENCY)

    for seat in (a, b):
        with seat.turn(LATENCY):
            assert os.sched_getaffinity(0) == {last}
        assert os.sched_getaffinity(0) == cpus
        assert seat.described()[0].cpu == last


def test_threads_that_are_made_in_a_turn_are_not_left_on_its_cpu(come, cpus: set[int]) -> None:
    a = come("a", patience_s=0)
    ended = threading.Event()
    with a.turn(TRACES):
        worker = threading.Thread(target=ended.wait)
        worker.start()
        assert worker.native_id is not None
        assert os.sched_getaffinity(worker.native_id) == {a.cpu}
    found = os.sched_getaffinity(worker.native_id)
    ended.set()
    worker.join()

    assert found == cpus


def test_an_error_in_a_turn_gives_the_cpus_back(come, cpus: set[int]) -> None:
    a = come("a", patience_s=0)

    with pytest.raises(ZeroDivisionError), a.turn(TRACES):
        raise ZeroDivisionError

    assert os.sched_getaffinity(0) == cpus


def test_who_may_not_use_the_first_seats_cpu_says_so(come, cpus: set[int]) -> None:
    if len(cpus) < 2:
        pytest.skip("one CPU")
    os.sched_setaffinity(0, {max(cpus)})
    a = come("a")
    os.sched_setaffinity(0, cpus - {max(cpus)})
    b = come("b")
    b.ask(LATENCY)
    take(a, LATENCY)

    with b.turn(LATENCY):
        assert os.sched_getaffinity(0) == cpus - {max(cpus)}

    taken, notes = b.described()
    assert taken.cpu is None
    assert notes == ["turns: not all on one CPU, and CPUs may differ in speed"]


# -- processes

WAITER = """
import os, signal, sys, time
from pathlib import Path
from collector.record.turns import TRACES, Turns
polls = 0
def pause(seconds):
    global polls
    polls += 1
    if polls == 1:
        began.append((time.monotonic(), time.process_time()))
    if polls == 60:
        wall, cpu = (b - a for a, b in zip(began[0], (time.monotonic(), time.process_time())))
        print(cpu / wall, flush=True)
        {then}
    time.sleep(seconds)
began = []
with Turns(Path(sys.argv[1]), 2, "id", "child", 60.0, pause) as seat:
    with seat.turn(TRACES):
        print("its turn", flush=True)
        {within}
"""


def start(folder: Path, then: str = "pass", within: str = "pass") -> subprocess.Popen[str]:
    code = WAITER.format(then=then, within=within)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_waiting_takes_hardly_any_cpu(come, tmp_path: Path) -> None:
    a = come("a")
    with start(tmp_path / "t", then="os._exit(0)") as child:
        assert child.stdout is not None
        share = float(child.stdout.readline())

    assert a.number == 1
    assert share < 0.2


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_killed_in_its_turn_blocks_nobody(
    come, tmp_path: Path, signal_number: int
) -> None:
    a = come("a")
    with start(tmp_path / "t", within="signal.pause()") as child:
        assert child.stdout is not None
        a.ask(TRACES)
        while not a.is_next():
            os.sched_yield()
        a.end()
        assert child.stdout.readline() == "its turn\n"
        assert not a.is_next()
        child.send_signal(signal_number)
        child.wait()

        take(a, TRACES)

    assert a.described()[1] == ["turns: child ended early; going on without it"]
    assert json.loads((tmp_path / "t" / "seat-2.json").read_bytes())["is_done"] is False
