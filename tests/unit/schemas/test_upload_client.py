"""An upload ends with the exact bytes and the server's word for it, or says in one line why not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tus_server
from schemas.endpoint import parse_endpoint
from schemas.errors import UploadError
from schemas.packing import Archive, open_archive
from schemas.upload_client import GaveUp, Patience, Refused, Stored, Uploader
from tus_server import Fault, TusServer

CONTENT = bytes(range(256)) * 40


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def now(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def running_server() -> Iterator[TusServer]:
    with tus_server.running() as server:
        yield server


@pytest.fixture
def server(running_server: TusServer) -> TusServer:
    running_server.reset()
    return running_server


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    path = tmp_path / "t.json"
    path.write_bytes(CONTENT)
    return open_archive(path)


def uploader(url: str, time: Time, patience_s: float = 300.0, piece_bytes: int = 1000) -> Uploader:
    return Uploader(
        parse_endpoint(url, "secret"),
        patience_s,
        piece_bytes=piece_bytes,
        sleep=time.sleep,
        now=time.now,
        dice=lambda: 0.0,
    )


def send(server: TusServer, archive: Archive, time: Time, patience_s: float = 300.0) -> Stored:
    return uploader(server.url, time, patience_s).send(archive, archive.sha256(), {})


def test_what_is_sent_is_stored_under_its_hash(
    server: TusServer, archive: Archive, time: Time
) -> None:
    stored = send(server, archive, time)

    assert server.stored == {hashlib.sha256(CONTENT).hexdigest(): CONTENT}
    assert stored == Stored(hashlib.sha256(CONTENT).hexdigest(), [], len(CONTENT))
    assert time.slept == []
    assert server.tokens == {"Bearer secret"}


def test_it_is_declared_with_size_format_and_name(
    server: TusServer, archive: Archive, time: Time
) -> None:
    send(server, archive, time)

    assert server.declared == [
        {
            "sha256": archive.sha256(),
            "size": len(CONTENT),
            "format": "trace.json",
            "name": "t",
            "host": None,
            "metadata": {},
        }
    ]


def test_a_name_is_declared_as_one_printable_line(
    server: TusServer, archive: Archive, time: Time
) -> None:
    odd = replace(archive, name="a\nb\x00" + "c" * 300, host=" \ud800h\t")

    uploader(server.url, time).send(odd, odd.sha256(), {})

    assert server.declared[0]["name"] == "a b " + "c" * 196
    assert server.declared[0]["host"] == "h"


def test_what_the_server_has_is_not_sent_again(
    server: TusServer, archive: Archive, time: Time
) -> None:
    send(server, archive, time)
    before = server.counts["PATCH"]

    assert send(server, archive, time) == Stored(archive.sha256(), ["r1"], 0)
    assert server.counts["PATCH"] == before


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cuts=st.lists(st.integers(0, 2500), max_size=8),
    size=st.integers(1, 6000),
    piece=st.integers(1, 8000),
    lost=st.lists(st.sampled_from(["POST", "PATCH", "HEAD"]), max_size=4),
)
def test_however_often_and_wherever_it_is_cut_the_bytes_are_exact(
    running_server: TusServer,
    tmp_path: Path,
    cuts: list[int],
    size: int,
    piece: int,
    lost: list[str],
) -> None:
    running_server.reset()
    path = tmp_path / "cut.json"
    content = CONTENT[:size]
    path.write_bytes(content)
    running_server.faults = [Fault("PATCH", keep=keep) for keep in cuts]
    running_server.faults += [
        Fault(method, lose=True) if method != "HEAD" else Fault("HEAD", status=503)
        for method in lost
    ]
    archive, time = open_archive(path), Time()

    piece = max(piece, size // 40)
    stored = uploader(running_server.url, time, 1e6, piece).send(archive, archive.sha256(), {})

    assert running_server.stored == {stored.sha256: content}
    assert stored.sha256 == hashlib.sha256(content).hexdigest()


def test_after_a_cut_only_the_rest_is_sent(server: TusServer, archive: Archive, time: Time) -> None:
    server.faults = [Fault("PATCH", keep=700)]

    assert send(server, archive, time).sent_bytes == len(CONTENT) - 700


def test_an_answer_that_is_lost_after_the_last_piece_is_asked_for_again(
    server: TusServer, archive: Archive, time: Time
) -> None:
    pieces = -(-len(CONTENT) // 1000)
    server.faults = [Fault("PATCH") for _ in range(pieces - 1)] + [Fault("PATCH", lose=True)]

    assert send(server, archive, time).sha256 == archive.sha256()
    assert server.counts["PATCH"] == pieces
    assert server.counts["POST"] == 2


def test_what_asks_for_work_is_declared_once_however_often_the_upload_is(
    server: TusServer, archive: Archive, time: Time
) -> None:
    server.faults = [Fault("PATCH"), Fault("PATCH", forget=True)]

    uploader(server.url, time).send(archive, archive.sha256(), {"file": "t"}, {"again": True})

    assert [declared["metadata"] for declared in server.declared] == [
        {"file": "t", "again": True},
        {"file": "t"},
    ]


def test_an_upload_that_the_server_dropped_is_declared_again(
    server: TusServer, archive: Archive, time: Time
) -> None:
    server.faults = [Fault("PATCH"), Fault("PATCH", forget=True)]

    send(server, archive, time)

    assert server.stored == {archive.sha256(): CONTENT}
    assert server.counts["POST"] == 2


def test_a_wrong_offset_is_asked_for(server: TusServer, archive: Archive, time: Time) -> None:
    server.faults = [Fault("PATCH", status=409)]

    send(server, archive, time)

    assert server.stored == {archive.sha256(): CONTENT}
    assert server.counts["HEAD"] == 1


@pytest.mark.parametrize("status", [408, 423, 425, 429, 500, 502, 503, 507])
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_passing_trouble_is_tried_again(
    server: TusServer, archive: Archive, time: Time, method: str, status: int
) -> None:
    server.faults = [Fault(method, status=status)] * 3

    send(server, archive, time)

    assert server.stored == {archive.sha256(): CONTENT}
    assert time.slept == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("status", [429, 503])
def test_it_comes_back_no_earlier_than_it_was_asked_to(
    server: TusServer, archive: Archive, time: Time, status: int
) -> None:
    server.faults = [Fault("PATCH", status=status, headers={"Retry-After": "11"})]

    send(server, archive, time)

    assert time.slept == [11.0]


def test_it_does_not_wait_for_an_invitation_that_comes_too_late(
    server: TusServer, archive: Archive, time: Time
) -> None:
    server.faults = [Fault("POST", status=503, headers={"Retry-After": "3600"})]

    with pytest.raises(GaveUp, match="come back in 3600 s"):
        send(server, archive, time)
    assert time.slept == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "told to say 400"),
        (401, "HOSTBOUND_TOKEN"),
        (403, "may upload"),
        (404, "check it"),
        (413, "record fewer steps"),
        (415, "told to say 415"),
        (301, "sends on"),
    ],
)
def test_what_will_not_pass_ends_at_once_with_the_reason(
    server: TusServer, archive: Archive, time: Time, status: int, said: str
) -> None:
    server.faults = [Fault("POST", status=status)]

    with pytest.raises(Refused, match=said) as raised:
        send(server, archive, time)
    assert len(server.requests) == 1
    assert "secret" not in str(raised.value)


def test_a_refusal_in_the_middle_ends_it(server: TusServer, archive: Archive, time: Time) -> None:
    server.faults = [Fault("PATCH"), Fault("PATCH", status=413)]

    with pytest.raises(Refused, match="413"):
        send(server, archive, time)


def test_a_refusal_that_comes_before_the_body_was_read_is_seen(
    server: TusServer, tmp_path: Path, time: Time
) -> None:
    """The server answers and hangs up while megabytes are still on their way."""
    path = tmp_path / "large.json"
    path.write_bytes(b"x" * 20_000_000)
    server.faults = [Fault("PATCH", status=403)]
    archive = open_archive(path)

    with pytest.raises(Refused, match="403"):
        uploader(server.url, time, 0.0, 1 << 30).send(archive, archive.sha256(), {})
    assert server.stored == {}


def test_a_mismatch_is_sent_once_more(server: TusServer, archive: Archive, time: Time) -> None:
    server.reject_hashes = 1

    send(server, archive, time)

    assert server.stored == {archive.sha256(): CONTENT}


def test_a_second_mismatch_is_final(server: TusServer, archive: Archive, time: Time) -> None:
    server.reject_hashes = 2

    with pytest.raises(Refused, match="twice: the hash is another"):
        send(server, archive, time)
    assert server.counts["POST"] == 2


def test_a_file_that_changes_on_the_way_is_told_and_not_stored(
    server: TusServer, archive: Archive, time: Time
) -> None:
    digest = archive.sha256()
    archive.path.write_bytes(CONTENT[::-1])

    with pytest.raises(UploadError, match="changed while it was sent"):
        uploader(server.url, time).send(archive, digest, {})
    assert server.stored == {}


@pytest.mark.parametrize("faults", [[Fault("PATCH", lie="0" * 64)], [Fault("POST", lie="0" * 64)]])
def test_another_hash_than_the_sent_one_is_no_acknowledgement(
    server: TusServer, archive: Archive, time: Time, faults: list[Fault]
) -> None:
    if faults[0].method == "POST":
        server.stored[archive.sha256()] = CONTENT
    server.faults = [Fault("PATCH") for _ in range(10)] + faults

    with pytest.raises(Refused, match="acknowledged '0000"):
        send(server, archive, time)


def test_without_an_acknowledgement_the_server_is_asked_what_it_holds(
    server: TusServer, archive: Archive, time: Time
) -> None:
    server.faults = [Fault("PATCH", silent=True) for _ in range(11)]

    assert send(server, archive, time).run_ids == ["r1"]


def test_a_server_that_takes_nothing_is_given_up(
    server: TusServer, archive: Archive, time: Time
) -> None:
    server.faults = [Fault("PATCH", keep=0) for _ in range(500)]

    with pytest.raises(GaveUp):
        send(server, archive, time, patience_s=60.0)
    assert 60.0 <= time.now_s <= 61.0


def test_patience_starts_anew_with_every_byte_that_gets_through(
    server: TusServer, archive: Archive, time: Time
) -> None:
    server.faults = [Fault("PATCH", keep=keep) for keep in [0, 0, 0, 10] * 20]

    send(server, archive, time, patience_s=5.0)

    assert server.stored == {archive.sha256(): CONTENT}
    assert time.now_s > 50


def test_nobody_there_is_given_up_when_patience_ends(archive: Archive, time: Time) -> None:
    with pytest.raises(GaveUp, match="refused"):
        uploader("http://127.0.0.1:1", time, 60.0).send(archive, archive.sha256(), {})
    assert time.slept[:4] == [0.5, 1.0, 2.0, 4.0]
    assert time.now_s == pytest.approx(60.0)


def test_without_patience_there_is_one_try(archive: Archive, time: Time) -> None:
    with pytest.raises(GaveUp):
        uploader("http://127.0.0.1:1", time, 0.0).send(archive, archive.sha256(), {})
    assert time.slept == []


def test_what_is_no_hostbound_server_is_told(
    server: TusServer, archive: Archive, time: Time
) -> None:
    server.faults = [Fault("POST", status=200)]

    with pytest.raises(Refused, match="not one of a Hostbound server"):
        send(server, archive, time)


@given(dice=st.floats(0, 1), tries=st.integers(1, 40))
def test_waits_double_up_to_half_a_minute_and_are_shortened_by_half_at_most(
    dice: float, tries: int
) -> None:
    time = Time()
    patience = Patience(1e9, time.sleep, time.now, lambda: dice)
    for _ in range(tries):
        patience.wait("trouble")

    for number, slept in enumerate(time.slept):
        longest = min(30.0, 0.5 * 2**number)
        assert longest / 2 <= slept <= longest


def test_a_conversion_is_waited_for(server: TusServer, time: Time) -> None:
    server.states = [
        {"state": "queued", "run_ids": []},
        {"state": "running", "run_ids": []},
        {"state": "done", "run_ids": ["r1", "r2"]},
    ]
    found = uploader(server.url, time).wait("ab")

    assert (found.state, found.run_ids) == ("done", ["r1", "r2"])
    assert server.requests[-1] == ("GET", "/api/v1/uploads/ab")


def test_a_conversion_that_failed_says_why(server: TusServer, time: Time) -> None:
    server.states = [{"state": "failed", "error": "no trace in it", "run_ids": []}]

    assert uploader(server.url, time).wait("ab").error == "no trace in it"


def test_a_conversion_may_take_longer_than_patience(server: TusServer, time: Time) -> None:
    server.states = [{"state": "running"}] * 100 + [{"state": "done"}]

    assert uploader(server.url, time, 10.0).wait("ab").state == "done"
    assert time.now_s > 100


def test_a_server_that_names_another_server_gets_no_token_there(
    server: TusServer, archive: Archive, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tus_server, "UPLOADS", "http://198.51.100.1/api/v1/uploads")

    with pytest.raises(UploadError, match=r"sends on to http://198\.51\.100\.1"):
        send(server, archive, time)
    assert server.counts["PATCH"] == 0
