"""The manifest: what an older or newer program of version 1 wrote is read, damage is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import RunDirectoryError
from schemas.manifest import Group, HostSpeed
from schemas.run_directory import MANIFEST, read_manifest


@pytest.fixture
def value(samples_dir: Path) -> dict[str, Any]:
    """The manifest of a run that was recorded before hosts' speeds were."""
    return json.loads((samples_dir / "gpt2-bs1-s512" / MANIFEST).read_bytes())


def read(folder: Path, value: dict[str, Any]) -> Any:
    (folder / MANIFEST).write_text(json.dumps(value))
    return read_manifest(folder)


def test_a_run_without_host_speed_has_none(tmp_path: Path, value: dict[str, Any]) -> None:
    manifest = read(tmp_path, value)

    assert manifest.host_speed is None
    assert manifest.trace_speeds_ns() == []
    assert [t.unprofiled_step_wall_ns for t in manifest.traces] == [None] * 3
    assert manifest.group is None


def test_fields_that_a_later_program_added_are_left_alone(
    tmp_path: Path, value: dict[str, Any]
) -> None:
    value["later"] = 1
    value["traces"][0]["later"] = 1
    value["environment"]["later"] = 1
    value["host_speed"] = {"definition": "a loop", "later": 1}

    assert read(tmp_path, value).host_speed == HostSpeed("a loop")


def test_only_speeds_beside_timed_traces_count(tmp_path: Path, value: dict[str, Any]) -> None:
    value["traces"][0] |= {"role": "capture", "host_speed_ns": [9, 9]}
    value["traces"][1] |= {"host_speed_ns": [1, 2]}
    value["traces"][2] |= {"host_speed_ns": [3, 4]}

    assert read(tmp_path, value).trace_speeds_ns() == [1, 2, 3, 4]


@pytest.mark.parametrize("bad", ["5", [5, "6"], [0], [-1], [1.5], [True], {"a": 1}])
@pytest.mark.parametrize("field", ["host_speed_ns", "unprofiled_step_wall_ns", "step_wall_ns"])
def test_a_time_that_is_no_nanoseconds_is_refused(
    tmp_path: Path, value: dict[str, Any], field: str, bad: object
) -> None:
    value["traces"][0][field] = bad

    with pytest.raises(RunDirectoryError, match="nanoseconds") as refused:
        read(tmp_path, value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("bad", [{}, [], "fast", {"definition": "x", "floor_ns": [0]}])
def test_a_host_speed_that_is_none_is_refused(
    tmp_path: Path, value: dict[str, Any], bad: object
) -> None:
    value["host_speed"] = bad or {"latency_ns": [1]}  # no definition

    with pytest.raises(RunDirectoryError):
        read(tmp_path, value)


def test_the_group_of_a_run_is_read_back(tmp_path: Path, value: dict[str, Any]) -> None:
    value["group"] = {"id": "ab", "variant": 1, "variants": 2, "later": 1}

    assert read(tmp_path, value).group == Group("ab", 1, 2)
    group = {"id": "ab", "variant": 1, "variants": 2, "cpu": 3}
    value["group"] = group
    assert json.loads(read(tmp_path, value).to_json())["group"] == group


@pytest.mark.parametrize(
    "bad",
    [
        "b",
        ["b"],
        {"id": "ab"},
        {"id": 1, "variant": 1, "variants": 2},
        {"id": "ab", "variant": "1", "variants": 2},
        {"id": "ab", "variant": 1, "variants": None},
        {"id": "ab", "variant": 1, "variants": 2, "cpu": "3"},
    ],
)
def test_a_group_that_is_none_is_refused(
    tmp_path: Path, value: dict[str, Any], bad: object
) -> None:
    value["group"] = bad

    with pytest.raises(RunDirectoryError) as refused:
        read(tmp_path, value)
    assert "\n" not in str(refused.value)
