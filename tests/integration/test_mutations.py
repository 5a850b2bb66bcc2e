"""Damaged traces by the hundred: each is loaded, or refused in one line; never anything else."""

from __future__ import annotations

import gzip
import random
import time
from pathlib import Path

import duckdb
import pytest

from analyzer.ingest import ingest
from analyzer.trace import native_scanner

# (trace, mutations): the budget in CI. Seeded, so that a failure can be had again.
BUDGET = (
    ("a100-triton-driver-launch", 130),
    ("cpu-only", 60),
    ("mi300-torch-compile-triton", 60),
    ("h200/gpt2-prefill-bs1-s512-compile-default", 25),
    ("mi300-sglang-decode-graph-replay", 25),
)
SLOWEST_S = 20.0
MARKS = b'{}[],:"\\\x00\xff0-.eE9n'


def mutate(data: bytes, dice: random.Random) -> bytes:
    """One to four changes: flips, deletions, duplications, splices, cuts, marks of the format."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4))):
        at = dice.randrange(max(len(changed), 1))
        size = dice.choice((1, 2, 8, 60, 400, 5000))
        kind = dice.randrange(7)
        if kind == 0 and changed:
            changed[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del changed[at : at + size]
        elif kind == 2:
            changed[at:at] = changed[at : at + size]
        elif kind == 3:
            other = dice.randrange(max(len(changed), 1))
            changed[at : at + size] = changed[other : other + size]
        elif kind == 4:
            changed[at : at + 1] = bytes([dice.choice(MARKS)])
        elif kind == 5:
            changed[at:at] = bytes([dice.choice(MARKS)])
        elif dice.random() < 0.3:
            del changed[at:]
    return bytes(changed)


def whole(store: Path, run_id: str | None) -> bool:
    """The run's tables agree with its totals: it was not half written."""
    with duckdb.connect(str(store), read_only=True) as connection:
        runs = connection.execute("SELECT run_id FROM runs").fetchall()
        events, launches, kernels = connection.execute(
            "SELECT (SELECT count(*) FROM device_events WHERE kind = 'kernel'), "
            "(SELECT count(*) FROM launches), (SELECT sum(kernels) FROM totals "
            "WHERE trace_id IS NULL)"
        ).fetchall()[0]
        total = connection.execute(
            "SELECT sum(launches) FROM totals WHERE trace_id IS NULL"
        ).fetchall()[0][0]
        walls = connection.execute(
            "SELECT count(*) FROM (SELECT sum(l.ns) ns, any_value(s.end_ns - s.start_ns) wall "
            "FROM ledger l JOIN steps s USING (run_id, step_id) "
            "GROUP BY l.run_id, l.step_id, l.thread_id) WHERE ns <> wall"
        ).fetchall()[0][0]
    if run_id is None:
        return runs == []
    return runs == [(run_id,)] and (events, launches) == (kernels, total) and walls == 0


@pytest.mark.parametrize("scanner", ["native", "pure"])
@pytest.mark.parametrize(("name", "mutations"), BUDGET)
def test_a_damaged_trace_is_loaded_or_refused_in_one_line(
    name: str,
    mutations: int,
    scanner: str,
    shared_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if scanner == "pure":
        monkeypatch.setattr(native_scanner, "library", lambda: None)
        mutations //= 4
    packed = (shared_dir / "traces" / f"{name}.json.gz").read_bytes()
    plain = gzip.decompress(packed)
    dice = random.Random(f"{name} {scanner}")
    for number in range(mutations):
        data = mutate(packed if number % 8 == 7 else plain, dice)
        path, store = tmp_path / "t.json", tmp_path / "s.duckdb"
        path.write_bytes(data)
        began = time.monotonic()
        (result,) = ingest(path, store, jobs=1)
        assert time.monotonic() - began < SLOWEST_S, number
        if result.state == "failed":
            assert result.error, number
            assert "\n" not in result.error, number
            assert not store.exists(), number
        else:
            assert result.state == "stored", number
            assert all("\n" not in f.message for f in result.findings), number
            assert whole(store, result.run_id), number
            store.unlink()
