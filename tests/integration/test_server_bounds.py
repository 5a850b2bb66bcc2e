"""What many clients at once can hold of a server: threads, connections, memory, its log."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import httpx
import pyarrow as pa
import pytest

from support.team_server import TeamServer, make_token, trace_bytes, wait_for

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


# -- SQL


ENDLESS = {"sql": "SELECT sum(a.range * b.range) FROM range(100000000) a, range(1000000) b"}


def test_a_wide_answer_is_refused_before_it_is_large(server: TeamServer) -> None:
    """750 MB of "true" of a few MB in the engine."""
    server.start()
    with server.client() as client:
        client.upload(trace_bytes())
        wide = f"SELECT {', '.join(['true'] * 1500)} FROM range(100000)"
        answer = client.post("/api/v1/sql", json={"sql": wide, "limit": 100_000})
        assert answer.status_code == 422
        assert "larger than 64 MiB" in answer.json()["detail"]


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
def test_rows_come_in_the_form_that_is_asked_for(server: TeamServer, form: str) -> None:
    server.start()
    body = {"sql": "SELECT range AS a, 'x,y' AS b FROM range(3)", "limit": 2}
    with server.client() as client:
        client.upload(trace_bytes())
        answer = client.post("/api/v1/sql", params={"format": form}, json=body)
    assert answer.headers["Hostbound-Truncated"] == "true"
    if form == "json":
        assert answer.json() == {
            "columns": ["a", "b"],
            "types": ["int64", "string"],
            "rows": [[0, "x,y"], [1, "x,y"]],
            "truncated": True,
        }
    elif form == "csv":
        assert answer.text == 'a,b\n0,"x,y"\n1,"x,y"\n'
    else:
        table = pa.ipc.open_stream(answer.content).read_all()
        assert table.to_pylist() == [{"a": 0, "b": "x,y"}, {"a": 1, "b": "x,y"}]


def test_a_statement_whose_client_has_gone_is_stopped(server: TeamServer) -> None:
    server.start("--sql-seconds", "3600")
    with server.client() as client:
        client.upload(trace_bytes())

        def running() -> bool:
            return "hostbound_sql_running 1.0" in client.get("/metrics").text

        with server.client(timeout=2.0) as impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post("/api/v1/sql", json=ENDLESS)
        wait_for(lambda: not running(), "the end of the statement")


def test_the_last_place_for_sql_is_another_teams(server: TeamServer) -> None:
    tokens = [make_token(server.data, team) for team in ("greedy", "modest")]
    server.start("--sql-seconds", "3600", "--sql-at-once", "2")
    with server.client(tokens[0]) as greedy, server.client(tokens[1]) as modest:
        for client in (greedy, modest):
            client.upload(trace_bytes())
        with ThreadPoolExecutor() as pool, server.client(tokens[0]) as waits:
            pool.submit(waits.post, "/api/v1/sql", json=ENDLESS)
            wait_for(
                lambda: "hostbound_sql_running 1.0" in greedy.get("/metrics").text, "a statement"
            )
            asked = {"sql": "SELECT count(*) FROM runs"}
            assert greedy.post("/api/v1/sql", json=asked).status_code == 429
            assert modest.post("/api/v1/sql", json=asked).json()["rows"] == [[1]]
            server.kill(with_workers=True)
