"""ReadWriteLock at a store: many readers or one writer, and nobody starves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from analyzer.errors import AnalyzerError
from analyzer.store import rwlock
from analyzer.store.rwlock import ReadWriteLock

SHORT_S = 0.05


def test_readers_share_a_turn() -> None:
    kept = ReadWriteLock()
    with kept.reading(SHORT_S):
        other = threading.Thread(target=lambda: kept.reading(SHORT_S).__enter__())
        other.start()
        other.join()


def test_a_writer_waits_for_readers_and_says_so_when_it_takes_too_long() -> None:
    kept = ReadWriteLock()
    with (
        kept.reading(SHORT_S),
        pytest.raises(AnalyzerError, match="in use"),
        kept.writing(SHORT_S),
    ):
        pass


def test_a_reader_waits_for_the_writer() -> None:
    kept = ReadWriteLock()
    with (
        kept.writing(SHORT_S),
        pytest.raises(AnalyzerError, match="in use"),
        kept.reading(SHORT_S),
    ):
        pass
    with kept.reading(SHORT_S):
        pass


def waiting_writer(kept: ReadWriteLock) -> threading.Thread:
    """A writer that waits for the reader of the calling thread."""
    began = threading.Event()

    def write() -> None:
        began.set()
        with kept.writing(30):
            pass

    thread = threading.Thread(target=write)
    thread.start()
    began.wait()
    while not kept._writers_waiting:
        pass
    return thread


def tried(kept: ReadWriteLock, urgent: bool) -> bool:
    """Whether another thread may read now."""
    found: list[bool] = []

    def read() -> None:
        try:
            with kept.reading(SHORT_S, urgent=urgent):
                found.append(True)
        except AnalyzerError:
            found.append(False)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return found[0]


def test_a_waiting_writer_goes_before_new_readers() -> None:
    """Else readers that overlap would keep it out for ever."""
    kept = ReadWriteLock()
    with kept.reading(SHORT_S):
        writer = waiting_writer(kept)
        assert not tried(kept, urgent=False)
    writer.join(30)
    assert not writer.is_alive()


def test_a_reader_that_reads_already_does_not_wait_for_the_writer_that_waits_for_it() -> None:
    kept = ReadWriteLock()
    with kept.reading(SHORT_S):
        writer = waiting_writer(kept)
        with kept.reading(SHORT_S):
            pass
    writer.join(30)


def test_an_urgent_look_does_not_wait_for_a_waiting_writer() -> None:
    kept = ReadWriteLock()
    with kept.reading(SHORT_S):
        writer = waiting_writer(kept)
        assert tried(kept, urgent=True)
    writer.join(30)


def test_a_writer_that_gave_up_keeps_nobody_out() -> None:
    kept = ReadWriteLock()
    with (
        kept.reading(SHORT_S),
        pytest.raises(AnalyzerError),
        kept.writing(SHORT_S),
    ):
        pass
    assert tried(kept, urgent=False)


def test_a_store_has_the_same_turns_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    one = rwlock.keep_lock(tmp_path / "store.duckdb")

    assert rwlock.lock_of(tmp_path / "folder" / ".." / "store.duckdb") is one
    assert rwlock.lock_of(tmp_path / "other.duckdb") is None
