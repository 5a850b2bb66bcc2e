"""What this host can do for a recording: each check with what was found and, where it fails, a
remedy."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Check:
    """One finding. `state` is "ok", "limited" (works, figures may suffer) or "missing"."""

    name: str
    state: str
    found: str
    remedy: str = ""


def examine() -> list[Check]:
    """Run every check; none of them changes the host."""
    checks: list[Check] = []
    for check in (
        _python,
        _torch,
        _transformers,
        _cuda,
        _kineto,
        _floor,
        _governor,
        _clocks,
        _disk,
    ):
        try:
            checks.append(check())
        except (
            Exception
        ) as error:  # a check that breaks is itself a finding, and the others still run
            first = (str(error).splitlines() or [""])[0]
            checks.append(
                Check(check.__name__.strip("_"), "missing", f"{type(error).__name__}: {first}")
            )
    return checks


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", "ok", version)


def _torch() -> Check:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Check("torch", "missing", "not installed", "pip install 'hostbound[collector]'")
    return Check("torch", "ok", version)


def _transformers() -> Check:
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return Check(
            "transformers",
            "limited",
            "not installed",
            "pip install transformers, or record your own code with collector.recording",
        )
    return Check("transformers", "ok", version)


def _cuda() -> Check:
    import torch

    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        return Check("CUDA", "ok", f"{torch.cuda.device_count()} x {', '.join(sorted(names))}")
    if torch.version.cuda is None:
        return Check(
            "CUDA",
            "missing",
            "this torch is a CPU build",
            "install a CUDA build of torch; --device cpu records the host side only",
        )
    remedy = "check the driver with nvidia-smi"
    if not Path("/dev/nvidiactl").exists():
        remedy = "no NVIDIA device is visible: load the driver, or pass the GPU into the container"
    elif not os.access("/dev/nvidiactl", os.R_OK | os.W_OK):
        remedy = "this user may not open /dev/nvidiactl: check its permissions"
    return Check("CUDA", "missing", "torch sees no GPU", remedy)


def _kineto() -> Check:
    """Does the profiler deliver kernels (CUPTI)?"""
    import torch

    if not torch.cuda.is_available():
        return Check("CUPTI", "missing", "needs CUDA", "see CUDA")
    activity = torch.profiler.ProfilerActivity
    x = torch.ones(8, device="cuda")
    with torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as profile:
        x.add_(1)
        torch.cuda.synchronize()
    events: list[Any] = list(profile.events() or [])
    kernels = [event for event in events if "CUDA" in str(event.device_type)]
    if kernels:
        return Check("CUPTI", "ok", "the profiler delivers kernels")
    return Check(
        "CUPTI",
        "missing",
        "the profiler delivers no kernels",
        "close other profilers (nsys, dcgm), or allow profiling: "
        "NVreg_RestrictProfilingToAdminUsers=0",
    )


def _floor() -> Check:
    import torch

    from collector.replay import null_kernel

    if not torch.cuda.is_available():
        return Check("launch floor", "missing", "needs CUDA", "see CUDA")
    null = null_kernel.load()
    for launch in null.launchers.values():
        launch()
    torch.cuda.synchronize()
    apis = ", ".join(null.launchers)
    if null.missing:
        reasons = "; ".join(f"{api}: {why}" for api, why in null.missing.items())
        return Check(
            "launch floor", "limited", f"{apis}; not {reasons}", "other APIs take its floor"
        )
    return Check("launch floor", "ok", apis)


def _governor() -> Check:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if not path.exists():
        return Check("CPU governor", "limited", "not visible (a virtual machine?)")
    governor = path.read_text(encoding="utf-8").strip()
    if governor == "performance":
        return Check("CPU governor", "ok", governor)
    return Check(
        "CPU governor",
        "limited",
        governor,
        "host times vary: cpupower frequency-set -g performance",
    )


def _clocks() -> Check:
    from collector.environment import nvidia_smi

    fields = ["clocks.sm", "clocks.max.sm", "clocks_throttle_reasons.active", "temperature.gpu"]
    row = nvidia_smi(0, fields)
    if row is None:
        return Check(
            "GPU clocks", "limited", "nvidia-smi does not answer", "clocks are not recorded"
        )
    return Check("GPU clocks", "ok", f"SM {row[0]} of {row[1]} MHz, {row[3]} C, as found")


def _disk() -> Check:
    free = os.statvfs(tempfile.gettempdir())
    size = free.f_bavail * free.f_frsize
    if size < 2 << 30:
        return Check(
            "disk",
            "limited",
            f"{size / 1e9:.1f} GB free",
            "traces take hundreds of MB while written",
        )
    return Check("disk", "ok", f"{size / 1e9:.0f} GB free in {tempfile.gettempdir()}")
