"""Recordings in turns: several processes on one host measure bit by bit, never two at once.

A host that changes its speed within minutes makes recordings incomparable that are made one after
the other. Those that take turns, a trace each, see the same minutes, so their medians agree however
the speed wanders. Where the cores of a host differ in speed (those of a virtual machine do: each
has its own neighbours), the same minutes are not enough: in its turn, a recording's main thread
runs on the CPU that the first seat names. Only that thread does; those of CUDA and of its profiler
keep all CPUs.

Each recording has a seat in a folder that they share: `seat-K.lock`, which it holds locked as long
as it lives, and `seat-K.json`, how far it is, which only it writes. There is no token that could be
lost: it is the turn of the one that is least far, by stage, turns taken in it, and seat (first to
last, then last to first, so that a steady drift of the host favours none). Who measures stays the
least far until it is through, and what one reads late of another is less than what that other has
done, so no two ever think that it is their turn. The operating system frees the lock of a process
however it ends; whoever has none is no longer waited for. No clock is held against that of another
process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

try:
    import fcntl
except ImportError:  # not a POSIX system: there are no turns, recording alone goes on
    fcntl = None

from collector.errors import CollectorError
from collector.progress import say
from collector.record.placement import current_cpu, on_one_cpu
from schemas.errors import HostboundError
from schemas.manifest import Partner, TurnsTaken

# In order; before the first one a recording builds its model and warms up, beside the others.
PREPARING, LATENCY, TRACES, FLOOR = range(4)

PATIENCE_S = 60.0
_POLL_S = 0.01
_LONG_S = 60.0  # a turn, kernel replay excepted, takes seconds
_DOOR = "door.lock"
_CLOSED = "closed"
NOTE = "turns: "


class Alone:
    """No turns: everything is measured when it comes."""

    is_shared = False

    def turn(self, stage: int) -> AbstractContextManager[None]:
        """Nothing to wait for."""
        return nullcontext()

    def described(self) -> tuple[TurnsTaken | None, list[str]]:
        """Nothing for the manifest."""
        return None, []

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error: object) -> None:
        return None


ALONE = Alone()


@dataclass(frozen=True)
class _Seat:
    """What a recording says of itself.

    Attributes:
        of: How many recordings it expects, itself included.
        turns: Turns that it has taken in its stage.
        is_done: It ended well, and not before its time.
        cpu: On which its main thread runs when it takes the seat; None where that is not known.
    """

    of: int
    run_id: str
    name: str
    stage: int = PREPARING
    turns: int = 0
    is_done: bool = False
    cpu: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        """How far it is."""
        return self.stage, self.turns


class Turns:
    """A recording's seat among others; use as a context manager, which takes and leaves it.

    Args:
        folder: Shared by the recordings; made if it is not there. It may be used again when all of
            them have ended.
        of: Recordings that share it, this one included.
        patience_s: How long to wait for those that have not come, from this one's first turn on.
        pause: Sleeps for so many seconds.
        clock: Seconds, of this process only.

    Raises:
        CollectorError: The folder cannot be used, has begun without this one, or is that of another
            number of recordings.
    """

    is_shared = True

    def __init__(
        self,
        folder: Path,
        of: int,
        run_id: str,
        name: str,
        patience_s: float = PATIENCE_S,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if fcntl is None:
            raise CollectorError("--turns needs file locks of POSIX, which this system has not.")
        self._folder = folder
        self._own = _Seat(of, run_id, name, cpu=current_cpu())
        self._patience_s = patience_s
        self._pause = pause
        self._clock = clock
        self._number = 0
        self._locks: dict[int, int] = {}  # file descriptors, by seat
        self._gone: set[int] = set()
        self._waiting_since: float | None = None
        self._waited_for: tuple[int, tuple[int, int]] | None = None  # whose turn it is, and which
        self._waited_for_since = 0.0
        self._notes: list[str] = []
        self._said: set[str] = set()

    def __enter__(self) -> Turns:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._door():
                self._sit_down()
        except OSError as error:
            self._release()
            raise self._unusable(error) from error
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                with suppress(HostboundError):  # what is recorded is recorded
                    self._say_how_far(replace(self._own, is_done=True))
        finally:
            self._release()

    @property
    def number(self) -> int:
        """This recording's seat, from 1 on."""
        return self._number

    @contextmanager
    def turn(self, stage: int) -> Generator[None, None, None]:
        """Wait for a turn in `stage`, and end it. No stage begins before all are through the one
        before. What runs within runs on the CPU that all of them use.
        """
        self.ask(stage)
        while not self.is_next():
            self._pause(_POLL_S)
        with on_one_cpu(self.cpu):
            yield
        self.end()

    @property
    def cpu(self) -> int | None:
        """The CPU on which all measure: the first seat's; None where threads cannot be placed, or
        this process may not use it.
        """
        first = self._own if self._number == 1 else self._seat(1)
        if self._own.cpu is None or first is None or first.cpu not in os.sched_getaffinity(0):
            return None
        return first.cpu

    def ask(self, stage: int) -> None:
        """Say that a turn in `stage` is wanted: turns of earlier stages are over for this one."""
        if stage > self._own.stage:
            self._say_how_far(replace(self._own, stage=stage, turns=0))

    def end(self) -> None:
        """Pass the turn on."""
        self._say_how_far(replace(self._own, turns=self._own.turns + 1))

    def is_next(self) -> bool:
        """Is it this one's turn? Who has ended does not count, nor in time who has not come."""
        while True:
            # First this: the seats that are read afterwards are then all there will ever be.
            is_closed = (self._folder / _CLOSED).exists()
            order = {self._number: self._own.place}
            absent: list[int] = []
            for number in self._others():
                seat = self._seat(number)
                order[number] = seat.place if seat else (PREPARING, 0)
                absent += [] if seat else [number]
            if is_closed and absent:
                self._go_on_without(absent)
                continue
            # Every second round goes from the last seat to the first.
            first = min(order, key=lambda n: (*order[n], -n if order[n][1] % 2 else n))
            if first == self._number:
                return True
            seat = self._seat(first)
            if seat is None:
                if not self._close_in_time(len(absent)):
                    return False
            elif self._has_lock(first):
                self._say_for_whom(first, seat)
                return False
            else:
                self._gone.add(first)
                after = self._seat(first) or seat
                if not after.is_done:
                    self._note(f"{after.name} ended early; going on without it")

    def described(self) -> tuple[TurnsTaken | None, list[str]]:
        """With whom turns were taken, and notes on who did not come or ended early."""
        partners: list[Partner] = []
        for number in range(1, self._own.of + 1):
            seat = None if number == self._number else self._seat(number)
            if seat is not None and seat.stage > PREPARING:
                partners.append(Partner(seat.run_id, seat.name))
        cpu, notes = self.cpu, list(self._notes)
        if partners and cpu is None:
            notes.append("not all on one CPU, and CPUs may differ in speed")
        taken = TurnsTaken(self._number, self._own.of, cpu, partners)
        return taken, [NOTE + note for note in notes]

    # -- seats

    def _others(self) -> list[int]:
        seats = range(1, self._own.of + 1)
        return [n for n in seats if n != self._number and n not in self._gone]

    def _sit_down(self) -> None:
        """Take the first free seat; in a folder where everybody has ended, begin anew."""
        found = [path for path in self._folder.glob("seat-*.json") if path.stem[5:].isdigit()]
        taken = {int(path.stem[5:]): path for path in found}
        living = [seat for n in sorted(taken) if self._has_lock(n) and (seat := self._seat(n))]
        if not living:
            for path in [*taken.values(), self._folder / _CLOSED]:
                path.unlink(missing_ok=True)
            taken = {}
        elif living[0].of != self._own.of:
            raise CollectorError(
                f"{self._folder} is in use by {living[0].name}, which expects {living[0].of} "
                f"recordings, not {self._own.of}; give all the same --turns-of."
            )
        free = [n for n in range(1, self._own.of + 1) if n not in taken]
        if not free or (self._folder / _CLOSED).exists():
            raise CollectorError(
                f"{self._folder} is in use by {', '.join(seat.name for seat in living)}, which "
                "did not wait for this recording or did not expect it; give it a --turns folder "
                "of its own, or try again when they have ended."
            )
        self._number = free[0]
        # Who looks whether it is locked holds it for a moment.
        _lock(self._descriptor(self._number), exclusive=True, wait=True)
        self._say_how_far(self._own)

    def _close_in_time(self, absent: int) -> bool:
        """Close the folder to those that have not come; False as long as there is time for them."""
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < self._patience_s:
            self._say_once(
                f"in turns: waiting for {absent} more in {self._folder}, {self._patience_s:g} s at "
                "most"
            )
            return False
        try:
            with self._door():
                (self._folder / _CLOSED).touch()
        except OSError as error:
            raise self._unusable(error) from error
        return True

    def _go_on_without(self, absent: list[int]) -> None:
        self._gone.update(absent)
        self._note(
            f"{len(absent)} of {self._own.of} recordings did not come in time; going on without"
        )

    def _seat(self, number: int) -> _Seat | None:
        """How far a recording is; None if it has not come."""
        path = self._folder / f"seat-{number}.json"
        try:
            value: dict[str, Any] = json.loads(path.read_bytes())
            return _Seat(**value)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        except (ValueError, TypeError) as error:
            raise CollectorError(
                f"{path} is not of this collector; name another folder with --turns."
            ) from error

    def _unusable(self, error: OSError) -> CollectorError:
        return CollectorError(
            f"{self._folder} cannot be shared for turns: {error.strerror}; name a folder of your "
            "own with --turns."
        )

    def _say_how_far(self, seat: _Seat) -> None:
        """Replaced, not rewritten: who reads it meanwhile reads all of the old one."""
        self._own = seat
        path = self._folder / f"seat-{self._number}.json"
        new = path.with_suffix(".new")
        try:
            new.write_text(json.dumps(asdict(seat)), encoding="utf-8")
            os.replace(new, path)
        except OSError as error:
            raise self._unusable(error) from error

    # -- locks

    @contextmanager
    def _door(self) -> Generator[None, None, None]:
        """Held by who comes, and by who gives the absent up: for a moment each."""
        descriptor = os.open(self._folder / _DOOR, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, exclusive=True, wait=True)
            yield
        finally:
            os.close(descriptor)

    def _descriptor(self, number: int) -> int:
        if number not in self._locks:
            path = self._folder / f"seat-{number}.lock"
            self._locks[number] = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        return self._locks[number]

    def _has_lock(self, number: int) -> bool:
        """Does the process of a seat live? Two may look at once, so the look is a shared lock."""
        descriptor = self._descriptor(number)
        if not _lock(descriptor, exclusive=False, wait=False):
            return True
        _unlock(descriptor)
        return False

    def _release(self) -> None:
        """Unlocked, not only closed: a child that was forked would keep the lock."""
        for descriptor in self._locks.values():
            _unlock(descriptor)
            os.close(descriptor)
        self._locks.clear()

    # -- words

    def _say_for_whom(self, number: int, seat: _Seat) -> None:
        """Say for whom this one waits: while that one gets ready, and in a turn that takes long."""
        now = self._clock()
        if self._waited_for != (number, seat.place):
            self._waited_for, self._waited_for_since = (number, seat.place), now
        if seat.stage == PREPARING:
            self._say_once(f"in turns: waiting until {seat.name} is ready")
        elif now - self._waited_for_since >= _LONG_S:
            self._say_once(
                f"in turns: it has been the turn of {seat.name} for {_LONG_S:g} s; if it is "
                "stopped or hangs, end it, and this recording goes on"
            )

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            say(text)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        say(f"in turns: {text}")


def _lock(descriptor: int, *, exclusive: bool, wait: bool) -> bool:
    assert fcntl is not None
    flags = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, flags)
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    assert fcntl is not None
    fcntl.flock(descriptor, fcntl.LOCK_UN)
