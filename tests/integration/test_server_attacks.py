"""What somebody who means harm tries on a running server, each try with what must come of it."""

from __future__ import annotations

import gzip
import io
import json
import socket
import sqlite3
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.team_server import TeamClient, TeamServer, make_token, packed, sha256, trace_bytes

pytestmark = pytest.mark.xdist_group("server")

RUN_OF_PERF = "gpt2-prefill-bs1-s512"


class Site:
    """A server with two teams; `perf` has a run, `other` has one of its own."""

    def __init__(self, data: Path, samples: Path) -> None:
        self.data = data
        self.tokens = {
            (team, scopes): make_token(data, team, scopes)
            for team, scopes in (
                ("perf", "upload"),
                ("perf", "read"),
                ("perf", "admin"),
                ("other", "admin"),
            )
        }
        self.server = TeamServer(
            data,
            *("--max-decompressed", "20M", "--max-files", "20", "--max-events", "50000"),
            *("--max-upload", "8M", "--sql-seconds", "10", "--sql-memory", "256M"),
            *("--requests-per-second", "10000"),
        ).start()
        self.perf = self.client("perf", "admin")
        self.other = self.client("other", "admin")
        self.original = packed(samples / RUN_OF_PERF)
        self.job = self.perf.upload(self.original)
        (self.run_id,) = self.job["run_ids"]
        self.other.upload(trace_bytes(name="kernel_of_other"))

    def client(self, team: str, scopes: str) -> TeamClient:
        return self.server.client(self.tokens[team, scopes])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site") / "data", samples_dir)
    yield site
    site.server.stop()


def routes(site: Site) -> list[tuple[str, str]]:
    """Every method and path of the API's description, with something in the place of names."""
    description = site.perf.get("/api/v1/openapi.json").json()
    found: list[tuple[str, str]] = []
    for path, operations in description["paths"].items():
        for name in ("upload", "run", "job_id", "token_id"):
            path = path.replace(f"{{{name}}}", "0" * 32)
        found += [(method.upper(), path) for method in operations if method != "options"]
    assert len(found) > 15
    return found


# -- who is let in


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer ",
        "Bearer hb_wrong",
        "Basic aGI6aGI=",
        "hb_",
        "Bearer \x00",
        "Bearer " + "x" * 9999,
    ],
)
def test_without_a_valid_token_no_route_answers(site: Site, authorization: str | None) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    with httpx.Client(base_url=site.server.url, trust_env=False) as nobody:
        for method, path in [*routes(site), ("GET", "/metrics")]:
            try:
                answer = nobody.request(method, path, headers=headers, content=b"{}")
            except httpx.LocalProtocolError:
                continue  # the client library itself refuses to send it
            assert answer.status_code == 401 or (
                authorization == "Bearer \x00" and answer.status_code == 400
            ), f"{method} {path}: {answer.status_code}"


@pytest.mark.parametrize(
    ("scope", "method", "path", "body"),
    [
        ("upload", "GET", "/api/v1/runs", None),
        ("upload", "GET", f"/api/v1/runs/{RUN_OF_PERF}/report", None),
        ("upload", "GET", f"/api/v1/runs/{RUN_OF_PERF}/original", None),
        ("upload", "GET", "/api/v1/compare?runs=a,b", None),
        ("upload", "POST", "/api/v1/sql", {"sql": "SELECT 1"}),
        ("upload", "GET", "/metrics", None),
        ("upload", "GET", "/api/v1/tokens", None),
        ("upload", "DELETE", f"/api/v1/runs/{RUN_OF_PERF}", None),
        ("read", "POST", "/api/v1/uploads", {"sha256": "0" * 64, "size": 1}),
        ("read", "GET", f"/api/v1/uploads/{'0' * 64}", None),
        ("read", "DELETE", f"/api/v1/uploads/{'0' * 32}", None),
        ("read", "POST", "/api/v1/tokens", {"scopes": ["admin"]}),
        ("read", "DELETE", f"/api/v1/runs/{RUN_OF_PERF}", None),
    ],
)
def test_a_token_does_only_what_its_scope_says(
    site: Site, scope: str, method: str, path: str, body: Any
) -> None:
    with site.client("perf", scope) as client:
        answer = client.request(method, path, json=body) if body else client.request(method, path)

    assert answer.status_code == 403
    assert "scope" in answer.json()["detail"]


def test_a_team_neither_sees_nor_touches_the_runs_of_another(site: Site) -> None:
    run, job, blob = site.run_id, site.job["id"], sha256(site.original)
    upload = site.perf.get(f"/api/v1/uploads/{blob}").json()["id"]

    assert [r["name"] for r in site.other.get("/api/v1/runs").json()["runs"]] != [RUN_OF_PERF]
    for path in (
        f"/api/v1/runs/{run}",
        f"/api/v1/runs/{run}/report",
        f"/api/v1/runs/{run}/kernels",
        f"/api/v1/runs/{run}/original",
        f"/api/v1/runs/{RUN_OF_PERF}",
        f"/api/v1/compare?runs={run},latest",
        f"/api/v1/jobs/{job}",
        f"/api/v1/uploads/{blob}",
        f"/api/v1/uploads/{upload}",
    ):
        assert site.other.get(path).status_code == 404, path
    assert site.other.delete(f"/api/v1/runs/{run}").status_code == 404
    assert site.other.delete(f"/api/v1/uploads/{upload}").status_code == 404
    assert site.other.post(f"/api/v1/jobs/{job}/retry").status_code == 404
    assert site.other.get(f"/api/v1/runs?sha256={blob}").json()["total"] == 0
    names = site.other.post("/api/v1/sql", json={"sql": "SELECT name FROM runs"}).json()["rows"]
    assert [RUN_OF_PERF] not in names
    assert site.perf.get(f"/api/v1/runs/{run}").status_code == 200


def test_a_body_of_two_lengths_is_refused_and_its_connection_ended(site: Site) -> None:
    """A proxy may take the one and the server the other: what is left would be a request."""
    address, _, port = site.server.url.removeprefix("http://").partition(":")
    with socket.create_connection((address, int(port))) as connection:
        connection.sendall(
            b"POST /api/v1/sql HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        said = b""
        while piece := connection.recv(4096):
            said += piece
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "path", ["/runs?modell=x", "/runs/latest/report?fromat=text", "/compare?rnu=a", "/usage?a=1"]
)
def test_a_parameter_that_is_none_is_refused(site: Site, path: str) -> None:
    answer = site.perf.get(f"/api/v1{path}")

    assert answer.status_code == 422
    assert "query parameter" in answer.text or "Field required" in answer.text


def test_the_same_content_is_uploaded_by_each_team_for_itself(site: Site) -> None:
    """Else the answer `stored` would tell one team what another has."""
    assert site.other.announce(site.original).status_code == 201


def test_a_team_revokes_only_its_own_tokens(site: Site) -> None:
    (own,) = site.other.get("/api/v1/tokens").json()["tokens"]
    assert own["team"] == "other"

    assert site.perf.delete(f"/api/v1/tokens/{own['id']}").status_code == 404
    assert site.other.get("/api/v1/runs").status_code == 200


def test_a_revoked_token_is_refused_at_once(site: Site) -> None:
    made = site.perf.post("/api/v1/tokens", json={"scopes": ["read"], "name": "short"}).json()
    with site.server.client(made["token"]) as client:
        assert client.get("/api/v1/runs").status_code == 200
        assert site.perf.delete(f"/api/v1/tokens/{made['id']}").status_code == 200
        assert client.get("/api/v1/runs").status_code == 401


def test_no_token_lies_in_the_files_or_the_log(site: Site) -> None:
    log = "".join(site.server.stderr)
    with sqlite3.connect(site.data / "server.sqlite") as connection:
        state = "\n".join(connection.iterdump())
    for token in site.tokens.values():
        assert token not in log
        assert token not in state
        assert token[3:] not in log + state


# -- uploads


def send_as_job(site: Site, content: bytes, **fields: Any) -> dict[str, Any]:
    """Upload something bad; its job, after seeing that the original is kept and all is in order."""
    job = site.perf.upload(content, **fields)
    kept = site.data / "teams" / "perf" / "blobs" / sha256(content)
    assert kept.read_bytes() == content
    assert list((site.data / "teams" / "perf" / "work").iterdir()) == []
    return job


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "name",
    [
        "../../escaped.json",
        "/tmp/escaped.json",
        "a/../../escaped.json",
        "..",
        "a\\..\\escaped.json",
        "C:escaped.json",
        "a/b/c/d/e/escaped.json",
        "x" * 250 + ".json",
        "line\nbreak.json",
    ],
)
@pytest.mark.parametrize("form", ["tar", "zip"])
def test_an_archive_cannot_write_outside_its_folder(site: Site, name: str, form: str) -> None:
    if form == "tar":
        content = tar_of((member(name), trace_bytes()))
    else:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(name, trace_bytes())
        content = out.getvalue()

    job = send_as_job(site, content)

    assert job["state"] == "failed"
    assert "no plain name" in job["error"]
    assert not list(site.data.parent.rglob("escaped*"))
    assert not Path("/tmp/escaped.json").exists()


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "manifest.json"),
        (tarfile.LNKTYPE, "../../../server.sqlite"),
        (tarfile.CHRTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_in_an_archive_are_refused(site: Site, kind: bytes, target: str) -> None:
    content = tar_of((member("manifest.json"), b"{}"), (member("trace.json", kind, target), b""))

    job = send_as_job(site, content)

    assert job["state"] == "failed"
    assert "link, a device" in job["error"]


def test_a_link_in_a_zip_is_refused(site: Site) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("trace.json")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")

    job = send_as_job(site, out.getvalue())

    assert "link" in job["error"]


def test_a_name_in_an_archive_twice_is_refused(site: Site) -> None:
    job = send_as_job(site, tar_of((member("a.json"), trace_bytes()), (member("a.json"), b"x")))

    assert "twice" in job["error"]


def test_names_given_with_an_upload_lead_nowhere(site: Site) -> None:
    """They are texts to show; no file is called so."""
    job = site.perf.upload(
        trace_bytes(seed=7),
        name="../../../etc/cron.d/x",
        metadata={"file": "../../../../tmp/escaped.json", "origin": "/etc/passwd"},
    )

    assert job["state"] == "done"
    (run_id,) = job["run_ids"]
    shown = site.perf.get(f"/api/v1/runs/{run_id}").json()
    assert shown["run"]["name"] == "../../../etc/cron.d/x"
    assert shown["run"]["path"] == f"upload:{job['sha256']}"  # only this machine's owner says where
    original = site.perf.get(f"/api/v1/runs/{run_id}/original")
    assert "/" not in original.headers["content-disposition"].partition("filename=")[2]
    assert not Path("/tmp/escaped.json").exists()


@pytest.mark.parametrize(
    "path", ["../../server.sqlite", "%2e%2e%2f%2e%2e%2fserver.sqlite", "..%00"]
)
@pytest.mark.parametrize("route", ["/api/v1/uploads/{}", "/api/v1/runs/{}/original"])
def test_an_address_leads_to_no_file(site: Site, route: str, path: str) -> None:
    with site.server.client(site.tokens["perf", "admin"]) as client:
        request = client.build_request("GET", "/")
        request.url = httpx.URL(site.server.url).copy_with(raw_path=route.format(path).encode())
        answer = client.send(request)

    assert answer.status_code == 404


def gzip_bomb(megabytes: int) -> bytes:
    head = b'{"traceEvents":[' + b" " * (1 << 20)
    return gzip.compress(head + b" " * (megabytes << 20) + b"]}", 9)


def test_a_gzip_bomb_is_stopped_at_the_limit(site: Site) -> None:
    job = send_as_job(site, gzip_bomb(64))

    assert job["state"] == "failed"
    assert "more than 20971520 bytes" in job["error"]


def test_a_tar_of_zeros_is_stopped_at_the_limit(site: Site) -> None:
    inside = tar_of((member("zeros.json"), b"\0" * (64 << 20)))

    job = send_as_job(site, gzip.compress(inside, 9))

    assert "more than 20971520 bytes" in job["error"]


def test_padding_behind_a_tar_counts_too(site: Site) -> None:
    inside = tar_of((member("a.json"), trace_bytes())) + b"\0" * (64 << 20)

    job = send_as_job(site, gzip.compress(inside, 9))

    assert job["state"] in ("failed", "done")  # the end may be seen before the padding is read
    assert job["error"] is None or "more than 20971520 bytes" in job["error"]


def test_a_zip_bomb_is_stopped_at_the_limit(site: Site) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.json", b"\0" * (64 << 20))

    job = send_as_job(site, out.getvalue())

    assert "more than 20971520 bytes" in job["error"]


def test_an_archive_of_too_many_files_is_refused(site: Site) -> None:
    job = send_as_job(site, tar_of(*((member(f"{i}.json"), b"{}") for i in range(21))))

    assert "more than 20 files" in job["error"]


def test_a_trace_of_too_many_events_is_refused(site: Site) -> None:
    content = gzip.compress(b'{"traceEvents":[' + b'{"ph":"i"},' * 60_000 + b'{"ph":"i"}]}')

    job = send_as_job(site, content)

    assert "more than 50000 events" in job["error"]


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8b\x08\x00 no gzip at all",
        b"PK\x03\x04 no zip at all",
        gzip.compress(b"not json"),
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"traceEvents":' + b"[" * 100_000,
    ],
    ids=["no gzip", "no zip", "gzip of no JSON", "no text", "nested", "nested events"],
)
def test_rubbish_fails_its_job_and_nothing_else(site: Site, content: bytes) -> None:
    job = send_as_job(site, content)

    assert job["state"] == "failed"
    assert job["error"]
    assert str(site.data) not in job["error"], "a message names no place on the server"
    assert site.perf.get("/api/v1/runs").status_code == 200


def test_content_that_is_not_what_was_announced_is_dropped(site: Site) -> None:
    content = trace_bytes(seed=11)
    url = site.perf.announce(content).json()["url"]

    answer = site.perf.send_bytes(url, content[:-1] + b" ")

    assert answer.status_code == 422
    assert site.perf.head(url).headers["Upload-Offset"] == "0"
    assert not (site.data / "teams" / "perf" / "blobs" / sha256(content)).exists()
    assert site.perf.upload(content)["state"] == "done"


def test_more_bytes_than_announced_are_refused(site: Site) -> None:
    content = trace_bytes(seed=12)
    url = site.perf.announce(content).json()["url"]

    assert site.perf.send_bytes(url, content + b"more").status_code == 413

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65536

    headers = {"Content-Type": "application/offset+octet-stream", "Upload-Offset": "0"}
    try:
        answer = site.perf.patch(url, content=endless(), headers=headers)
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # the server has hung up on it
    assert int(site.perf.head(url).headers["Upload-Offset"]) <= len(content)


def test_an_upload_that_is_too_large_is_refused_before_it_is_sent(site: Site) -> None:
    answer = site.perf.post("/api/v1/uploads", json={"sha256": "1" * 64, "size": (8 << 20) + 1})

    assert answer.status_code == 413


# -- requests out of measure


def test_a_large_body_is_refused(site: Site) -> None:
    big = json.dumps({"sql": "x" * (2 << 20)}).encode()

    assert site.perf.post("/api/v1/sql", content=big).status_code == 413

    def pieces() -> Iterator[bytes]:
        yield big

    assert site.perf.post("/api/v1/sql", content=pieces()).status_code == 413


def test_large_headers_are_refused(site: Site) -> None:
    answer = site.perf.get("/api/v1/runs", headers={"X-Large": "x" * 100_000})
    assert answer.status_code == 431
    try:
        answer = site.perf.get("/api/v1/runs", headers={"X-Large": "x" * 10_000_000})
        assert answer.status_code in (400, 431)
    except httpx.TransportError:
        pass  # the server hangs up
    assert site.perf.get("/api/v1/runs").status_code == 200


def test_deeply_nested_json_is_refused(site: Site) -> None:
    body = b'{"metadata":' * 1 + b'{"a":' * 50_000 + b"1" + b"}" * 50_001

    assert site.perf.post("/api/v1/uploads", content=body).status_code in (400, 422)


# -- SQL


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('../../../server.sqlite')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM 'x.parquet'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM parquet_metadata('x.parquet')",
        "SELECT * FROM sqlite_scan('server.sqlite', 'tokens')",
        "ATTACH '../../other/store.duckdb' AS other",
        "ATTACH ':memory:' AS m",
        "COPY runs TO '/tmp/escaped.csv'",
        "COPY (SELECT 1) TO PROGRAM 'id'",
        "EXPORT DATABASE '/tmp/escaped'",
        "IMPORT DATABASE '/tmp'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "INSTALL spatial FROM community",
        "SET memory_limit = '100GB'",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA database_list",
        "PRAGMA enable_profiling",
        "CALL pragma_version()",
        "CREATE TABLE t AS SELECT 1",
        "CREATE MACRO f() AS 1",
        "DELETE FROM runs",
        "UPDATE runs SET name = 'x'",
        "DROP TABLE runs",
        "BEGIN",
        "CHECKPOINT",
        "VACUUM",
        "PREPARE p AS SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "SELECT 1; DELETE FROM runs",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_databases()",
        "SELECT path FROM Duckdb_databases",
        'SELECT path FROM "DUCKDB_DATABASES"',
        "SELECT path FROM main.DuckDB_Databases",
        "SELECT path FROM system.main.duckdb_databases",
        "SUMMARIZE DUCKDB_SETTINGS",
        "SHOW Duckdb_databases",
        "SHOW DATABASES",
        "SELECT * FROM Sqlite_Master",
        "SELECT * FROM Pragma_Database_List",
        "SELECT * FROM information_schema.schemata",
        "SELECT a.path FROM (WITH Duckdb_databases AS (SELECT 1) SELECT 1), Duckdb_databases a",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM pg_catalog.pg_settings",
        "SELECT * FROM system.information_schema.tables",
        "SELECT current_setting('home_directory')",
        "SELECT getenv('PATH')",
        "SELECT getvariable('x')",
        "SELECT * FROM query('SELECT * FROM duckdb_settings()')",
        "SELECT * FROM query_table('duckdb_settings')",
        "WITH a AS (SELECT * FROM read_csv('/etc/passwd')) SELECT * FROM a",
        "SELECT (SELECT content FROM read_text('/etc/passwd'))",
        "SELECT name FROM runs WHERE name IN (SELECT content FROM read_text('/etc/passwd'))",
        "SELECT * FROM json_execute_serialized_sql('{}')",
        "",
        ";",
        "-- nothing",
        "\x00",
    ],
)
def test_sql_reads_the_teams_tables_and_nothing_else(site: Site, sql: str) -> None:
    answer = site.perf.post("/api/v1/sql", json={"sql": sql})

    assert answer.status_code == 422, answer.text
    detail = answer.json()["detail"]
    assert "root:" not in detail
    assert str(site.data) not in detail
    assert not list(Path("/tmp").glob("escaped*"))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(10000000000) a, range(1000000) b WHERE a.range % 7 = b.range",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
        "SELECT array_agg(a.range) FROM range(100000000) a, range(100) b",
        "SELECT repeat('x', 2000000000)",
        "SELECT repeat('x', 1000000) FROM range(1000)",
        "SELECT string_agg(repeat('y', 1000000), '') FROM range(100000)",
    ],
)
def test_sql_cannot_take_the_server_down(site: Site, sql: str) -> None:
    answer = site.perf.post("/api/v1/sql", json={"sql": sql, "limit": 100_000})

    assert answer.status_code == 422, answer.text[:300]
    assert site.perf.get("/api/v1/runs").status_code == 200
    assert site.server.process is not None
    assert site.server.process.poll() is None


def test_sql_answers_what_the_tables_hold(site: Site) -> None:
    answer = site.perf.post(
        "/api/v1/sql",
        json={"sql": "SELECT name, hdbi FROM run_totals WHERE run_id = '" + site.run_id + "'"},
    ).json()

    assert answer["columns"] == ["name", "hdbi"]
    ((name, hdbi),) = answer["rows"]
    assert (name, round(hdbi, 3)) == (RUN_OF_PERF, 0.173)
    assert answer["truncated"] is False


def test_sql_says_when_rows_were_left_out(site: Site) -> None:
    answer = site.perf.post("/api/v1/sql", json={"sql": "SELECT * FROM kernels", "limit": 2}).json()

    assert (len(answer["rows"]), answer["truncated"]) == (2, True)


# -- hostile names


def test_hostile_names_stay_text(site: Site) -> None:
    name = "<script>alert(1)</script>\u202e\x1b[31m\n$(id)'; DROP TABLE runs; --"

    job = site.perf.upload(trace_bytes(name=name), name="<img src=x onerror=alert(1)>")

    (run_id,) = job["run_ids"]
    kernels = site.perf.get(f"/api/v1/runs/{run_id}/kernels")
    assert kernels.headers["content-type"] == "application/json"
    assert kernels.headers["x-content-type-options"] == "nosniff"
    assert kernels.json()["kernels"][0]["kernel"] == name
    text = site.perf.get(f"/api/v1/runs/{run_id}/report?format=text")
    assert text.headers["content-type"].startswith("text/plain")
    assert "\x1b[31m" not in text.text


def test_the_folder_is_sound_after_all_of_it(site: Site) -> None:
    from analyzer.server.check import check

    assert check(site.data) == []
