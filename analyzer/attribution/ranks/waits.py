"""How long each rank waited in its collectives, and what the late rank did meanwhile.

From the start of a rank's collective to that of the last rank's it waits; the rest is transfer. The
wait is charged to the last rank: to the accounts of the thread that launched its collective until
the launch call ended, then to its device. What the last rank waited itself, in an earlier
collective, is charged to the rank that was last there. Charges add up to the wait, to the
nanosecond. Ours; see docs/measurement.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer.attribution.accounts import Owned
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.intervals import Bools, Ints
from analyzer.attribution.ranks.clocks import Alignment
from analyzer.attribution.ranks.collectives import Collectives
from analyzer.attribution.ranks.timelines import (
    ACCOUNT,
    NOT_RECORDED,
    WAIT_ACCOUNTS,
    Timeline,
    device_timeline,
    host_timeline,
)

# Accounts of a host that waits for its device.
_FOR_DEVICE = (ACCOUNT["wait"], ACCOUNT["copy_wait"])


@dataclass(frozen=True)
class Waits:
    """Of each collective; unknown is -1.

    Attributes:
        wait, transfer: In ns.
        late: Place of the rank that came last.
    """

    wait: Ints
    transfer: Ints
    late: Ints


@dataclass(frozen=True)
class Charge:
    """A part of what a rank waited for another in a step.

    Attributes:
        member, late: Places of the ranks.
        step: Of the rank that waits: place in its trace; -1 outside.
        account: One of WAIT_ACCOUNTS.
        name: What held the late rank then; None if nothing is known.
        is_before: Nothing held it, the name is of what came next.
    """

    member: int
    step: int
    late: int
    account: str
    name: str | None
    is_before: bool
    ns: int


def find_waits(found: Collectives, aligned: Alignment) -> Waits:
    """The wait of each collective that is one; see the module."""
    number = int(found.instance.max(initial=-1)) + 1
    order = np.lexsort((-found.member, aligned.start, found.instance))
    last = np.zeros(number, np.int64)
    last[found.instance[order]] = order  # the last start, of equals the lowest rank's
    last_of = last[found.instance]
    wait = aligned.start[last_of] - aligned.start
    return Waits(
        np.where(aligned.good, wait, -1),
        np.where(aligned.good, aligned.end - aligned.start - wait, -1),
        np.where(aligned.good, found.member[last_of], -1),
    )


@dataclass(frozen=True)
class _Parts:
    """Intervals of waiting: who waits in which step, for which collective of the late rank."""

    member: Ints
    step: Ints
    collective: Ints
    start: Ints
    end: Ints

    def of(self, at: Ints) -> _Parts:
        return _Parts(*(column[at] for column in _columns(self)))


class Charger:
    """Charges the waits of one set of ranks."""

    def __init__(
        self,
        linked: Sequence[LinkedTrace],
        owned: Callable[[int, int], Owned],
        found: Collectives,
        aligned: Alignment,
        waits: Waits,
    ) -> None:
        """Args:
        linked: The ranks' traces, in order of rank.
        owned: The stretches of a rank's (place) thread (ordinal).
        """
        self._linked, self._owned = linked, owned
        self._found, self._aligned, self._waits = found, aligned, waits
        self._offset = [clock.offset_ns or 0 for clock in aligned.clocks]
        self._hosts: dict[tuple[int, int], Timeline] = {}
        self._devices: dict[tuple[int, int], Timeline] = {}
        is_last = np.flatnonzero(waits.late == found.member)
        last = np.full(int(found.instance.max(initial=-1)) + 1, -1, np.int64)
        last[found.instance[is_last]] = is_last
        self._last = last[found.instance]  # of each collective, the entry of the last rank
        self._sums: Counter[tuple[int, int, int, int, int, bool]] = Counter()

    def charges(self) -> list[Charge]:
        """All charges, added up by rank, step, late rank, account and name."""
        found, start = self._found, self._aligned.start
        step = np.empty(len(found.event), np.int64)
        for member, linked in enumerate(self._linked):
            own = found.member == member
            step[own] = linked.device.step[found.event[own]]
        at = np.flatnonzero(self._waits.wait > 0)
        last = self._last[at]
        parts = _Parts(found.member[at], step[at], last, start[at], start[last])
        while len(parts.start):
            chained = [parts.of(np.empty(0, np.int64))]
            for rank in np.unique(found.member[parts.collective]).tolist():
                chained += self._charge(rank, parts)
            parts = _Parts(*map(np.concatenate, zip(*map(_columns, chained), strict=True)))
        return [self._charge_of(key, ns) for key, ns in self._sums.items()]

    def _charge(self, rank: int, parts: _Parts) -> Iterator[_Parts]:
        """Charge waits to a rank that came last; yields what that waited itself then."""
        linked = self._linked[rank]
        parts = parts.of(np.flatnonzero(self._found.member[parts.collective] == rank))
        event = self._found.event[parts.collective]
        call = linked.device.call[event]
        thread = np.where(call >= 0, np.append(linked.calls.thread, -1)[call], -1)
        launched = np.append(linked.calls.end, 0)[call] - self._offset[rank]
        launched = np.clip(launched, parts.start, parts.end)
        device = linked.device.device[event]
        for on, by in {*zip(device.tolist(), thread.tolist(), strict=True)}:
            at = np.flatnonzero((device == on) & (thread == by))
            own = parts.of(at)
            if by < 0:  # nothing tells when it was launched
                nothing = np.full(len(at), -1, np.int64)
                account = np.full(len(at), ACCOUNT[NOT_RECORDED], np.int64)
                self._add(rank, own, account, nothing, nothing >= 0)
                continue
            host, piece = _cut(replace(own, end=launched[at]), self._host(rank, by))
            timeline = self._host(rank, by)
            waits = np.isin(timeline.account[piece], _FOR_DEVICE)
            yield from self._charge_device(
                rank,
                host.of(np.flatnonzero(waits)),
                on,
                (timeline.account[piece[waits]], timeline.name[piece[waits]]),
            )
            at_work = np.flatnonzero(~waits)
            done = piece[at_work]
            what = timeline.account[done], timeline.name[done]
            self._add(rank, host.of(at_work), *what, timeline.before[done])
            yield from self._charge_device(rank, replace(own, start=launched[at]), on, None)

    def _charge_device(
        self, rank: int, parts: _Parts, device: int, host: tuple[Ints, Ints] | None
    ) -> Iterator[_Parts]:
        """Charge what a rank's device did, or its host's waits for that.

        Args:
            host: Account and name of each wait.
        """
        timeline = self._device(rank, device)
        interval, piece, start, end = timeline.spread(parts.start, parts.end)
        parts = replace(parts.of(interval), start=start, end=end)
        inner = timeline.collective[piece]
        # Earlier ones only, so that every chain ends.
        start = self._aligned.start
        last = self._last[inner]
        chained = (inner >= 0) & (start[last] < start[parts.collective])
        yield replace(parts.of(np.flatnonzero(chained)), collective=last[chained])
        rest = np.flatnonzero(~chained)
        account, name = timeline.account[piece[rest]], timeline.name[piece[rest]]
        if host is not None:
            account, name = (column[interval[rest]] for column in host)
        self._add(rank, parts.of(rest), account, name, np.zeros(len(rest), bool))

    def _add(self, late: int, parts: _Parts, account: Ints, name: Ints, before: Bools) -> None:
        steps, names = int(parts.step.max(initial=-1)) + 2, int(name.max(initial=-1)) + 2
        key = (parts.member * steps + parts.step + 1) * len(WAIT_ACCOUNTS) + account
        keys, which = np.unique((key * names + name + 1) * 2 + before, return_inverse=True)
        sums = np.zeros(len(keys), np.int64)
        np.add.at(sums, which.reshape(-1), parts.end - parts.start)
        for whole, ns in zip(keys.tolist(), sums.tolist(), strict=True):
            rest, is_before = divmod(whole, 2)
            rest, name_id = divmod(rest, names)
            rest, account_id = divmod(rest, len(WAIT_ACCOUNTS))
            member, step = divmod(rest, steps)
            self._sums[member, step - 1, late, account_id, name_id - 1, bool(is_before)] += ns

    def _charge_of(self, key: tuple[int, int, int, int, int, bool], ns: int) -> Charge:
        member, step, late, account, name, is_before = key
        strings = self._linked[late].trace.strings
        held = strings[name] if name >= 0 else None
        return Charge(member, step, late, WAIT_ACCOUNTS[account], held, is_before, ns)

    def _host(self, rank: int, thread: int) -> Timeline:
        if (rank, thread) not in self._hosts:
            self._hosts[rank, thread] = host_timeline(
                self._linked[rank], thread, self._owned(rank, thread), self._offset[rank]
            )
        return self._hosts[rank, thread]

    def _device(self, rank: int, device: int) -> Timeline:
        if (rank, device) not in self._devices:
            own = np.flatnonzero((self._found.member == rank) & (self._waits.wait > 0))
            waits = (own, self._found.event[own], self._waits.wait[own])
            self._devices[rank, device] = device_timeline(
                self._linked[rank], device, waits, self._offset[rank]
            )
        return self._devices[rank, device]


def _columns(parts: _Parts) -> tuple[Ints, ...]:
    return parts.member, parts.step, parts.collective, parts.start, parts.end


def _cut(parts: _Parts, timeline: Timeline) -> tuple[_Parts, Ints]:
    """The parts cut at the pieces of a timeline, and the piece of each."""
    interval, piece, start, end = timeline.spread(parts.start, parts.end)
    return replace(parts.of(interval), start=start, end=end), piece
