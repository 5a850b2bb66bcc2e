"""`collector replay`: the kernel replay of an existing run directory, done again on this host.

A new folder is made beside the old one from its files and the new samples, and takes its place
whole.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from collector import environment, host_speed
from collector.errors import CollectorError
from collector.record import check_device, replay_into
from collector.writer import RunDirectoryWriter
from schemas.run_directory import EXECUTION_TRACE, KERNEL_REPLAY, NULL_KERNEL, read_manifest


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
            f"again "
            "without --no-replay."
        )
    check_device(device)
    here = environment.describe(device)
    if manifest.environment.gpu and here.gpu != manifest.environment.gpu:
        raise CollectorError(
            f"{run_dir} was recorded on {manifest.environment.gpu}, this is {here.gpu}: a replay "
            f"here would "
            "say nothing about it."
        )
    target = run_dir.with_name(f".{run_dir.name}.replayed")
    shutil.rmtree(target, ignore_errors=True)
    with RunDirectoryWriter(target) as writer:
        for name in manifest.files:
            if name not in (KERNEL_REPLAY, NULL_KERNEL):
                shutil.copy2(run_dir / name, writer.path / name)
        before = host_speed.calibrate()
        notes = replay_into(writer.path, device, samples, budget_s, writer)
        speed = manifest.host_speed
        if speed is not None:  # times of another definition do not stand beside these
            ours = speed.definition == host_speed.DEFINITION
            speed = replace(speed, floor_ns=[before, host_speed.calibrate()] if ours else None)
        kept = [n for n in manifest.notes if "replayed" not in n and "no floor" not in n]
        writer.finish(replace(manifest, notes=kept + notes, host_speed=speed))
    old = run_dir.with_name(f".{run_dir.name}.before")
    os.rename(run_dir, old)
    os.rename(target, run_dir)
    shutil.rmtree(old)
