"""Device work that nobody in the trace launched, or that shares the device with others'."""

from __future__ import annotations

import numpy as np

from analyzer.attribution.events import DEVICE_KINDS
from analyzer.attribution.evidence.check import Seen, counted
from analyzer.attribution.evidence.material import Material
from analyzer.attribution.intervals import Bools

_MTIA = DEVICE_KINDS.index("mtia")


def outside_steps(m: Material) -> Seen:
    """Device time that belongs to no step.

    What was launched before the recording began, or between the steps, is shown under its name. A
    launch that is missing within the recording is a cost that nobody counted.
    """
    device = m.linked.device
    duration = device.end - device.start
    outside = (device.step < 0) & ~device.bad
    lost = _unlaunched(m) & ~_foreign(m)
    share = float(duration[outside].sum() / duration.sum()) if duration.sum() else None
    n = int(outside.sum())
    found = f"{share or 0:.1%} of the device time belongs to no step"
    note = "It stands in the balance as `outside the steps`." if n else None
    if not lost.any():
        return Seen(n, len(duration), found if n else "", share=share, note=note)
    found += (
        f": {counted(int(lost.sum()), 'device event')} within the recording have no launch call"
    )
    return Seen(
        n,
        len(duration),
        found,
        at_least=("device_time", "launches"),
        not_judged=("hdbi", "launch_time", "host_cost"),
        share=share,
        note=note,
    )


def other_processes(m: Material) -> Seen:
    """Work that others put on the device."""
    device = m.linked.device
    foreign = _foreign(m)
    n = int(foreign.sum())
    if n:
        return Seen(
            n,
            len(foreign),
            f"{counted(n, 'device event')} on streams that nothing in the trace launches to: work "
            "of another process, or of a thread that was not recorded",
            at_least=("launches",),
            not_judged=("hdbi", "device_idle", "launch_time", "host_cost"),
        )
    shared = m.finding("shared_device")
    if shared:
        return Seen(
            shared[0].count,
            len(device.start),
            f"{counted(shared[0].count, 'device event')} of other processes on a device of this id",
            at_most=("device_idle",),
            not_judged=("hdbi", "launch_time"),
            is_unknown=True,
        )
    return Seen(0, len(device.start), "")


def contexts(m: Material) -> Seen:
    """Several contexts on one device, or a slice of a device (MIG)."""
    several, total = m.linked.unread.other_contexts, len(m.linked.device.start)
    if several:
        return Seen(
            several,
            total,
            f"{several:,} of {counted(total, 'device event')} are of a second context",
            at_most=("device_time",),
            not_judged=("hdbi", "launch_time"),
        )
    slices = _mig_slices(m.linked.trace.metadata)
    found = f"the device is a slice of a GPU (MIG): {slices[0]}" if slices else ""
    return Seen(
        len(slices),
        None,
        found,
        note="Idle and busy are the slice's, not the GPU's." if slices else None,
    )


def _mig_slices(metadata: dict[str, object]) -> list[str]:
    devices = metadata.get("deviceProperties")
    names = [
        str(device.get("name", ""))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        for device in (devices if isinstance(devices, list) else [])  # pyright: ignore[reportUnknownVariableType]
        if isinstance(device, dict)
    ]
    return [name for name in names if " MIG " in f" {name} "]


def _unlaunched(m: Material) -> Bools:
    """Device events without launch that were launched within the recording.

    A correlation id counts up: one below all that the calls have is of a launch before them. So is
    an event before the first linked one on its stream, which works in order.
    """
    device, calls = m.linked.device, m.linked.calls
    orphan = (device.call < 0) & ~device.bad & (device.kind != _MTIA)
    known = calls.correlation[calls.correlation > 0]
    if not len(known) or not orphan.any():
        return np.zeros(len(orphan), bool)
    before = (device.correlation > 0) & (device.correlation < known.min())
    return orphan & ~before & (device.start >= _first_of_lane(m)[device.lane])


def _first_of_lane(m: Material) -> np.ndarray:
    """Start of the first linked event of each stream; of one without any, the first of all."""
    device = m.linked.device
    linked = np.flatnonzero((device.call >= 0) & ~device.bad)
    first = np.full(int(device.lane.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, device.lane[linked], device.start[linked])
    none = first == np.iinfo(np.int64).max
    first[none] = m.linked.calls.start.min(initial=np.iinfo(np.int64).max)
    return first


def _foreign(m: Material) -> Bools:
    """Those of them on streams that nothing in the trace launches to."""
    device = m.linked.device
    used = np.unique(device.lane[device.call >= 0])
    return _unlaunched(m) & ~np.isin(device.lane, used)
