"""Several servers on one lake: its PostgreSQL holds their tokens and jobs, so each may go."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from analyzer import cli, queries
from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.server.check import check
from analyzer.store import sandbox
from analyzer.store.lake_file import read_lake_file
from analyzer.store.verify import verify
from fleet.services import ROOT, ObjectStore, Postgres
from support import team_server
from support.team_server import TeamServer, sha256, trace_bytes, wait_for

pytestmark = pytest.mark.timeout(900)

# How long a server is given to show itself again, and some for a busy machine.
GRACE_S = 10.0
PATIENCE_S = 240.0


def make_token(lake: Path) -> str:
    """An administrator's; a lake has one team."""
    return team_server.make_token(lake, "default", "admin")


class Replicas:
    """Servers on one lake, each with a folder of its own."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.servers: list[TeamServer] = []

    def add(self, *options: str) -> TeamServer:
        """One more, which is not started yet."""
        folder = self.lake.parent / f"{self.lake.stem}-server{len(self.servers)}"
        server = TeamServer(folder, "--db", str(self.lake), *options)
        self.servers.append(server)
        return server

    def started(self) -> list[str]:
        """Ids of the jobs that they have begun, each as often as it was begun."""
        logs = [line for server in self.servers for line in list(server.log)]
        return [line["job"] for line in logs if line["event"] == "job started"]

    def assert_sound(self, contents: list[bytes]) -> None:
        """Each content is one run, all of it, and its original is there."""
        assert verify(self.lake) == []
        with queries.connect(self.lake) as connection:
            runs = connection.execute("SELECT run_id FROM runs").fetchall()
            launches = connection.execute(
                "SELECT run_id, count(*) FROM launches GROUP BY run_id"
            ).fetchall()
        assert len(runs) == len(set(runs)) == len(contents)
        assert {count for _, count in launches} == {c.count(b"cudaLaunch") for c in contents}
        folder = Path(self.lake.parent / f"data{self.lake.stem.removeprefix('lake')}.originals")
        for content in contents:
            assert (folder / "default" / sha256(content)).read_bytes() == content


@pytest.fixture
def replicas(lake: Path) -> Iterator[Replicas]:
    found = Replicas(lake)
    yield found
    for server in found.servers:
        server.stop()


def send(server: TeamServer, token: str, content: bytes) -> None:
    """Upload without waiting for the job."""
    with server.client(token) as client:
        answer = client.announce(content)
        assert answer.status_code == 201, answer.text
        assert client.send_bytes(answer.json()["url"], content).status_code == 204


def counts(server: TeamServer, token: str) -> dict[str, int]:
    with server.client(token) as client:
        return client.get("/api/v1/jobs").json()["counts"]


def hold_a_job(server: TeamServer, token: str, first: bytes, second: bytes) -> int:
    """Convert `first`, and begin with `second`, whose worker stands still; returns its process."""
    with server.client(token) as client:
        client.upload(first)
    (worker,) = server.workers()
    os.kill(worker, signal.SIGSTOP)
    send(server, token, second)
    wait_for(lambda: counts(server, token)["running"] == 1, "the job")
    return worker


def test_two_servers_share_tokens_and_jobs_and_convert_each_once(replicas: Replicas) -> None:
    token = make_token(replicas.lake)
    one, two = replicas.add().start(), replicas.add().start()
    contents = [trace_bytes(3, seed=seed) for seed in range(20)]

    for number, content in enumerate(contents):
        send((one, two)[number % 2], token, content)
    wait_for(lambda: counts(one, token)["done"] == 20, "all jobs", PATIENCE_S)

    assert counts(two, token) == {"queued": 0, "running": 0, "done": 20, "failed": 0}
    assert set(Counter(replicas.started()).values()) == {1}
    assert len(replicas.started()) == 20
    for server in (one, two):
        assert server.event("job done"), "both have taken some"
        with server.client(token) as client:
            assert len(client.run_ids()) == 20
            assert client.announce(contents[7]).json()["status"] == "stored"
            run = client.get("/api/v1/runs", params={"sha256": sha256(contents[0])}).json()["runs"]
            original = client.get(f"/api/v1/runs/{run[0]['run_id']}/original")
            assert original.content == contents[0]
    with one.client(token) as client:
        second = client.post("/api/v1/tokens", json={"scopes": ["read"]}).json()
    with two.client(second["token"]) as client:
        assert client.get("/api/v1/runs").status_code == 200
    with one.client(token) as client:
        assert client.delete(f"/api/v1/tokens/{second['id']}").status_code == 200
    with two.client(second["token"]) as client:
        assert client.get("/api/v1/runs").status_code == 401
    replicas.assert_sound(contents)


def test_the_loss_of_a_servers_folder_loses_nothing(
    replicas: Replicas, capsys: pytest.CaptureFixture[str]
) -> None:
    token = make_token(replicas.lake)
    server = replicas.add().start()
    content, waiting = trace_bytes(3, seed=1), trace_bytes(3, seed=2)
    worker = hold_a_job(server, token, content, waiting)
    with server.client(token) as client:
        job = client.job_of(content)
        assert job["state"] == "done"
    server.kill()
    os.kill(worker, signal.SIGKILL)
    shutil.rmtree(server.data)

    server.start()

    with server.client(token) as client:
        assert client.get(f"/api/v1/jobs/{job['id']}").json() == job
        assert client.announce(content).json()["status"] == "stored"
        assert client.job_of(waiting)["state"] == "done"
        assert client.job_of(waiting)["attempts"] == 2
    replicas.assert_sound([content, waiting])
    assert cli.main(["jobs", "--db", str(replicas.lake)]) == 0
    assert capsys.readouterr().out.count("done") == 2


def test_a_job_stays_with_the_server_that_lives_and_goes_on_when_it_is_killed(
    replicas: Replicas,
) -> None:
    token = make_token(replicas.lake)
    one, content = replicas.add().start(), trace_bytes(5)
    worker = hold_a_job(one, token, trace_bytes(5, seed=1), content)
    two = replicas.add().start()

    time.sleep(GRACE_S + 4)  # it takes long, but its server lives

    assert counts(two, token)["running"] == 1
    assert two.event("job started") is None
    one.kill()
    os.kill(worker, signal.SIGKILL)
    began = time.monotonic()
    with two.client(token) as client:
        job = client.job_of(content)
    assert (job["state"], job["attempts"]) == ("done", 2)
    assert time.monotonic() - began > GRACE_S / 2
    replicas.assert_sound([trace_bytes(5, seed=1), content])


def test_a_server_that_was_away_finds_its_job_done_by_another_and_changes_nothing(
    replicas: Replicas,
) -> None:
    """Stopped and not killed: its sessions are ended as those of a host that is cut off."""
    token = make_token(replicas.lake)
    one, content = replicas.add().start(), trace_bytes(5)
    worker = hold_a_job(one, token, trace_bytes(5, seed=1), content)
    assert one.process is not None
    one.process.send_signal(signal.SIGSTOP)
    two = replicas.add().start()
    end_first_lock(replicas.lake)  # as PostgreSQL does with a host that is silent
    with two.client(token) as client:
        job = client.job_of(content)
        assert (job["state"], job["attempts"]) == ("done", 2)

        one.process.send_signal(signal.SIGCONT)
        os.kill(worker, signal.SIGCONT)
        wait_for(lambda: one.event("job ended, no longer ours"), "it learns", PATIENCE_S)
        assert client.get(f"/api/v1/jobs/{job['id']}").json() == job
    replicas.assert_sound([trace_bytes(5, seed=1), content])
    with one.client(token) as client:  # and it works on
        assert client.upload(trace_bytes(5, seed=2))["state"] == "done"


def end_first_lock(lake: Path) -> None:
    """End the PostgreSQL session that shows the first server's life."""
    import psycopg

    found = read_lake_file(lake)
    with psycopg.connect(found.catalog, autocommit=True) as session:
        ended = session.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' "
            "AND classid::BIGINT = hashtext(%s) & 2147483647 AND objsubid = 2 "
            "ORDER BY objid::BIGINT LIMIT 1",
            [f"{found.schema}_server"],
        ).fetchall()
    assert ended == [(True,)]


def test_postgresql_that_is_restarted_under_load_loses_no_upload_and_doubles_no_run(
    replicas: Replicas, postgres: Postgres
) -> None:
    token = make_token(replicas.lake)
    servers = [replicas.add().start(), replicas.add().start()]
    contents = [trace_bytes(200, seed=seed) for seed in range(16)]
    answers: Counter[int] = Counter()
    acknowledged: list[bytes] = []
    errors: list[BaseException] = []

    def client_of(server: TeamServer, mine: list[bytes]) -> None:
        """Sends as a collector does: whatever is not acknowledged is sent again."""
        try:
            with server.client(token) as client:
                for content in mine:
                    deadline = time.monotonic() + PATIENCE_S
                    while time.monotonic() < deadline:
                        answer = client.announce(content)
                        answers[answer.status_code] += 1
                        if answer.status_code == 201:
                            at = answer.json()["offset"]
                            answer = client.send_bytes(answer.json()["url"], content[at:], at)
                            answers[answer.status_code] += 1
                        if answer.status_code in (200, 204):
                            acknowledged.append(content)
                            break
                        time.sleep(0.1)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=client_of, args=(server, contents[n::2]))
        for n, server in enumerate(servers)
    ]
    for thread in threads:
        thread.start()
    for mode, after in (("immediate", 3), ("fast", 8)):
        wait_for(lambda after=after: len(acknowledged) >= after or errors, "uploads", PATIENCE_S)
        postgres.stop(mode)
        time.sleep(2.0)
        postgres.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(acknowledged) == len(contents)
    assert set(answers) <= {200, 201, 204, 503}, answers

    def ended() -> bool:
        with contextlib.suppress(httpx.HTTPError, KeyError):
            return counts(servers[0], token)["done"] == len(contents)
        return False

    wait_for(ended, "all jobs", PATIENCE_S)
    assert counts(servers[1], token)["failed"] == 0
    replicas.assert_sound(contents)


def test_without_postgresql_requests_get_503_and_are_served_when_it_is_back(
    replicas: Replicas, postgres: Postgres
) -> None:
    token = make_token(replicas.lake)
    server = replicas.add().start()
    content = trace_bytes(3)
    with server.client(token) as client:
        postgres.stop("immediate")
        try:
            for answer in (client.get("/api/v1/jobs"), client.announce(content)):
                assert answer.status_code == 503
                assert "PostgreSQL does not answer" in answer.json()["detail"]
                assert "\n" not in answer.json()["detail"]
                assert answer.headers["Retry-After"] == "1"
            assert client.get("/readyz").status_code == 503
            assert client.get("/healthz").status_code == 200
            assert client.get("/login").status_code == 200
        finally:
            postgres.start()
        wait_for(lambda: client.get("/readyz").status_code == 200, "readiness")
        assert client.upload(content)["state"] == "done"


def test_many_first_starts_at_once_make_one_schema(lake: Path) -> None:
    command = [sys.executable, "-m", "analyzer.cli", "token", "create", "--db", str(lake)]
    command += ["--team", "default", "--scope", "read"]
    processes = [
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    said = [process.communicate(timeout=PATIENCE_S) for process in processes]

    assert [process.returncode for process in processes] == [0] * 6, said
    done = subprocess.run(
        [*command[:4], "list", "--db", str(lake), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.count('"team"') == 6


def test_a_state_of_a_later_version_is_refused_in_one_line(
    lake: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    make_token(lake)
    schema = f"{read_lake_file(lake).schema}_server"
    postgres.psql(f"UPDATE {schema}.info SET version = 2")

    for command in (["token", "list"], ["jobs"], ["serve", "--port", "0"]):
        assert cli.main([*command, "--db", str(lake)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "is of version 2, this program knows 1: upgrade hostbound" in error


def test_commands_on_a_lake_without_a_server_and_for_another_team_say_what_to_do(
    lake: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = f"{read_lake_file(lake).schema}_server"
    for command, told in (
        (["token", "list"], "make a token first"),
        (["jobs"], "make a token first"),
        (["token", "create", "--team", "perf", "--scope", "read"], "the lake of one team"),
    ):
        assert cli.main([*command, "--db", str(lake)]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    assert postgres.psql(f"SELECT to_regnamespace('{schema}') IS NULL") == "t"


def test_sql_of_a_person_does_not_reach_tokens(lake: Path, samples_dir: Path) -> None:
    ingest(samples_dir / "gpt2-bs1-s512", lake)
    make_token(lake)
    schema = f"{read_lake_file(lake).schema}_server"
    for table in (
        f"{schema}.tokens",
        f"__ducklake_metadata_lake.{schema}.tokens",
        f'"__ducklake_metadata_lake"."{schema}"."tokens"',
        "tokens",
        f"query_table('__ducklake_metadata_lake.{schema}.tokens')",
        f"postgres_scan('', '{schema}', 'tokens')",
    ):
        with pytest.raises(AnalyzerError):
            sandbox.run_sql(lake, f"SELECT * FROM {table}")
    assert sandbox.run_sql(lake, "SELECT 1 AS one FROM runs").num_rows == 1


def test_an_identity_provider_with_other_teams_is_refused_on_a_lake(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = lake.with_name("oidc.toml")
    provider.write_text(
        '[auth]\nredirect_uri = "http://localhost/oauth2callback"\ncookie_secret = "'
        f'{"c" * 32}"\n'
        'client_id = "i"\nclient_secret = "s"\nserver_metadata_url = "http://localhost/x"\n'
        '[hostbound.teams]\n"ada@example.com" = "perf"\n'
    )
    command = ["serve", "--db", str(lake), "--oidc", str(provider), "--port", "0", "--no-pages"]
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert "the lake of one team" in error
    assert error.count("\n") == 1


def test_verify_finds_an_original_that_is_gone_and_one_that_was_changed(
    replicas: Replicas,
) -> None:
    server = TeamServer(replicas.lake, db=True)
    replicas.servers.append(server)
    server.start()
    contents = [trace_bytes(3, seed=seed) for seed in range(2)]
    with server.client() as client:
        for content in contents:
            assert client.upload(content)["state"] == "done"
    server.stop()
    data = replicas.lake.with_name(replicas.lake.name + ".data")
    assert check(data) == []
    folder = Path(read_lake_file(replicas.lake).data.rstrip("/") + ".originals") / "default"
    (folder / sha256(contents[0])).unlink()
    (folder / sha256(contents[1])).write_bytes(b"other")

    problems = [problem.message for problem in check(data)]

    assert sum("is missing" in what for what in problems) == 1
    assert sum("is not what was uploaded" in what for what in problems) == 1


def test_an_upload_begun_at_one_server_can_be_ended_at_the_other(replicas: Replicas) -> None:
    """A balancer that is not sticky costs bytes, nothing else."""
    token = make_token(replicas.lake)
    one, two = replicas.add().start(), replicas.add().start()
    content = trace_bytes(50)
    with one.client(token) as here, two.client(token) as there:
        url = here.announce(content).json()["url"]
        assert here.send_bytes(url, content[:1000]).status_code == 204
        answer = there.send_bytes(url, content[1000:], 1000)
        assert answer.status_code == 409
        assert "ends at 0" in answer.json()["detail"]
        assert there.announce(content).json()["offset"] == 0
        assert there.upload(content)["state"] == "done"
        # The first server has it too now.
        assert here.announce(content).json()["status"] == "stored"
        assert here.head(url).headers["Upload-Offset"] == str(len(content))
    assert len(replicas.started()) == 1
    replicas.assert_sound([content])


def test_what_a_team_may_keep_counts_over_all_servers_of_a_lake(replicas: Replicas) -> None:
    token = make_token(replicas.lake)
    first, second = trace_bytes(seed=1), trace_bytes(seed=2)
    allowed = ("--team-bytes", str(len(first) + len(second) - 1))
    one, two = replicas.add(*allowed).start(), replicas.add(*allowed).start()
    with one.client(token) as here, two.client(token) as there:
        (run_id,) = here.upload(first)["run_ids"]
        refused = there.announce(second)
        assert refused.status_code == 507
        assert "--team-bytes" in refused.json()["detail"]
        assert there.get("/api/v1/usage").json()["stored_bytes"] == len(first)
        assert here.delete(f"/api/v1/runs/{run_id}").status_code == 200
        assert there.upload(second)["state"] == "done"
    replicas.assert_sound([second])


def test_originals_of_a_lake_in_s3_are_in_its_bucket(
    s3_lake: Path, object_store: ObjectStore
) -> None:
    found = Replicas(s3_lake)
    token = make_token(s3_lake)
    try:
        one = found.add().start()
        large = trace_bytes(40_000)
        assert len(large) > 12 << 20, "more than one part of an upload to S3"
        with one.client(token) as client:
            job = client.upload(large)
            assert job["state"] == "done", job
        assert one.stop() == 0
        shutil.rmtree(one.data)
        two = found.add().start()
        with two.client(token) as client:
            answer = client.get("/api/v1/runs/latest/original")
            assert hashlib.sha256(answer.content).hexdigest() == sha256(large)
            assert answer.headers["Hostbound-Sha256"] == sha256(large)
            object_store.kill()
            try:
                away: Any = client.announce(large)
                assert away.status_code == 503, away.text
                assert "does not answer" in away.json()["detail"]
            finally:
                object_store.start()
            assert client.announce(large).json()["status"] == "stored"
            (run,) = client.run_ids()
            # It answers again before it takes writes again.
            wait_for(lambda: client.delete(f"/api/v1/runs/{run}").status_code == 200, "deletion")
            assert client.announce(large).json()["status"] == "incomplete"
    finally:
        for server in found.servers:
            server.stop()
