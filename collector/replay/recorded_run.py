"""The kernel replay of the op calls that a run directory holds: the first time, or once more.

Once more (`collector replay`): a new folder is made beside the old one from its files and the new
samples, and takes its place whole.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from collector import environment
from collector.calibration import DEFINITION, calibrate
from collector.errors import CollectorError
from collector.progress import Progress, say
from collector.replay import kernel_replay, op_calls
from collector.writer import RunDirectoryWriter
from schemas.run_directory import EXECUTION_TRACE, KERNEL_REPLAY, NULL_KERNEL, read_manifest


def replay_into(
    writer: RunDirectoryWriter, device: str, samples: int, budget_s: float | None
) -> list[str]:
    """Replay the op calls of the traces that a writer holds, and measure the floor among them.

    Adds both JSON files.

    Returns:
        Notes for the manifest: op calls that could not be replayed, launch APIs without a floor.
    """
    traces = [op_calls.load_trace(path) for path in sorted(writer.path.glob("trace*.json.gz"))]
    nodes = op_calls.load_execution_trace(writer.path / EXECUTION_TRACE)
    calls = op_calls.from_run(traces, nodes)
    del traces, nodes
    say(f"replaying {len(calls)} distinct op calls, {samples} samples each, and the empty kernel")
    replayed, floors = kernel_replay.replay(calls, device, samples, budget_s, Progress("replay"))
    writer.add_json(KERNEL_REPLAY, replayed)
    writer.add_json(NULL_KERNEL, floors)
    failed = sum(bool(op.reason) for op in replayed.ops)
    notes = [f"{failed} of {len(calls)} distinct op calls could not be replayed"] if failed else []
    return notes + [f"no floor for {api}: {why}" for api, why in floors.missing.items()]


def replay_again(run_dir: Path, device: str, samples: int, budget_s: float | None) -> None:
    """Replace the replay and floor of a run directory.

    Raises:
        CollectorError: It has no execution trace, the device has no CUDA, or the GPU is another
            one.
        RunDirectoryError: It is no run directory.
    """
    manifest = read_manifest(run_dir)
    if not (run_dir / EXECUTION_TRACE).is_file():
        raise CollectorError(
            f"{run_dir} has no {EXECUTION_TRACE}, which says how its ops were called; record it "
            "again with kernel replay."
        )
    environment.check_device(device)
    here = environment.describe(device)
    if manifest.environment.gpu and here.gpu != manifest.environment.gpu:
        raise CollectorError(
            f"{run_dir} was recorded on {manifest.environment.gpu}, this is {here.gpu}: a replay "
            "here would say nothing about it."
        )
    target = run_dir.with_name(f".{run_dir.name}.replayed")
    shutil.rmtree(target, ignore_errors=True)
    with RunDirectoryWriter(target) as writer:
        for name in manifest.files:
            if name not in (KERNEL_REPLAY, NULL_KERNEL):
                shutil.copy2(run_dir / name, writer.path / name)
        before = calibrate()
        notes = replay_into(writer, device, samples, budget_s)
        speed = manifest.host_speed
        if speed is not None:  # times of another definition do not stand beside these
            same = speed.definition == DEFINITION
            speed = replace(speed, floor_ns=[before, calibrate()] if same else None)
        kept = [n for n in manifest.notes if "replayed" not in n and "no floor" not in n]
        writer.finish(replace(manifest, notes=kept + notes, host_speed=speed))
    old = run_dir.with_name(f".{run_dir.name}.before")
    os.rename(run_dir, old)
    os.rename(target, run_dir)
    shutil.rmtree(old)
