"""The sample runs of the package, and the large traces that benchmarks make from one of them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.run_directory import (
    CAPTURE_TRACE,
    EXECUTION_TRACE,
    KERNEL_REPLAY,
    LATENCY,
    MANIFEST,
    NULL_KERNEL,
    TRACE,
    file_sha256,
    read_manifest,
)

# Recorded by the collector, with kernel replay, launch floor and latency.
RECORDED = ["gpt2-bs1-s512", "gpt2-bs8-s512"]
# Made from traces that were recorded before there was a collector: what was not measured is absent.
TRACES_ONLY = [
    "gpt2-prefill-bs1-s512",
    "gpt2-prefill-bs1-s512-compile",
    "gpt2-prefill-bs1-s512-graph",
    "gpt2-prefill-bs2-s512",
    "gpt2-prefill-bs8-s512",
]
NAMES = sorted(RECORDED + TRACES_ONLY)


def test_the_samples_are_these(samples_dir: Path) -> None:
    assert sorted(path.parent.name for path in samples_dir.glob(f"*/{MANIFEST}")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_has_the_files_its_manifest_names_and_nothing_invented(
    samples_dir: Path, name: str
) -> None:
    run_dir = samples_dir / name
    manifest = read_manifest(run_dir)

    assert manifest.name == name
    assert {path.name for path in run_dir.iterdir()} == {MANIFEST, *manifest.files}
    if name in TRACES_ONLY:
        assert set(manifest.files) <= {TRACE, CAPTURE_TRACE}
    else:
        assert {KERNEL_REPLAY, NULL_KERNEL, LATENCY, EXECUTION_TRACE} <= set(manifest.files)
    for file, digest in manifest.files.items():
        assert file_sha256(run_dir / file) == digest


def test_tiles_keep_durations_and_link_only_within_themselves(
    samples_dir: Path, tmp_path: Path
) -> None:
    from benchmarks.tile_trace import tile

    source = samples_dir / "gpt2-prefill-bs1-s512" / TRACE
    with gzip.open(source) as stream:
        one: list[dict[str, Any]] = json.load(stream)["traceEvents"]
    count = tile(source, tmp_path / "tiled.json", 5_000_000)
    many: list[dict[str, Any]] = json.loads((tmp_path / "tiled.json").read_text())["traceEvents"]
    tiles = 3

    assert count == len(many)
    assert durations(many) == Counter({ns: n * tiles for ns, n in durations(one).items()})
    calls = Counter(e["args"]["correlation"] for e in many if is_call(e))
    assert max(calls.values()) == 1
    assert all(e["args"]["correlation"] in calls for e in many if e.get("cat") == "kernel")
    steps = [e["name"] for e in many if e.get("cat") == "user_annotation"]
    assert steps == [f"step#{i}" for i in range(3 * tiles)]


def durations(events: list[dict[str, Any]]) -> Counter[int]:
    """Return how often each kernel duration occurs, in ns."""
    return Counter(round(e["dur"] * 1000) for e in events if e.get("cat") == "kernel")


def is_call(event: dict[str, Any]) -> bool:
    return event.get("cat") in ("cuda_runtime", "cuda_driver") and event["args"]["correlation"] > 0
