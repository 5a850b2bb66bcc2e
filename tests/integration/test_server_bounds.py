"""What many clients at once can hold of a server: threads, connections, memory, its log."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from support.team_server import TeamServer, make_token, trace_bytes

pytestmark = [pytest.mark.xdist_group("server"), pytest.mark.timeout(900)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TeamServer]:
    server = TeamServer(tmp_path / "data")
    yield server
    server.stop()


def test_methods_that_clients_make_up_are_one_label(server: TeamServer) -> None:
    server.start()
    with server.client() as client:
        for number in range(50):
            client.request(f"METHOD{number}", "/api/v1/runs")
        text = client.get("/metrics").text

    assert "METHOD" not in text
    assert 'method="other"' in text


def test_readers_of_a_locked_store_hold_up_neither_health_nor_another_team(
    server: TeamServer,
) -> None:
    """More of them than there are threads; the store is another process's until it lets go."""
    locked, free = make_token(server.data, "locked"), make_token(server.data, "free")
    server.start()
    with server.client(locked) as one, server.client(free) as other:
        one.upload(trace_bytes())
        other.upload(trace_bytes())
    answers: list[int] = []

    def read() -> None:
        with server.client(locked) as client:
            answers.append(client.get("/api/v1/runs").status_code)

    readers = [threading.Thread(target=read) for _ in range(60)]
    holder = duckdb.connect(str(server.store("locked")))
    try:
        for reader in readers:
            reader.start()
        with server.client(free) as client:
            for path in ("/healthz", "/readyz", "/api/v1/runs", "/api/v1/jobs"):
                assert client.get(path).status_code == 200
        assert answers == [], "they were answered only after the readers"
    finally:
        holder.close()
    for reader in readers:
        reader.join()
    assert set(answers) <= {200, 503}


def test_idle_connections_beyond_what_there_is_room_for_are_ended_and_others_served(
    server: TeamServer,
) -> None:
    server.start(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)))
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    idle = [socket.create_connection(address) for _ in range(400)]
    try:
        with server.client() as client:
            for _ in range(20):
                assert client.get("/api/v1/runs").status_code == 200
            assert client.upload(trace_bytes())["state"] == "done"
        assert not [line for line in server.log if line["event"] == "library"]
    finally:
        for one in idle:
            one.close()
