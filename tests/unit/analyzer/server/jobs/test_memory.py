"""The memory that a conversion may take follows from what there is, for a container too."""

from __future__ import annotations

from pathlib import Path

from analyzer.server.jobs import memory

GIB = 1 << 30


def make_system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="ascii")
    return root


def test_all_conversions_together_leave_a_quarter_of_the_memory() -> None:
    assert memory.of_a_job(2, 16 * GIB) == 6 * GIB
    assert memory.of_a_job(4, 16 * GIB) == 3 * GIB


def test_a_small_machine_converts_small_traces_nevertheless() -> None:
    assert memory.of_a_job(4, GIB // 2) == 256 << 20


def test_where_the_memory_is_not_known_nothing_is_watched(tmp_path: Path) -> None:
    assert memory.total_bytes(tmp_path) is None
    assert memory.of_a_job(2, None) is None


def test_the_machines_memory_counts_where_no_group_has_less(tmp_path: Path) -> None:
    root = make_system(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n",
            "proc/self/cgroup": "0::/system.slice/hostbound.service\n",
            "sys/fs/cgroup/system.slice/hostbound.service/memory.max": "max\n",
            "sys/fs/cgroup/system.slice/memory.max": f"{64 * GIB}\n",
        },
    )
    assert memory.total_bytes(root) == 16 * GIB


def test_a_group_around_the_servers_own_may_have_less(tmp_path: Path) -> None:
    root = make_system(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       16777216 kB\n",
            "proc/self/cgroup": "0::/pods/hostbound\n",
            "sys/fs/cgroup/pods/hostbound/memory.max": "max\n",
            "sys/fs/cgroup/pods/memory.max": f"{2 * GIB}\n",
        },
    )
    assert memory.total_bytes(root) == 2 * GIB


def test_the_older_kind_of_groups_counts_too(tmp_path: Path) -> None:
    root = make_system(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       16777216 kB\n",
            "proc/self/cgroup": "9:cpu:/a\n4:memory:/docker/a\n0::/a\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
        },
    )
    assert memory.total_bytes(root) == 3 * GIB


def test_this_machine_says_how_much_it_has() -> None:
    found = memory.total_bytes()
    assert found is not None
    assert found > 64 << 20
