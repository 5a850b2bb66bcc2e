"""What a team may keep and have queued: the next upload is told so; no other team is concerned."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from schemas.endpoint import parse_endpoint
from schemas.packing import open_archive
from schemas.upload_client import GaveUp, Uploader
from support.team_server import TeamServer, analyzer, make_token, trace_bytes, wait_for

pytestmark = pytest.mark.xdist_group("server")


def test_a_team_that_is_full_is_told_what_to_do_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    first, second = trace_bytes(seed=1), trace_bytes(seed=2)
    perf, other = make_token(data, "perf"), make_token(data, "other")
    server = TeamServer(data, "--team-bytes", str(len(first) + len(second) - 1)).start()
    try:
        with server.client(perf) as client, server.client(other) as others:
            (run_id,) = client.upload(first)["run_ids"]
            refused = client.announce(second)
            assert refused.status_code == 507
            assert "--team-bytes" in refused.json()["detail"]
            assert "delete runs" in refused.json()["detail"]
            assert client.announce(first).status_code == 200  # what is here stays known
            assert others.upload(second)["state"] == "done"

            assert client.get("/api/v1/usage").json() == {
                "team": "perf",
                "stored_bytes": len(first),
                "stored_bytes_allowed": len(first) + len(second) - 1,
                "queued": 0,
                "queued_allowed": 100_000,
                "text": f"team perf: {len(first) / 1000:.2f} kB (of "
                f"{(len(first) + len(second) - 1) / 1000:.2f} kB allowed) of originals, "
                "0 (of 100,000 allowed) conversions queued",
            }
            shown = analyzer("jobs", "--server", server.url, HOSTBOUND_TOKEN=perf)
            assert shown.returncode == 0
            assert "team perf" in shown.stderr

            assert client.delete(f"/api/v1/runs/{run_id}").status_code == 200
            assert client.upload(second)["state"] == "done"
    finally:
        server.stop()


def test_a_full_queue_refuses_more_until_some_of_it_is_done(tmp_path: Path) -> None:
    contents = [trace_bytes(seed=seed) for seed in range(1, 6)]
    server = TeamServer(tmp_path / "data", "--team-queued", "1").start()
    try:
        with server.client() as client:
            client.upload(contents[4])
            (worker,) = server.workers()
            os.kill(worker, signal.SIGSTOP)  # what it takes now is converted when it may go on
            late = client.announce(contents[3]).json()["url"]  # while there is room
            for content in contents[:2]:  # one is converted, one waits
                url = client.announce(content).json()["url"]
                assert client.send_bytes(url, content).status_code == 204
                wait_for(
                    lambda: client.get("/api/v1/jobs").json()["counts"]["running"] == 1, "a job"
                )
            told = [client.announce(contents[2]), client.send_bytes(late, contents[3])]
            for refused in told:
                assert refused.status_code == 429
                assert refused.headers["Retry-After"] == "30"
                assert "--team-queued" in refused.json()["detail"]

            trace = tmp_path / "trace.json"
            trace.write_bytes(contents[2])
            archive = open_archive(trace)
            with pytest.raises(GaveUp, match="--team-queued"):  # and is spooled by who asked
                Uploader(parse_endpoint(server.url, None), 1.0).send(archive, archive.sha256(), {})

            os.kill(worker, signal.SIGCONT)
            for content in contents[:2]:
                client.job_of(content)
            assert client.upload(contents[2])["state"] == "done"
            assert client.upload(contents[3])["state"] == "done"
    finally:
        server.stop()
