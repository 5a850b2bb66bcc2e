"""Clients that send a byte now and then hold nothing for long; others are served meanwhile."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.team_server import PATIENCE_S, TeamClient, TeamServer, sha256, trace_bytes, wait_for

pytestmark = pytest.mark.xdist_group("server")

# A client that is not to be cut does something ten times within it, also on a busy machine.
SLOW_S = 3.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    server = TeamServer(tmp_path_factory.mktemp("slow") / "data", "--slow-seconds", str(SLOW_S))
    yield server.start()
    server.stop()


@pytest.fixture
def client(server: TeamServer) -> Iterator[TeamClient]:
    with server.client() as client:
        yield client


class Dribble:
    """A connection over which a request goes at once to some point and a byte at a time then."""

    def __init__(self, server: TeamServer) -> None:
        self.host = urlsplit(server.url).netloc
        address, _, port = self.host.partition(":")
        self.socket = socket.create_connection((address, int(port)), timeout=0.1)

    def begin(self, head: str, body: bytes = b"") -> None:
        text = head.replace("\n", "\r\n").replace("HERE", self.host)
        self.socket.sendall(text.encode() + body)

    def is_cut(self) -> bool:
        """Whether the server has closed its end, by what the system says of it."""
        ours = f":{self.socket.getsockname()[1]:04X}"
        theirs = f":{self.socket.getpeername()[1]:04X}"
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, state, *_ = line.split()
            if local.endswith(theirs) and remote.endswith(ours):
                return state != "01"  # established
        return True

    def until_it_is_cut(self, client: TeamClient | None = None) -> bytes:
        """Send on until the server hangs up; what it has said. `client` is answered meanwhile."""
        said = b""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # what it has said before it hung up is still read
                self.socket.sendall(b"x")
            try:
                if not (piece := self.socket.recv(4096)):
                    return said
                said += piece
            except TimeoutError:
                pass  # it says nothing yet
            except OSError:
                return said
            if client is not None:
                assert client.get("/api/v1/runs").status_code == 200
        raise AssertionError(f"not cut within {PATIENCE_S:.0f} s; it said {said!r}")


def test_headers_that_never_end_are_cut_while_others_are_served(
    server: TeamServer, client: TeamClient
) -> None:
    slow = [Dribble(server) for _ in range(20)]
    for one in slow:
        one.begin("GET /api/v1/runs HTTP/1.1\nHost: HERE\nX-Slow: ")

    began = time.monotonic()
    for one in slow:
        assert one.until_it_is_cut(client).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began > SLOW_S / 2


def test_a_connection_that_sends_nothing_is_closed(server: TeamServer) -> None:
    silent = Dribble(server)
    silent.socket.settimeout(PATIENCE_S)
    assert silent.socket.recv(1) == b""


def test_the_second_request_of_a_connection_has_no_more_time_than_the_first(
    server: TeamServer,
) -> None:
    slow = Dribble(server)
    slow.begin("GET /healthz HTTP/1.1\nHost: HERE\n\n")
    time.sleep(0.3 * SLOW_S)
    slow.begin("GET /healthz HTTP/1.1\nX-Slow: ")

    said = slow.until_it_is_cut()

    assert said.count(b"HTTP/1.1 200") == 1
    assert b"HTTP/1.1 408 " in said


def test_a_body_that_never_ends_is_cut(server: TeamServer, client: TeamClient) -> None:
    slow = Dribble(server)
    slow.begin(
        "POST /api/v1/uploads HTTP/1.1\nHost: HERE\nContent-Type: application/json\n"
        "Content-Length: 1000\n\n{"
    )
    said = slow.until_it_is_cut(client)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"did not come in time" in said


def test_a_body_that_goes_on_after_its_answer_is_cut(server: TeamServer) -> None:
    slow = Dribble(server)
    slow.begin(
        f"PATCH /api/v1/uploads/{'0' * 32} HTTP/1.1\nHost: HERE\nContent-Length: 100000\n"
        "Upload-Offset: 0\nContent-Type: application/offset+octet-stream\n\n"
    )
    assert slow.until_it_is_cut().startswith(b"HTTP/1.1 404 ")


def test_an_upload_by_the_byte_is_cut_and_keeps_what_came(
    server: TeamServer, client: TeamClient
) -> None:
    content = trace_bytes(seed=1)
    url = client.announce(content).json()["url"]
    slow = Dribble(server)
    slow.begin(
        f"PATCH {url} HTTP/1.1\nHost: HERE\nContent-Length: {len(content)}\nUpload-Offset: 0\n"
        "Content-Type: application/offset+octet-stream\n\n",
        content[:100],
    )
    assert slow.until_it_is_cut(client).startswith(b"HTTP/1.1 408 ")
    assert int(client.head(url).headers["Upload-Offset"]) >= 100


def test_an_answer_that_nobody_reads_is_cut_and_one_that_is_read_in_pauses_is_not(
    server: TeamServer, client: TeamClient
) -> None:
    assert client.upload(trace_bytes(seed=3))["state"] == "done"
    size = 30_000_000
    body = f'{{"sql": "SELECT repeat(chr(120), {size}) AS x"}}'
    asked = (
        "POST /api/v1/sql HTTP/1.1\nHost: HERE\nContent-Type: application/json\n"
        f"Connection: close\nContent-Length: {len(body)}\n\n"
    )

    def answered() -> Dribble | None:
        one = Dribble(server)
        one.socket.settimeout(PATIENCE_S)
        one.begin(asked, body.encode())
        # On a busy machine the server may take the sender itself for slow: then ask again.
        return one if one.socket.recv(12) == b"HTTP/1.1 200" else None

    asleep, leisurely = (wait_for(answered, "an answer") for _ in range(2))
    came = 0
    while not asleep.is_cut():
        time.sleep(SLOW_S / 30)
        came += len(leisurely.socket.recv(1 << 16))
        assert came < size / 2, "nothing was cut in all the time"
    while piece := leisurely.socket.recv(1 << 20):
        came += len(piece)
    assert came > size

    came = 0
    with contextlib.suppress(ConnectionResetError):
        while piece := asleep.socket.recv(1 << 20):
            came += len(piece)
    assert came < size


PIECES, PAUSE_S = 14, 0.1 * SLOW_S


def test_an_upload_that_pauses_and_a_question_that_takes_long_are_not_cut(
    server: TeamServer, client: TeamClient
) -> None:
    content = trace_bytes(launches=100, seed=2)
    url = client.announce(content).json()["url"]

    def pieces() -> Iterator[bytes]:
        size = len(content) // PIECES + 1
        for start in range(0, len(content), size):
            time.sleep(PAUSE_S)
            yield content[start : start + size]

    assert PIECES * PAUSE_S > SLOW_S
    assert len(content) / PIECES > 2 * 1024 * PAUSE_S
    headers = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    sent = client.patch(url, content=pieces(), headers=headers)
    assert sent.status_code == 204, sent.text
    assert sent.headers["Hostbound-Sha256"] == sha256(content)
    client.job_of(content)

    long = {"sql": "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"}
    answer = client.post("/api/v1/sql", json={**long, "time_limit_s": 2 * SLOW_S})
    assert "time" in answer.json()["detail"] or "stopped" in answer.json()["detail"]
