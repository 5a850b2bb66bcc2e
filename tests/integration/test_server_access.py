"""Who gets in: servers without login, with tokens, behind a form; what a server refuses to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from analyzer.store import discovery
from support.team_server import (
    PATIENCE_S,
    ROOT,
    TeamServer,
    analyzer,
    make_token,
    packed,
    trace_bytes,
    wait_for,
)

pytestmark = pytest.mark.xdist_group("server")


def serve_refused(*options: str) -> str:
    """The line with which `serve` refuses."""
    done = subprocess.run(
        [sys.executable, "-m", "analyzer.cli", "serve", "--port", "0", "--no-pages", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    """One store on this machine: no token was ever made."""
    server = TeamServer(tmp_path_factory.mktemp("open") / "runs.duckdb", db=True).start()
    yield server
    server.stop()


# -- without login, on this machine only


def test_on_this_machine_no_login_is_needed(open_server: TeamServer) -> None:
    with open_server.client() as client:
        assert client.upload(trace_bytes(), name="mine")["state"] == "done"
        assert [run["name"] for run in client.get("/api/v1/runs").json()["runs"]] == ["mine"]


def test_a_wrong_token_is_refused_even_where_none_is_needed(open_server: TeamServer) -> None:
    with open_server.client("hb_wrong") as client:
        assert client.get("/api/v1/runs").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"X-Forwarded-For": "203.0.113.7"},
        {"Forwarded": "for=203.0.113.7"},
        {"Host": ""},
    ],
)
def test_another_sites_page_or_a_proxy_does_not_get_in_without_login(
    open_server: TeamServer, headers: dict[str, str]
) -> None:
    """A browser can be made to send requests here; a proxy would let in everybody."""
    with open_server.client() as client:
        assert client.get("/api/v1/runs", headers=headers).status_code == 401
        answer = client.post("/api/v1/sql", json={"sql": "SELECT 1"}, headers=headers)
        assert answer.status_code == 401


def test_no_other_site_may_read_answers(open_server: TeamServer) -> None:
    with open_server.client() as client:
        answer = client.options(
            "/api/v1/runs",
            headers={
                "Origin": "http://evil.example",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization",
            },
        )
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_first_token_ends_the_time_without_login(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = TeamServer(data).start()
    try:
        with server.client() as nobody:
            assert nobody.get("/api/v1/runs").status_code == 200
            token = make_token(data)
            assert nobody.get("/api/v1/runs").status_code == 401
        with server.client(token) as client:
            assert client.get("/api/v1/runs").status_code == 200
    finally:
        server.stop()


def test_a_server_that_others_reach_needs_a_way_to_log_in(tmp_path: Path) -> None:
    line = serve_refused("--data", str(tmp_path / "data"), "--host", "0.0.0.0")

    assert "nobody could log in" in line
    assert "token create" in line


def test_a_server_that_a_proxy_may_serve_needs_a_way_to_log_in(tmp_path: Path) -> None:
    """A proxy that rewrites `Host` cannot be told from somebody at the machine."""
    line = serve_refused("--data", str(tmp_path / "data"))

    assert "token create" in line
    assert "--local" in line


def test_a_server_that_others_reach_asks_for_a_token(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = make_token(data)
    server = TeamServer(data, "--host", "0.0.0.0").start()
    try:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/api/v1/runs", trust_env=False).status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/api/v1/runs", headers=headers, trust_env=False).status_code == 200
    finally:
        server.stop()


def test_whoever_says_so_lets_everybody_in(tmp_path: Path) -> None:
    server = TeamServer(tmp_path / "data", "--host", "0.0.0.0", "--no-login-i-know").start()
    try:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        headers = {"Host": "analysis.example"}
        answer = httpx.get(f"{url}/api/v1/runs", headers=headers, trust_env=False)
        assert answer.status_code == 200
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--port", "99999"), "no port"),
        (("--data", "/dev/null/x"), "cannot be made"),
        (("--host", "192.0.2.1", "--no-login-i-know"), "cannot be listened on"),
        (("--oidc", "/nowhere.toml"), "cannot be read"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    where = () if "--data" in options else ("--data", str(tmp_path / "data"))

    assert says in serve_refused(*where, *options)


# -- tokens


def test_tokens_are_made_listed_and_revoked_by_the_command_line(tmp_path: Path) -> None:
    def token(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "analyzer.cli", "token", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    data = ("--data", str(tmp_path / "data"))
    made = token("create", *data, "--team", "perf", "--scope", "read", "--name", "laptop")
    assert made.stdout.startswith("hb_")
    assert len(made.stdout.strip()) == 3 + 43  # 256 bits
    listed = token("list", *data)
    assert "laptop" in listed.stdout
    assert made.stdout.strip() not in listed.stdout
    (row,) = json.loads(token("list", *data, "--json").stdout)
    assert token("revoke", row["id"], *data).returncode == 0
    assert "revoked" in token("list", *data).stdout
    assert token("revoke", "no-such", *data).returncode == 2
    assert token("create", *data, "--team", "../x", "--scope", "read").returncode == 2
    assert token("create", *data, "--team", "x", "--scope", "root").returncode == 2
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
    assert (tmp_path / "data" / "server.sqlite").stat().st_mode & 0o077 == 0


def test_a_token_that_asks_too_often_is_told_to_wait_and_no_other(tmp_path: Path) -> None:
    data = tmp_path / "data"
    hasty, calm = make_token(data), make_token(data)
    server = TeamServer(data, "--requests-per-second", "0.2").start()
    try:
        with server.client(hasty) as client:
            answers = [client.get("/api/v1/jobs") for _ in range(40)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert 0 < len(refused) < 40
        assert int(refused[0].headers["Retry-After"]) >= 1
        with server.client(calm) as client:
            assert client.get("/api/v1/jobs").status_code == 200
        with server.client("hb_guess") as client:
            guesses = {client.get("/api/v1/jobs").status_code for _ in range(40)}
            assert guesses == {401, 429}
    finally:
        server.stop()


# -- the login of the pages


@pytest.fixture(scope="module")
def team_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TeamServer, str, str]]:
    """A server with pages; a token that reads and one that only uploads."""
    data = tmp_path_factory.mktemp("pages") / "data"
    reads, uploads = make_token(data, "perf", "read"), make_token(data, "perf", "upload")
    server = TeamServer(data, "--pages").start()
    yield server, reads, uploads
    server.stop()


def test_pages_send_to_the_login_and_back(team_server: tuple[TeamServer, str, str]) -> None:
    server, reads, _ = team_server
    with server.client(headers={"Accept": "text/html"}) as browser:
        sent = browser.get("/compare?runs=a,b")
        assert sent.status_code == 303
        assert sent.headers["location"] == "/login?next=%2Fcompare%3Fruns%3Da%2Cb"
        assert 'value="/compare?runs=a,b"' in browser.get(sent.headers["location"]).text
        entered = browser.post("/login", data={"token": reads, "next": "/compare?runs=a,b"})
        assert (entered.status_code, entered.headers["location"]) == (303, "/compare?runs=a,b")
        cookie = entered.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert reads not in entered.headers["set-cookie"]
        assert browser.get("/compare").status_code == 200
        assert browser.get("/api/v1/runs").status_code == 200  # downloads follow links of pages
        assert browser.post("/api/v1/sql", json={"sql": "SELECT 1"}).status_code == 401
        browser.get("/logout")
        assert browser.get("/compare").status_code == 303


@pytest.mark.parametrize(
    "path", ["/", "/run", "/_stcore/host-config", "/media/x", "/_stcore/stream"]
)
def test_nothing_of_the_pages_is_shown_without_login(
    team_server: tuple[TeamServer, str, str], path: str
) -> None:
    server, _, _ = team_server
    with server.client() as client:
        assert client.get(path).status_code == 401
        forged = {"Cookie": "hostbound_session=" + "x" * 43}
        assert client.get(path, headers=forged).status_code == 401


@pytest.mark.parametrize("case", ["no login", "forged", "another site"])
def test_the_pages_socket_is_closed_to_strangers(
    team_server: tuple[TeamServer, str, str], case: str
) -> None:
    """The pages live on a web socket: what guards requests must guard it too."""
    server, reads, _ = team_server
    with server.client() as browser:
        browser.post("/login", data={"token": reads})
        session = browser.cookies["hostbound_session"]
    url = server.url.replace("http://", "ws://") + "/_stcore/stream"
    cookie = {"no login": "", "forged": "x" * 43, "another site": session}[case]
    headers = {"Cookie": f"hostbound_session={cookie}"} if cookie else {}
    origin = "http://evil.example" if case == "another site" else server.url

    with (
        pytest.raises(InvalidStatus, match="403"),
        connect(url, additional_headers=headers, origin=Origin(origin), proxy=None),
    ):
        pass

    welcome = {"Cookie": f"hostbound_session={session}"}
    with connect(url, additional_headers=welcome, origin=Origin(server.url), proxy=None):
        pass


def test_only_a_token_that_reads_logs_in(team_server: tuple[TeamServer, str, str]) -> None:
    server, _, uploads = team_server
    with server.client() as browser:
        for wrong in (uploads, "hb_no", "", "\x00", "x" * 100_000):
            answer = browser.post("/login", data={"token": wrong})
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        '/"><script>',
    ],
)
def test_the_login_leads_to_this_server_only(
    team_server: tuple[TeamServer, str, str], target: str
) -> None:
    server, reads, _ = team_server
    with server.client() as browser:
        shown = browser.get("/login", params={"next": target})
        assert "<script>" not in shown.text
        location = browser.post("/login", data={"token": reads, "next": target}).headers["location"]
        assert location.startswith("/")
        assert not location.startswith(("//", "/\\"))


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_of_another_site_does_not_log_in(
    team_server: tuple[TeamServer, str, str], headers: dict[str, str]
) -> None:
    server, reads, _ = team_server
    with server.client(headers=headers) as browser:
        assert browser.post("/login", data={"token": reads}).status_code == 403


def test_a_page_takes_files_of_those_who_may_upload_only(
    team_server: tuple[TeamServer, str, str],
) -> None:
    server, reads, _ = team_server
    with server.client() as browser:
        browser.post("/login", data={"token": reads})
        answer = browser.put("/_stcore/upload_file/session/file", content=b"x")
    assert answer.status_code == 401
    assert "upload" in answer.json()["detail"]


def test_a_login_through_tls_is_kept_from_plain_connections(
    team_server: tuple[TeamServer, str, str],
) -> None:
    server, reads, _ = team_server
    with server.client(headers={"X-Forwarded-Proto": "https"}) as browser:
        assert "Secure" in browser.post("/login", data={"token": reads}).headers["set-cookie"]


# -- the store of this machine


def test_ingest_goes_through_the_server_that_owns_the_store_and_says_the_same(
    tmp_path: Path, samples_dir: Path
) -> None:
    trace = tmp_path / "small.json"
    trace.write_bytes(trace_bytes(5))
    rubbish = tmp_path / "rubbish.json"
    rubbish.write_text("no trace")
    run = str(samples_dir / "gpt2-prefill-bs1-s512")
    told: dict[str, list[str]] = {}
    server = TeamServer(tmp_path / "served.duckdb", db=True).start()
    try:
        note = tmp_path / "served.duckdb.server"
        assert note.stat().st_mode & 0o077 == 0
        for name in ("served", "direct"):
            db = tmp_path / f"{name}.duckdb"
            done = [
                analyzer("ingest", run, str(trace), str(rubbish), "--db", str(db)),
                analyzer("ingest", run, "--db", str(db)),
                analyzer("ingest", run, "--step-annotation", "x", "--db", str(db)),
                analyzer("ingest", str(trace), "--replace", "--name", "again", "--db", str(db)),
                analyzer("show", "again", "--db", str(db)),
                analyzer("runs", "--db", str(db)),
            ]
            told[name] = [
                _without_times(f"{d.returncode}\n{d.stdout}{d.stderr}").replace(str(db), "DB")
                for d in done
            ]
        assert told["served"] == told["direct"]
        assert sum(line["event"] == "job done" for line in server.log) == 4
    finally:
        server.stop()
    assert not note.exists()
    assert not analyzer("verify", "--db", str(tmp_path / "served.duckdb")).returncode
    assert not analyzer("verify", "--data", str(tmp_path / "served.duckdb.data")).returncode


def test_a_capture_trace_goes_through_the_server_with_its_trace(
    tmp_path: Path, shared_dir: Path
) -> None:
    """Names alike in two folders; the ops of the replayed kernels prove that it arrived."""
    replay, capture = tmp_path / "replay" / "graph.json.gz", tmp_path / "capture" / "graph.json.gz"
    for place, source in ((replay, "graph-replay-only"), (capture, "graph-capture-and-replay")):
        place.parent.mkdir()
        shutil.copy(shared_dir / "traces/h200" / f"gpt2-prefill-bs1-s512-{source}.json.gz", place)
    told: dict[str, list[str]] = {}
    server = TeamServer(tmp_path / "served.duckdb", db=True).start()
    try:
        for name in ("served", "direct"):
            db = str(tmp_path / f"{name}.duckdb")
            pair = ("ingest", str(replay), "--capture-trace", str(capture), "--db", db)
            missing = (*pair[:3], str(tmp_path / "none.json"), *pair[4:], "--replace")
            done = [
                analyzer(*pair),
                analyzer("report", "latest", "--db", db),
                analyzer("sql", "SELECT role, bytes, sha256 FROM files ORDER BY ALL", "--db", db),
                analyzer(*pair),
                analyzer("ingest", str(replay), "--db", db),
                analyzer(*missing),
            ]
            told[name] = [
                _without_times(f"{d.returncode}\n{d.stdout}{d.stderr}").replace(db, "DB")
                for d in done
            ]
        assert told["served"] == told["direct"]
        assert told["served"][0].startswith(("0", "1")), told["served"][0]
        assert "aten::addmm" in told["served"][1]
        assert "capture" in told["served"][2]
    finally:
        server.stop()


@pytest.mark.parametrize("name", ["../x.json", "/etc/passwd", "capture/none.json", "capture"])
def test_a_capture_trace_outside_its_archive_is_refused(
    owned: TeamServer, name: str, tmp_path: Path
) -> None:
    (tmp_path / "x.json").write_bytes(trace_bytes())
    content = packed(tmp_path)
    with owned.client() as client:
        client.upload(content, metadata={"capture_trace": name, "again": name})
        job = client.job_of(content)
    assert job["state"] == "failed"
    assert "the archive" in job["error"]


@pytest.mark.parametrize(
    "options",
    [("--engine", "ray"), ("--keep-originals",)],
)
def test_ingest_does_not_go_past_the_server_that_owns_the_store(
    owned: TeamServer, options: tuple[str, ...], tmp_path: Path
) -> None:
    trace = tmp_path / "small.json"
    trace.write_bytes(trace_bytes())

    done = analyzer("ingest", str(trace), "--db", str(owned.data), *options)

    assert done.returncode == 2
    assert f"belongs to the server at {owned.url}" in done.stderr
    assert options[0] in done.stderr
    assert done.stderr.count("\n") == 1
    with owned.client() as client:
        assert client.run_ids() == []


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    """A server of one store on this machine."""
    server = TeamServer(tmp_path_factory.mktemp("owned") / "runs.duckdb", db=True).start()
    yield server
    server.stop()


def _without_times(text: str) -> str:
    import re

    text = re.sub(r"in \d+\.\d+ s", "in TIME", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "WHEN", text)


def test_the_note_of_a_server_that_died_is_ignored_with_a_remark(tmp_path: Path) -> None:
    db = tmp_path / "runs.duckdb"
    trace = tmp_path / "small.json"
    trace.write_bytes(trace_bytes())
    server = TeamServer(db, db=True).start()
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    assert discovery.note_of(db).exists()

    done = analyzer("ingest", str(trace), "--db", str(db))

    assert done.returncode in (0, 1)
    assert "does not answer; ignored" in done.stderr
    assert "stored: small" in done.stdout


def test_jobs_are_listed_by_the_command_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = make_token(data)
    server = TeamServer(data).start()
    try:
        with server.client(token) as client:
            client.upload(trace_bytes(), name="good")
            client.upload(b"no trace", name="bad")
        listed = analyzer("jobs", "--data", str(data))
        assert listed.returncode == 1  # something has failed
        states = [line.split()[1:3] for line in listed.stdout.splitlines()[1:]]
        assert states == [["failed", "bad"], ["done", "good"]]
        asked = analyzer("jobs", "--server", server.url, "--json", HOSTBOUND_TOKEN=token)
        assert [job["state"] for job in json.loads(asked.stdout)] == ["failed", "done"]
    finally:
        server.stop()


def test_health_and_metrics_tell_how_it_goes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = make_token(data)
    server = TeamServer(data).start()
    try:
        with server.client() as nobody:
            assert nobody.get("/healthz").status_code == 200
            assert nobody.get("/readyz").status_code == 200
            assert nobody.get("/metrics").status_code == 401
        with server.client(token) as client:
            client.upload(trace_bytes())
            text = client.get("/metrics").text
        assert 'hostbound_jobs{state="done"} 1.0' in text
        assert "hostbound_uploads_stored_total 1.0" in text
        assert "perf" not in text  # no team's name
        line = wait_for(lambda: server.event("request"), "a line")
        assert {"id", "method", "path", "status", "ms", "team"} <= set(line)
    finally:
        server.stop()
