"""How much memory there is for conversions: of the machine, or of the control group it runs in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# The rest is for the server itself, SQL and the system's file cache.
SHARE_OF_CONVERSIONS = 0.75
LEAST_OF_A_JOB = 256 << 20  # with less, small traces would fail too


def of_a_job(workers: int, total_bytes: int | None) -> int | None:
    """Bytes that each of some workers may take by itself, so that all fit; None: it is not known
    how much there is.
    """
    if total_bytes is None:
        return None
    return max(LEAST_OF_A_JOB, int(total_bytes * SHARE_OF_CONVERSIONS) // workers)


def total_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that this process and its children may use; None where the system does not say.

    Args:
        root: Where `proc` and `sys` are.
    """
    found = [*_machine(root), *_control_groups(root)]
    return min(found) if found else None


def _machine(root: Path) -> Iterator[int]:
    try:
        for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):  # no Linux
        if root == Path("/") and "SC_PHYS_PAGES" in os.sysconf_names:
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _control_groups(root: Path) -> Iterator[int]:
    """Limits of the group and of those around it: a service's MemoryMax, a container's memory."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder != top and top not in folder.parents:
                break
            try:
                yield int((folder / file).read_text(encoding="ascii"))
            except (OSError, ValueError):  # "max", or seen from inside a container
                continue
