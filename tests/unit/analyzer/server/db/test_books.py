"""What the server must not forget: tokens, jobs and uploads, with clocks that jump and crashes
between any two steps. In a file of its own, and in the PostgreSQL of a lake: alike.
"""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.errors import AnalyzerError
from analyzer.server.auth.tokens import Tokens
from analyzer.server.db.database import State
from analyzer.server.db.sqlite import SqliteState
from analyzer.server.jobs import queue as jobs_module
from analyzer.server.jobs.queue import Jobs
from analyzer.server.layout import Layout, check_team
from analyzer.server.limits import Limits
from analyzer.server.uploads.blobs import FolderBlobs
from analyzer.server.uploads.uploads import (
    Announced,
    Busy,
    DiskFull,
    Ended,
    TooLarge,
    Uploads,
    WrongContent,
    WrongOffset,
)
from fleet.services import Postgres

DAY_S = 86_400.0
_schemas = itertools.count()


class Clock:
    """A host's clock that somebody sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Home:
    """Where a state is kept: a file."""

    def __init__(self) -> None:
        self.opened: list[State] = []

    def open(self, layout: Layout) -> State:
        state = self._open(layout)
        state.watch(lambda lost: None)
        self.opened.append(state)
        return state

    def _open(self, layout: Layout) -> State:
        return SqliteState(layout.state)

    def lose(self, layout: Layout) -> None:
        """What the disk or the database may do."""
        for file in layout.data.glob("server.sqlite*"):
            file.unlink()

    def close(self) -> None:
        for state in self.opened:
            state.close()


class PostgresHome(Home):
    """A schema of its own in a PostgreSQL."""

    def __init__(self, postgres: Postgres) -> None:
        super().__init__()
        self._postgres = postgres
        self._schema = f"books_{next(_schemas)}"

    def _open(self, layout: Layout) -> State:
        from analyzer.server.db.postgres import PostgresState

        return PostgresState(self._postgres.catalog, self._schema, "lake.toml")

    def lose(self, layout: Layout) -> None:
        self._postgres.psql(f"DROP SCHEMA {self._schema} CASCADE")


class Books:
    """The parts over one folder; `again` is a server's next start, or another on the same lake."""

    def __init__(self, data: Path, home: Home, clock: Clock, **limits: int) -> None:
        self.home = home
        self.layout = Layout(data)
        self.layout.make()
        self.clock = clock
        self.state = home.open(self.layout)
        self.tokens = Tokens(self.state, clock)
        self.jobs = Jobs(self.state, clock)
        blobs = FolderBlobs(lambda team: self.layout.team(team) / "blobs")
        self.uploads = Uploads(self.layout, self.state, blobs, Limits(**limits), clock)

    def again(self) -> Books:
        return Books(self.layout.data, self.home, self.clock)

    def announce(self, content: bytes, team: str = "perf", size: int | None = None) -> dict:
        return self.uploads.announce(team, announced(content, size), None)

    def write(self, content: bytes, upload: dict, offset: int = 0) -> None:
        with self.uploads.writer(upload, offset) as stream:
            stream.write(content)

    def store(self, content: bytes, team: str = "perf") -> dict:
        upload = self.announce(content, team)
        with self.uploads.writer(upload, 0) as stream:
            stream.write(content)
            self.uploads.complete(upload)
        return upload


def announced(content: bytes, size: int | None = None) -> Announced:
    digest = hashlib.sha256(content).hexdigest()
    return Announced(digest, size or len(content), None, "name", None, {})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def home(request: pytest.FixtureRequest) -> Iterator[Home]:
    if request.param == "sqlite":
        found = Home()
    else:
        found = PostgresHome(request.getfixturevalue("postgres"))
    yield found
    found.close()


@pytest.fixture
def books(tmp_path: Path, home: Home, clock: Clock) -> Books:
    return Books(tmp_path / "data", home, clock)


# -- tokens


def test_a_token_is_found_by_its_text_alone(books: Books) -> None:
    text, row = books.tokens.create("perf", ["read"], "laptop")

    found = books.tokens.find(text)

    assert found is not None
    assert (found.team, found.token_id) == ("perf", row["id"])
    assert books.tokens.find(text[:-1]) is None
    assert books.tokens.find(text + "x") is None
    assert books.tokens.find("") is None


def test_an_expired_token_lets_nobody_in_and_neither_does_its_session(
    books: Books, clock: Clock
) -> None:
    text, _ = books.tokens.create("perf", ["read"], days=0.25)
    principal = books.tokens.find(text)
    assert principal is not None
    session = books.tokens.begin_session(principal)
    assert books.tokens.session(session) is not None

    clock.now += 0.25 * DAY_S

    assert books.tokens.find(text) is None
    assert books.tokens.session(session) is None


def test_a_revoked_token_ends_its_sessions(books: Books) -> None:
    text, row = books.tokens.create("perf", ["read"])
    principal = books.tokens.find(text)
    assert principal is not None
    session = books.tokens.begin_session(principal)

    assert books.tokens.revoke(row["id"], "perf")

    assert books.tokens.find(text) is None
    assert books.tokens.session(session) is None
    assert not books.tokens.revoke(row["id"], "other")


def test_a_clock_set_back_gives_no_revoked_token_its_life_again(books: Books, clock: Clock) -> None:
    text, row = books.tokens.create("perf", ["read"])
    books.tokens.revoke(row["id"])

    clock.now -= 10 * DAY_S

    assert books.tokens.find(text) is None


def test_admin_holds_the_other_scopes_and_nobody_else_does(books: Books) -> None:
    admin = books.tokens.find(books.tokens.create("perf", ["admin"])[0])
    reader = books.tokens.find(books.tokens.create("perf", ["read"])[0])
    assert admin is not None
    assert reader is not None

    assert [admin.may(s) for s in ("upload", "read", "admin")] == [True] * 3
    assert [reader.may(s) for s in ("upload", "read", "admin")] == [False, True, False]


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-x", "x" * 64, "t\n", "ü", "."])
def test_a_team_is_a_plain_folder_name(name: str) -> None:
    with pytest.raises(AnalyzerError, match="no name for a team"):
        check_team(name)


# -- jobs


def queue(books: Books, team: str, sha256: str = "0" * 64) -> str:
    with books.state.transaction() as connection:
        return jobs_module.insert(connection, team, sha256, None, {}, books.clock())


def finish(books: Books, run_ids: list[str], error: str | None = None) -> None:
    job = books.jobs.claim()
    assert job is not None
    assert books.jobs.finish(job, run_ids, [], error)


def test_jobs_go_in_the_order_they_came_whatever_the_clock_says(books: Books, clock: Clock) -> None:
    first = queue(books, "perf")
    clock.now -= 30 * DAY_S
    second = queue(books, "perf")
    clock.now += 300 * DAY_S
    third = queue(books, "perf")

    claimed = [books.jobs.claim() for _ in range(4)]

    assert [job["id"] if job else None for job in claimed] == [first, second, third, None]


def test_a_teams_many_jobs_do_not_hold_up_another_team(books: Books) -> None:
    many = [queue(books, "busy") for _ in range(5)]
    one = queue(books, "calm")

    claimed = [job["id"] for _ in range(6) if (job := books.jobs.claim())]

    assert claimed.index(one) <= 1
    assert sorted(claimed) == sorted([*many, one])


def test_what_ran_when_the_server_ended_is_queued_again(books: Books) -> None:
    job_id = queue(books, "perf")
    assert books.jobs.claim()

    again = books.again()

    assert again.jobs.requeue_lost() == 1
    job = again.jobs.claim()
    assert job is not None
    assert (job["id"], job["attempts"]) == (job_id, 2)


def test_a_job_that_ends_the_server_again_and_again_fails_and_can_be_tried_again(
    books: Books,
) -> None:
    job_id = queue(books, "perf")
    other = queue(books, "perf")
    for _ in range(9):
        assert books.jobs.claim()
        assert books.jobs.requeue_lost() == 1
    assert books.jobs.claim()

    assert books.jobs.requeue_lost() == 0
    job = books.jobs.get("perf", job_id)
    assert job is not None
    assert job["state"] == "failed"
    assert "ended 10 times" in job["error"]
    following = books.jobs.claim()
    assert following is not None
    assert following["id"] == other
    assert books.jobs.retry("perf", job_id) is not None


def test_what_a_server_says_of_a_job_that_it_lost_is_not_heard(books: Books) -> None:
    queue(books, "perf")
    lost = books.jobs.claim()
    assert lost is not None
    books.jobs.requeue_lost()
    now = books.again().jobs
    taken = now.claim()
    assert taken is not None

    books.jobs.requeue(lost)
    assert not books.jobs.finish(lost, ["wrong"], [])

    job = now.get("perf", lost["id"])
    assert job is not None
    assert (job["state"], job["run_ids"]) == ("running", [])
    assert now.finish(taken, ["right"], [])
    assert not now.finish(taken, ["again"], [])


def test_only_a_failed_job_of_the_team_is_tried_again(books: Books) -> None:
    job_id = queue(books, "perf")
    assert books.jobs.retry("perf", job_id) is None
    finish(books, [], "why")

    assert books.jobs.retry("other", job_id) is None
    again = books.jobs.retry("perf", job_id)

    assert again is not None
    assert (again["state"], again["error"], again["attempts"]) == ("queued", None, 0)


def test_a_deleted_run_is_in_no_job(books: Books) -> None:
    job_id = queue(books, "perf")
    finish(books, ["a", "b"])
    assert (books.jobs.of_run("perf", "a") or {})["id"] == job_id

    books.jobs.forget_run("other", "a")
    books.jobs.forget_run("perf", "a")

    job = books.jobs.get("perf", job_id)
    assert job is not None
    assert job["run_ids"] == ["b"]
    assert books.jobs.of_run("perf", "a") is None
    assert books.jobs.of_run("other", "b") is None


def test_a_transaction_that_fails_leaves_nothing(books: Books) -> None:
    def fail() -> None:
        with books.state.transaction() as connection:
            jobs_module.insert(connection, "perf", "0" * 64, None, {}, 0.0)
            connection.execute("INSERT INTO nowhere VALUES (1)")

    errors: tuple[type[Exception], ...] = (sqlite3.OperationalError,)
    if isinstance(books.home, PostgresHome):
        import psycopg

        errors = (psycopg.errors.UndefinedTable,)
    with pytest.raises(errors):
        fail()

    assert books.jobs.list() == []


# -- uploads


def test_an_upload_goes_on_where_the_disk_is(books: Books) -> None:
    upload = books.announce(b"abcdef")
    books.write(b"abc", upload)

    again = books.again()

    known = again.announce(b"abcdef")
    assert (known["id"], known["offset"]) == (upload["id"], 3)
    with again.uploads.writer(known, 3) as stream:
        stream.write(b"def")
        again.uploads.complete(known)
    assert again.layout.blob("perf", upload["sha256"]).read_bytes() == b"abcdef"
    assert again.announce(b"abcdef")["state"] == "stored"
    assert again.jobs.counts()["queued"] == 1


def test_a_piece_at_the_wrong_place_is_refused(books: Books) -> None:
    upload = books.announce(b"abcdef")
    books.write(b"abc", upload)

    for offset in (0, 2, 4):
        with pytest.raises(WrongOffset, match="ends at 3"):
            books.write(b"x", upload, offset)


def test_two_requests_do_not_write_one_upload(books: Books) -> None:
    upload = books.announce(b"abcdef")
    with books.uploads.writer(upload, 0), pytest.raises(Busy):
        books.write(b"x", upload)
    with books.uploads.writer(upload, 0), pytest.raises(Busy):
        books.uploads.drop("perf", upload["id"])
    books.write(b"abc", upload)


def test_an_upload_that_ended_meanwhile_is_not_begun_again(books: Books) -> None:
    upload = books.store(b"abcdef")

    with pytest.raises(Ended):
        books.write(b"x", {**upload, "state": "incomplete"})
    assert not books.layout.partial("perf", upload["id"]).exists()


def test_wrong_content_is_dropped_and_the_upload_begins_anew(books: Books) -> None:
    upload = books.announce(b"abcdef")
    books.write(b"abcdeX", upload)

    with pytest.raises(WrongContent, match="Send it again"):
        books.uploads.complete(upload)

    assert books.announce(b"abcdef")["offset"] == 0
    assert books.jobs.list() == []


def test_a_size_announced_wrongly_can_be_corrected_until_it_is_stored(books: Books) -> None:
    books.announce(b"abcdef", size=3)

    assert books.announce(b"abcdef")["size"] == 6
    books.store(b"abcdef")
    with pytest.raises(WrongContent, match="check the hash"):
        books.announce(b"abcdef", size=3)


def test_the_same_content_of_two_teams_is_two_uploads(books: Books) -> None:
    books.store(b"abcdef")

    assert books.announce(b"abcdef", team="other")["offset"] == 0
    assert books.uploads.find("other", announced(b"abcdef").sha256)
    assert books.uploads.find("third", announced(b"abcdef").sha256) is None


def test_too_much_is_refused_before_it_comes(tmp_path: Path, home: Home, clock: Clock) -> None:
    small = Books(tmp_path / "small", home, clock, upload_bytes=5)
    with pytest.raises(TooLarge):
        small.announce(b"abcdef")
    crowded = Books(tmp_path / "crowded", home, clock, reserve_bytes=1 << 60)
    with pytest.raises(DiskFull):
        crowded.announce(b"abcdef")


def test_a_crash_between_the_disk_and_the_books_ends_in_a_stored_upload(books: Books) -> None:
    """The content was checked before it got its name: that is all that is needed."""
    upload = books.announce(b"abcdef")
    blob = books.layout.blob("perf", upload["sha256"])
    blob.write_bytes(b"abcdef")  # renamed, then killed

    again = books.again()

    assert again.uploads.recover()["completed"] == 1
    assert again.announce(b"abcdef")["state"] == "stored"
    assert again.jobs.counts()["queued"] == 1
    assert again.uploads.recover() == {"completed": 0, "adopted": 0, "dropped": 0}


def test_a_crash_before_the_books_is_mended_by_whoever_asks_next(books: Books) -> None:
    """Also without a new start: the state was away when the last byte had come."""
    upload = books.announce(b"abcdef")
    books.layout.blob("perf", upload["sha256"]).write_bytes(b"abcdef")

    known = books.uploads.find("perf", upload["id"])

    assert known is not None
    assert (known["state"], known["offset"]) == ("stored", 6)
    assert books.uploads.find("perf", upload["id"]) == known
    assert books.jobs.counts()["queued"] == 1
    with pytest.raises(Ended):
        books.write(b"abcdef", upload)


def test_an_upload_that_was_completed_meanwhile_is_not_given_up(books: Books) -> None:
    upload = books.store(b"abcdef")
    other = books.announce(b"uvwxyz")
    books.write(b"uvw", other)

    books.uploads.give_up("perf", upload["id"])
    books.uploads.give_up("perf", other["id"])

    assert books.announce(b"abcdef")["state"] == "stored"
    assert books.uploads.find("perf", other["id"]) is None
    assert books.announce(b"uvwxyz")["offset"] == 0


def test_originals_outlive_the_loss_of_the_books(books: Books) -> None:
    upload = books.store(b"abcdef")
    books.home.lose(books.layout)
    stranger = books.layout.blob("perf", "1" * 64)
    stranger.write_bytes(b"not that hash")

    again = books.again()

    assert again.uploads.recover()["adopted"] == 1
    assert again.layout.blob("perf", upload["sha256"]).read_bytes() == b"abcdef"
    assert again.jobs.counts()["queued"] == 1
    assert stranger.exists(), "nothing in there is deleted for being unknown"


def test_a_start_drops_what_nobody_goes_on_with_and_keeps_the_rest(
    books: Books, clock: Clock
) -> None:
    kept = books.announce(b"abcdef")
    books.write(b"abc", kept)
    (books.layout.team("perf") / "uploads" / ("0" * 32)).write_bytes(b"of no upload")
    (books.layout.work("perf") / "left").mkdir()
    clock.now = books.layout.partial("perf", kept["id"]).stat().st_mtime

    books.again().uploads.recover()
    assert [p.name for p in (books.layout.team("perf") / "uploads").iterdir()] == [kept["id"]]
    assert list(books.layout.work("perf").iterdir()) == []

    clock.now += 15 * DAY_S
    books.again().uploads.recover()
    assert list((books.layout.team("perf") / "uploads").iterdir()) == []
    assert books.announce(b"abcdef")["offset"] == 0


def test_a_clock_that_jumps_drops_nothing_that_was_acknowledged(books: Books, clock: Clock) -> None:
    upload = books.store(b"abcdef")

    for jump in (-4000 * DAY_S, 9000 * DAY_S):
        clock.now += jump
        books.again().uploads.recover()

    assert books.layout.blob("perf", upload["sha256"]).exists()
    assert books.announce(b"abcdef")["state"] == "stored"


def test_an_original_that_is_gone_is_taken_again(books: Books) -> None:
    upload = books.store(b"abcdef")
    books.layout.blob("perf", upload["sha256"]).unlink()

    assert books.announce(b"abcdef")["state"] == "incomplete"


@pytest.mark.parametrize("reference", ["", "..", "../../x", "0" * 31, "F" * 64, "%", "0" * 65])
def test_only_an_id_or_a_hash_names_an_upload(books: Books, reference: str) -> None:
    assert books.uploads.find("perf", reference) is None
    with pytest.raises(AnalyzerError):
        books.layout.blob("perf", reference)
    with pytest.raises(AnalyzerError):
        books.layout.partial("perf", reference)
