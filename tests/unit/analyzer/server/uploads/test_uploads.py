"""Uploads, with clocks that jump and crashes between any two steps: on both kinds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from analyzer.errors import AnalyzerError
from analyzer.server.uploads.quotas import TooManyQueued
from analyzer.server.uploads.uploads import (
    Busy,
    DiskFull,
    Ended,
    TooLarge,
    WrongContent,
    WrongOffset,
)
from support.server_parts import DAY_S, Clock, ServerParts, SqliteDatabases, announced


def test_an_upload_goes_on_where_the_disk_is(parts: ServerParts) -> None:
    upload = parts.announce(b"abcdef")
    parts.write(b"abc", upload)

    again = parts.again()

    known = again.announce(b"abcdef")
    assert (known.id, known.offset) == (upload.id, 3)
    with again.uploads.writer(known, 3) as stream:
        stream.write(b"def")
        again.uploads.complete(known)
    assert again.layout.blob("perf", upload.sha256).read_bytes() == b"abcdef"
    assert again.announce(b"abcdef").state == "stored"
    assert again.jobs.counts()["queued"] == 1


def test_a_piece_at_the_wrong_place_is_refused(parts: ServerParts) -> None:
    upload = parts.announce(b"abcdef")
    parts.write(b"abc", upload)

    for offset in (0, 2, 4):
        with pytest.raises(WrongOffset, match="ends at 3"):
            parts.write(b"x", upload, offset)


def test_two_requests_do_not_write_one_upload(parts: ServerParts) -> None:
    upload = parts.announce(b"abcdef")
    with parts.uploads.writer(upload, 0), pytest.raises(Busy):
        parts.write(b"x", upload)
    with parts.uploads.writer(upload, 0), pytest.raises(Busy):
        parts.uploads.drop("perf", upload.id)
    parts.write(b"abc", upload)


def test_an_upload_that_ended_meanwhile_is_not_begun_again(parts: ServerParts) -> None:
    upload = parts.store(b"abcdef")

    with pytest.raises(Ended):
        parts.write(b"x", dataclasses.replace(upload, state="incomplete"))
    assert not parts.layout.partial("perf", upload.id).exists()


def test_wrong_content_is_dropped_and_the_upload_begins_anew(parts: ServerParts) -> None:
    upload = parts.announce(b"abcdef")
    parts.write(b"abcdeX", upload)

    with pytest.raises(WrongContent, match="Send it again"):
        parts.uploads.complete(upload)

    assert parts.announce(b"abcdef").offset == 0
    assert parts.jobs.list() == []


def test_a_size_announced_wrongly_can_be_corrected_until_it_is_stored(parts: ServerParts) -> None:
    parts.announce(b"abcdef", size=3)

    assert parts.announce(b"abcdef").size == 6
    parts.store(b"abcdef")
    with pytest.raises(WrongContent, match="check the hash"):
        parts.announce(b"abcdef", size=3)


def test_the_same_content_of_two_teams_is_two_uploads(parts: ServerParts) -> None:
    parts.store(b"abcdef")

    assert parts.announce(b"abcdef", team="other").offset == 0
    assert parts.uploads.find("other", announced(b"abcdef").sha256)
    assert parts.uploads.find("third", announced(b"abcdef").sha256) is None


def test_too_much_is_refused_before_it_comes(
    tmp_path: Path, databases: SqliteDatabases, clock: Clock
) -> None:
    small = ServerParts(tmp_path / "small", databases, clock, upload_bytes=5)
    with pytest.raises(TooLarge):
        small.announce(b"abcdef")
    crowded = ServerParts(tmp_path / "crowded", databases, clock, reserve_bytes=1 << 60)
    with pytest.raises(DiskFull):
        crowded.announce(b"abcdef")


def test_a_crash_between_the_disk_and_the_database_ends_in_a_stored_upload(
    parts: ServerParts,
) -> None:
    """The content was checked before it got its name: that is all that is needed."""
    upload = parts.announce(b"abcdef")
    blob = parts.layout.blob("perf", upload.sha256)
    blob.write_bytes(b"abcdef")  # renamed, then killed

    again = parts.again()

    assert again.recover()["completed"] == 1
    assert again.announce(b"abcdef").state == "stored"
    assert again.jobs.counts()["queued"] == 1
    assert again.recover() == {"completed": 0, "adopted": 0, "dropped": 0}


def test_a_crash_before_the_database_is_mended_by_whoever_asks_next(parts: ServerParts) -> None:
    """Also without a new start: the state was away when the last byte had come."""
    upload = parts.announce(b"abcdef")
    parts.layout.blob("perf", upload.sha256).write_bytes(b"abcdef")

    known = parts.uploads.find("perf", upload.id)

    assert known is not None
    assert (known.state, known.offset) == ("stored", 6)
    assert parts.uploads.find("perf", upload.id) == known
    assert parts.jobs.counts()["queued"] == 1
    with pytest.raises(Ended):
        parts.write(b"abcdef", upload)


def test_an_upload_that_was_completed_meanwhile_is_not_given_up(parts: ServerParts) -> None:
    upload = parts.store(b"abcdef")
    other = parts.announce(b"uvwxyz")
    parts.write(b"uvw", other)

    parts.uploads.give_up("perf", upload.id)
    parts.uploads.give_up("perf", other.id)

    assert parts.announce(b"abcdef").state == "stored"
    assert parts.uploads.find("perf", other.id) is None
    assert parts.announce(b"uvwxyz").offset == 0


def test_originals_outlive_the_loss_of_the_database(parts: ServerParts) -> None:
    upload = parts.store(b"abcdef")
    parts.databases.lose(parts.layout)
    stranger = parts.layout.blob("perf", "1" * 64)
    stranger.write_bytes(b"not that hash")

    again = parts.again()

    assert again.recover()["adopted"] == 1
    assert again.layout.blob("perf", upload.sha256).read_bytes() == b"abcdef"
    assert again.jobs.counts()["queued"] == 1
    assert stranger.exists(), "nothing in there is deleted for being unknown"


def test_a_start_drops_what_nobody_goes_on_with_and_keeps_the_rest(
    parts: ServerParts, clock: Clock
) -> None:
    kept = parts.announce(b"abcdef")
    parts.write(b"abc", kept)
    (parts.layout.team("perf") / "uploads" / ("0" * 32)).write_bytes(b"of no upload")
    (parts.layout.work("perf") / "left").mkdir()
    clock.now = parts.layout.partial("perf", kept.id).stat().st_mtime

    parts.again().recover()
    assert [p.name for p in (parts.layout.team("perf") / "uploads").iterdir()] == [kept.id]
    assert list(parts.layout.work("perf").iterdir()) == []

    clock.now += 15 * DAY_S
    parts.again().recover()
    assert list((parts.layout.team("perf") / "uploads").iterdir()) == []
    assert parts.announce(b"abcdef").offset == 0


def test_an_announcement_of_which_no_byte_came_is_dropped_too(
    parts: ServerParts, clock: Clock
) -> None:
    upload = parts.announce(b"abcdef")
    parts.recover()
    assert parts.uploads.find("perf", upload.id)

    clock.now += 15 * DAY_S
    parts.recover()

    assert parts.uploads.find("perf", upload.id) is None


def test_a_team_announces_so_many_at_the_same_time(
    tmp_path: Path, databases: SqliteDatabases, clock: Clock
) -> None:
    parts = ServerParts(tmp_path / "data", databases, clock, team_incomplete=2)
    first = parts.announce(b"a")
    parts.announce(b"b")
    with pytest.raises(TooManyQueued, match="not complete"):
        parts.announce(b"c")
    parts.announce(b"c", team="other")

    parts.uploads.give_up("perf", first.id)
    parts.announce(b"c")


def test_a_clock_that_jumps_drops_nothing_that_was_acknowledged(
    parts: ServerParts, clock: Clock
) -> None:
    upload = parts.store(b"abcdef")

    for jump in (-4000 * DAY_S, 9000 * DAY_S):
        clock.now += jump
        parts.again().recover()

    assert parts.layout.blob("perf", upload.sha256).exists()
    assert parts.announce(b"abcdef").state == "stored"


def test_an_original_that_is_gone_is_taken_again(parts: ServerParts) -> None:
    upload = parts.store(b"abcdef")
    parts.layout.blob("perf", upload.sha256).unlink()

    assert parts.announce(b"abcdef").state == "incomplete"


@pytest.mark.parametrize("reference", ["", "..", "../../x", "0" * 31, "F" * 64, "%", "0" * 65])
def test_only_an_id_or_a_hash_names_an_upload(parts: ServerParts, reference: str) -> None:
    assert parts.uploads.find("perf", reference) is None
    with pytest.raises(AnalyzerError):
        parts.layout.blob("perf", reference)
    with pytest.raises(AnalyzerError):
        parts.layout.partial("perf", reference)
