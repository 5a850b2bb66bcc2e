"""Kernel replay: each distinct op call alone, many times, and the empty kernel among them.

One process, one Kineto profile, blocks of samples in random order, each sample synchronised, so
that replays and launch floor see the same host, clocks and profiler. A block is one call that is
not sampled, then BLOCK samples: among thousands of others a single call finds its code cold, and a
rare kernel, the empty one first of all, would look slower than a frequent one. Source: TaxBreak
(arXiv:2603.12465); the interleaving is ours. Times are integer nanoseconds.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from collector.errors import CollectorError
from collector.replay import kineto_samples, null_kernel
from collector.replay.op_calls import CannotReplay, OpCall
from schemas.measurements import (
    KernelReplay,
    LaunchFloor,
    LaunchFloors,
    ReplayedKernel,
    ReplayedOp,
)

_KernelKey = tuple[int, str, str, str]  # position, name, grid, block

_PREFIX = "hostbound.sample."
WARMUP = 3
BLOCK = 5
FEWEST_SAMPLES = BLOCK
# A synchronised sample costs about this under the profiler, with its share of the unsampled calls
# and of reading the trace.
_SECONDS_A_SAMPLE = 300e-6


@dataclass
class _BoundCall:
    """One call with its arguments: `run` makes it."""

    run: Callable[[], Any]
    call: OpCall


@dataclass
class _Samples:
    """Samples of one kernel of one op call."""

    launch: kineto_samples.Launch
    dispatch_ns: list[int] = field(default_factory=list[int])
    launch_ns: list[int] = field(default_factory=list[int])
    exec_ns: list[int] = field(default_factory=list[int])


def replay(
    calls: list[OpCall],
    device: str,
    samples: int,
    budget_s: float | None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[KernelReplay, LaunchFloors]:
    """Replay the calls, and measure the floor among them.

    Args:
        samples: Samples of each call; fewer if `budget_s` would not hold them.
        tick: Called with blocks done and in all.

    Raises:
        CollectorError: The device has no CUDA, so nothing can be launched.
    """
    if not device.startswith("cuda") or not torch.cuda.is_available():
        raise CollectorError(
            "kernel replay needs a CUDA device; record on the CPU with --replay off."
        )
    with torch.inference_mode():
        bound = [_bind(call, device) for call in calls]
        ready = [one for one in bound if one is not None]
        null = null_kernel.load()
        count = _affordable(samples, len(ready) + len(null.launchers), budget_s)
        order = _order(len(ready), count, list(null.launchers), max(count, samples))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "replay.json"
            _profile(ready, null, order, path, tick)
            ops, floors = _collect(ready, path)
        costs = {api: null_kernel.unsynchronised_cost(run) for api, run in null.launchers.items()}
    found = ops + [_without(call) for call, one in zip(calls, bound, strict=True) if one is None]
    definition = (
        "each distinct op call alone, through the dispatcher, inference mode; "
        f"{WARMUP} warm-ups, {count} samples, synchronised one by one, in blocks of one unsampled "
        f"call and {BLOCK} samples, blocks in random order among all others' and the empty "
        "kernel's, under one profile"
    )
    return KernelReplay(definition, found), _floors(floors, costs, null.missing)


def floor(device: str, samples: int) -> LaunchFloors:
    """Measure the launch floors alone."""
    return replay([], device, samples, None)[1]


def joined(parts: list[LaunchFloors]) -> LaunchFloors:
    """Return one floor of several that `floor` measured one after the other."""
    found: dict[tuple[str, str], list[int]] = {}
    for part in parts:
        for entry in part.floors:
            found.setdefault((entry.launch_api, entry.definition), []).extend(entry.samples_ns)
    floors = [LaunchFloor(*key, samples) for key, samples in found.items()]
    return replace(parts[0], floors=floors)


def _order(
    calls: int, samples: int, apis: list[str], floor_samples: int
) -> list[tuple[int, str | None, int]]:
    """Blocks (call, launch API, samples in it) in random order; call is -1 for the empty kernel."""
    things: list[tuple[int, str | None, int]] = [(i, None, samples) for i in range(calls)]
    things += [(-1, api, floor_samples) for api in apis]
    blocks = [
        (index, api, min(BLOCK, wanted - begun))
        for index, api, wanted in things
        for begun in range(0, wanted, BLOCK)
    ]
    random.Random(0).shuffle(blocks)
    return blocks


def _affordable(samples: int, kinds: int, budget_s: float | None) -> int:
    if budget_s is None or not kinds:
        return samples
    return max(FEWEST_SAMPLES, min(samples, int(budget_s / _SECONDS_A_SAMPLE / kinds)))


def _bind(call: OpCall, device: str) -> _BoundCall | None:
    """Bind and warm up one call; None with the reason kept if it cannot be made."""
    try:
        operator, positional, named = call.bind(device)

        def run() -> Any:
            return operator(*positional, **named)

        for _ in range(WARMUP):
            run()
        torch.cuda.synchronize()
    except CannotReplay as error:
        call.reason = str(error)
    except torch.cuda.OutOfMemoryError:
        call.reason = "its tensors do not fit beside the model"
        torch.cuda.empty_cache()
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        lines = str(error).strip().splitlines()
        call.reason = f"the call failed: {lines[0][:160] if lines else type(error).__name__}"
        if "CUDA error" in str(error):
            raise CollectorError(
                f"replaying {call.key[0]} {call.key[1]} broke the CUDA context: {call.reason}. "
                "Record again with --replay off, and report the op."
            ) from error
    else:
        return _BoundCall(run, call)
    return None


def _profile(
    ready: list[_BoundCall],
    null: null_kernel.NullKernel,
    order: list[tuple[int, str | None, int]],
    path: Path,
    tick: Callable[[int, int], None],
) -> None:
    synchronise = torch.cuda.synchronize
    mark = torch.profiler.record_function
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for launch in null.launchers.values():
        for _ in range(WARMUP):
            launch()
    synchronise()
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for number, (index, api, size) in enumerate(order):
            label = f"{_PREFIX}{index}" if api is None else f"{_PREFIX}{api}"
            run = ready[index].run if api is None else null.launchers[api]
            run()
            synchronise()
            for _ in range(size):
                with mark(label):
                    run()
                    synchronise()
            if number % 200 == 0:
                tick(number, len(order))
    tick(len(order), len(order))
    profile.export_chrome_trace(str(path))


def _collect(
    ready: list[_BoundCall], path: Path
) -> tuple[list[ReplayedOp], dict[str, list[kineto_samples.Sample]]]:
    """Samples by op call and kernel; a call's kernels are told apart by place, name and
    configuration."""
    seen: dict[int, dict[_KernelKey, _Samples]] = defaultdict(dict)
    taken: dict[int, int] = defaultdict(int)
    floors: dict[str, list[kineto_samples.Sample]] = defaultdict(list)
    for sample in kineto_samples.read(path, _PREFIX):
        if not sample.label.isdigit():
            floors[sample.label].append(sample)
            continue
        index = int(sample.label)
        taken[index] += 1
        previous_end: int | None = None
        for position, launch in enumerate(sample.launches):
            key = (position, launch.kernel, str(launch.grid), str(launch.block))
            entry = seen[index].setdefault(key, _Samples(launch))
            begin = previous_end or launch.outermost_start or sample.start
            entry.dispatch_ns.append(launch.start - begin)
            entry.launch_ns.append(launch.kernel_start - launch.start)
            entry.exec_ns.append(launch.kernel_end - launch.kernel_start)
            previous_end = launch.end
    return [_op(one.call, taken[i], seen[i]) for i, one in enumerate(ready)], floors


def _without(call: OpCall) -> ReplayedOp:
    """A call that no sample was taken of, with its reason."""
    op, *texts = call.key
    dims, types, strides, concrete = (text or None for text in texts)
    return ReplayedOp(
        op,
        _overload(call),
        dims,
        types,
        strides,
        concrete,
        calls_in_trace=call.count,
        reason=call.reason,
    )


def _overload(call: OpCall) -> str | None:
    if call.node is None:
        return None
    schema = next((a["value"] for a in call.node["attrs"] if a["name"] == "op_schema"), "")
    return schema.partition("(")[0].partition(".")[2]


def _op(call: OpCall, samples: int, kernels: dict[_KernelKey, _Samples]) -> ReplayedOp:
    return replace(
        _without(call),
        samples=samples,
        reason=None if kernels else "the replay launched nothing",
        kernels=[
            ReplayedKernel(
                position=position,
                name=one.launch.kernel,
                grid=one.launch.grid,
                block=one.launch.block,
                shared_memory=one.launch.shared_memory,
                launch_api=one.launch.api,
                count=len(one.launch_ns),
                dispatch_ns=one.dispatch_ns,
                launch_ns=one.launch_ns,
                exec_ns=one.exec_ns,
            )
            for (position, *_), one in kernels.items()
        ],
    )


def _floors(
    samples: dict[str, list[kineto_samples.Sample]],
    costs: dict[str, list[int]],
    missing: dict[str, str],
) -> LaunchFloors:
    floors: list[LaunchFloor] = []
    for api, marked in samples.items():
        found = [(sample.start, launch) for sample in marked for launch in sample.launches]
        for definition, values in (
            ("api_start_to_kernel_start", [k.kernel_start - k.start for _, k in found]),
            ("api_end_to_kernel_start", [k.kernel_start - k.end for _, k in found]),
            ("annotation_to_kernel_start", [k.kernel_start - start for start, k in found]),
        ):
            floors.append(LaunchFloor(api, definition, values))
    for api, values in costs.items():
        floors.append(LaunchFloor(api, "unsynchronised_host_cost", values))
    return LaunchFloors(null_kernel.DEFINITIONS, missing, floors)
