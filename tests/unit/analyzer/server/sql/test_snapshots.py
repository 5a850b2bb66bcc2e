"""SQL reads copies of a store: one as long as nothing changes, never more than the disk has room
for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.errors import AnalyzerError
from analyzer.server.layout import Layout
from analyzer.server.limits import GIB, MIB, Limits
from analyzer.server.sql import snapshots as snapshots_module
from analyzer.server.sql.snapshots import Crowded, Snapshots
from analyzer.server.uploads.uploads import DiskFull
from analyzer.store import open_store


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A server's folder with the stores of two teams."""
    layout = Layout(tmp_path / "data")
    layout.make()
    for team in ("a", "b"):
        layout.make_team(team)
        with open_store(layout.store(team)).writing():
            pass
    return layout


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stores that were copied, in turn; no block is shared."""
    done: list[Path] = []
    copy: Callable[[Path, Path], None] = snapshots_module._copy

    def noted(source: Path, target: Path) -> None:
        done.append(source)
        copy(source, target)

    monkeypatch.setattr(snapshots_module, "_copy", noted)
    monkeypatch.setattr(snapshots_module, "_shared", lambda source, target: False)
    return done


def change(store: Path) -> None:
    with open_store(store).writing() as connection:
        connection.execute("CREATE TABLE more AS SELECT * FROM range(100000)")


def test_one_copy_serves_until_the_store_changes(layout: Layout, copied: list[Path]) -> None:
    snapshots = Snapshots(layout, Limits())
    with snapshots.of("a") as first, snapshots.of("a") as second:
        assert first == second
    with snapshots.of("a") as third:
        assert third == first
    assert copied == [layout.store("a")]

    change(layout.store("a"))
    with snapshots.of("a") as fourth, open_store(fourth).reading() as connection:
        assert connection.execute("SELECT count(*) FROM more").fetchall() == [(100_000,)]
    assert list(layout.snapshots("a").iterdir()) == [fourth]


def test_an_old_copy_stays_while_it_is_read_and_else_goes_before_a_new_one_is_made(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = layout.store("a"), layout.snapshots("a")
    beside: list[int] = []
    share: Callable[[Path, Path], bool] = snapshots_module._shared

    def counted(source: Path, target: Path) -> bool:
        beside.append(len(list(folder.iterdir())))
        return share(source, target)

    monkeypatch.setattr(snapshots_module, "_shared", counted)
    snapshots = Snapshots(layout, Limits())
    with snapshots.of("a") as old:
        change(store)
        with snapshots.of("a") as new:
            assert new != old
            assert old.exists()
    assert list(folder.iterdir()) == [new]
    with open_store(store).writing() as connection:
        connection.execute("DROP TABLE more")
    with snapshots.of("a") as newest:
        assert list(folder.iterdir()) == [newest]
    assert beside == [0, 1, 0]


def test_a_copy_that_the_disk_has_no_room_for_is_refused_and_leaves_nothing(
    layout: Layout, copied: list[Path]
) -> None:
    free = [2 * GIB]
    snapshots = Snapshots(layout, Limits(reserve_bytes=GIB), lambda folder: free[0])
    with snapshots.of("a"):
        pass
    change(layout.store("a"))
    free[0] = GIB + MIB // 4

    with pytest.raises(DiskFull, match=r"has 1\.07 GB free, of which it keeps 1\.07 GB"):  # noqa: SIM117
        with snapshots.of("a"):
            pass

    assert list(layout.snapshots("a").iterdir()) == []
    free[0] = 2 * GIB
    with snapshots.of("a") as path:
        assert path.exists()


def test_one_copy_is_made_at_a_time_and_nobody_waits_for_ever(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(source: Path, target: Path) -> None:
        begun.set()
        assert go_on.wait(60)
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr(snapshots_module, "_copy", slow)
    monkeypatch.setattr(snapshots_module, "_shared", lambda source, target: False)
    snapshots = Snapshots(layout, Limits(read_patience_seconds=0.05))
    made: list[Path] = []

    def first() -> None:
        with snapshots.of("a") as path:
            made.append(path)

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(60)
    with pytest.raises(Crowded, match="try again soon"), snapshots.of("b"):
        pass
    go_on.set()
    thread.join()
    with snapshots.of("b") as other:
        assert other.exists()
    assert len(made) == 1


def test_without_a_store_there_is_no_copy(layout: Layout) -> None:
    layout.store("a").unlink()
    with (
        pytest.raises(AnalyzerError, match="there is no store"),
        Snapshots(layout, Limits()).of("a"),
    ):
        pass
