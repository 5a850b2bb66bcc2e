"""Host, GPU and software of a recording. What cannot be read is None, never a guess."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from collector.errors import CollectorError
from schemas.manifest import Environment

_LIBRARIES = ("torch", "transformers", "triton", "hostbound")
_CLOCKS = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "max_sm_mhz": "clocks.max.sm",
    "temperature_c": "temperature.gpu",
}


def describe(device: str | None = None) -> Environment:
    """Read the environment; `device` is a torch device such as "cuda:0" (None or "cpu": no GPU)."""
    import torch

    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    gpu = memory = driver = clocks = count = None
    if device and device.startswith("cuda") and torch.cuda.is_available():
        index = torch.device(device).index or 0
        cuda: Any = torch.cuda  # its stub does not say what the next line returns
        properties = cuda.get_device_properties(index)
        gpu, memory, count = properties.name, properties.total_memory, torch.cuda.device_count()
        if torch.version.cuda:
            versions["cuda_runtime"] = torch.version.cuda
        row = nvidia_smi(index, ["driver_version", *_CLOCKS.values()])
        if row:
            driver = row[0]
            clocks = {
                name: int(value)
                for name, value in zip(_CLOCKS, row[1:], strict=True)
                if value.isdigit()
            }
    return Environment(
        host=os.environ.get("HOSTBOUND_HOST"),
        cpu=_cpu_name(),
        cpu_count=os.cpu_count(),
        cpu_governor=_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes=_memory(),
        os=f"{platform.system()} {platform.release()}",
        gpu=gpu,
        gpu_count=count,
        gpu_memory_bytes=memory,
        gpu_clocks=clocks,
        driver=driver,
        versions=versions,
    )


def check_device(device: str) -> None:
    """Raise CollectorError if a torch device cannot be used here."""
    import torch

    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise CollectorError(f"{device!r} is no torch device; give cuda:0 or cpu.") from error
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise CollectorError(
            f"{device} was asked for but this torch sees no CUDA GPU; `collector doctor` says why. "
            "Record what a CPU can show with --device cpu."
        )
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise CollectorError(
            f"{device} is not there: this host has {torch.cuda.device_count()} GPUs."
        )
    if parsed.type not in ("cuda", "cpu"):
        raise CollectorError(f"{device} is not supported; give cuda:0 or cpu.")


def nvidia_smi(index: int, fields: list[str]) -> list[str] | None:
    """Ask nvidia-smi for some fields of one GPU; None if it does not answer."""
    try:
        done = subprocess.run(
            [
                "nvidia-smi",
                f"--id={index}",
                f"--query-gpu={','.join(fields)}",
                "--format=csv,noheader,nounits",
            ],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in done.stdout.strip().splitlines()[0].split(",")]
    return values if len(values) == len(fields) else None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _cpu_name() -> str | None:
    for line in (_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _memory() -> int | None:
    for line in (_text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal"):
            return int(line.split()[1]) * 1024
    return None
