"""What a client does with a server on a good day: upload in every form, read, compare, delete."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analyzer import queries
from analyzer.ingest import ingest
from analyzer.render.json_text import builtins_of
from analyzer.reports import comparison, report
from analyzer.server.check import check
from schemas import packing
from support.rank_traces import three_ranks, write_ranks
from support.team_server import (
    TeamClient,
    TeamServer,
    analyzer,
    make_token,
    packed,
    sha256,
    trace_bytes,
)

pytestmark = pytest.mark.xdist_group("server")

EAGER, GRAPH = "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    server = TeamServer(tmp_path_factory.mktemp("runs") / "data")
    make_token(server.data, "nobody")  # so that a login is needed
    server.start()
    yield server
    server.stop()
    assert check(server.data) == []


@pytest.fixture
def client(server: TeamServer, request: pytest.FixtureRequest) -> Iterator[TeamClient]:
    """A team of the test's own: nothing is there yet."""
    name = request.node.name.partition("[")[0].replace("test_", "")[:50] + str(id(request))[-6:]
    with server.client(make_token(server.data, name)) as client:
        yield client


def archive(folders: dict[str, Path], form: str) -> bytes:
    """Run directories, each in a folder of its own."""
    out = io.BytesIO()
    if form == "zip":
        with zipfile.ZipFile(out, "w") as packed_zip:
            for name, folder in folders.items():
                for file in sorted(folder.iterdir()):
                    packed_zip.write(file, f"{name}/{file.name}")
    else:
        with tarfile.open(fileobj=out, mode="w:gz" if form == "tar.gz" else "w") as packed_tar:
            for name, folder in folders.items():
                packed_tar.add(folder, name)
    return out.getvalue()


def test_a_team_without_runs_has_an_empty_list(client: TeamClient) -> None:
    assert client.get("/api/v1/runs").json() == {"runs": [], "total": 0, "next": None}
    assert client.get("/api/v1/runs/latest").status_code == 404
    assert client.post("/api/v1/sql", json={"sql": "SELECT 1"}).status_code == 404
    assert client.get("/api/v1/jobs").json()["jobs"] == []


def test_the_same_run_is_read_as_the_command_line_reads_it(
    client: TeamClient, samples_dir: Path, tmp_path: Path
) -> None:
    client.upload(packed(samples_dir / EAGER))
    client.upload(packed(samples_dir / GRAPH))
    db = tmp_path / "local.duckdb"
    ingest([samples_dir / EAGER, samples_dir / GRAPH], db, jobs=1)
    with queries.connect(db) as store:
        ids = [queries.find_run(store, name) for name in (EAGER, GRAPH)]
        expected = builtins_of(report.report(store, ids[0]))
        compared = comparison.compare(store, ids)

    answer = client.get(f"/api/v1/runs/{EAGER}/report").json()

    for key in ("totals", "measured", "steps", "ledger", "families", "kernels", "verdict"):
        assert answer[key] == json.loads(json.dumps(expected[key], default=str)), key
    assert answer["run"]["run_id"] == ids[0]
    found = client.get("/api/v1/compare", params={"runs": f"{EAGER},{GRAPH}"}).json()
    assert found["verdict"] == compared.verdict
    text = client.get(f"/api/v1/runs/{ids[0]}/report?format=text").text
    assert "The GPU waits for 90 % of the steps' host time" in text


def test_a_content_that_is_known_is_not_sent_again(client: TeamClient) -> None:
    content = trace_bytes()
    first = client.upload(content, name="once")

    again = client.announce(content, name="twice")

    assert again.status_code == 200
    assert again.json()["status"] == "stored"
    assert again.json()["job"]["id"] == first["id"]
    assert again.json()["run_ids"] == first["run_ids"]
    assert len(client.run_ids()) == 1


def test_an_upload_says_what_its_job_says(client: TeamClient) -> None:
    good, bad = trace_bytes(seed=31), b"no trace, but 31"
    url = client.announce(good).json()["url"]
    before = client.get(url).json()
    assert (before["state"], before["job_id"], before["run_ids"]) == ("incomplete", None, [])
    for content in (good, bad):
        job = client.upload(content)
        upload = client.get(f"/api/v1/uploads/{sha256(content)}").json()
        assert upload["job_id"] == job["id"]
        assert upload["id"] != job["id"]
        assert {key: upload[key] for key in job if key != "id"} == {
            key: job[key] for key in job if key != "id"
        }
        assert set(before) == set(upload)
    assert (upload["state"], upload["run_ids"]) == ("failed", [])
    assert upload["error"]


def test_an_acknowledgement_that_was_lost_is_given_again(client: TeamClient) -> None:
    content = trace_bytes()
    url = client.announce(content).json()["url"]
    client.send_bytes(url, content)

    again = client.send_bytes(url, b"", len(content))

    assert again.status_code == 204
    assert again.headers["Hostbound-Sha256"] == sha256(content)
    assert client.head(url).headers["Hostbound-Sha256"] == sha256(content)
    assert client.send_bytes(url, content, 0).status_code == 409
    assert client.delete(url).status_code == 409


def test_an_upload_in_pieces_of_any_size_arrives(client: TeamClient) -> None:
    content = trace_bytes(300)
    url = client.announce(content).json()["url"]
    at, size = 0, 1
    while at < len(content):
        piece = content[at : at + size]
        sent = client.send_bytes(url, piece, at)
        at += len(piece)
        size *= 3
        assert sent.headers["Upload-Offset"] == str(at)
    assert client.job_of(content)["state"] == "done"


def test_an_upload_takes_no_memory_of_its_size(client: TeamClient, server: TeamServer) -> None:
    """160 MiB in one request, streamed to the disk and hashed from there."""
    pieces = [bytes([number]) * (1 << 20) for number in range(160)]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    size = len(pieces) << 20
    assert server.process is not None
    before = most_resident(server.process.pid)
    answer = client.post("/api/v1/uploads", json={"sha256": digest.hexdigest(), "size": size})
    headers = {
        "Content-Type": "application/offset+octet-stream",
        "Content-Length": str(size),
        "Upload-Offset": "0",
    }

    sent = client.patch(answer.json()["url"], content=iter(pieces), headers=headers)

    assert sent.headers["Hostbound-Sha256"] == digest.hexdigest()
    assert most_resident(server.process.pid) - before < 40 << 20


def most_resident(pid: int) -> int:
    """The most memory that a process has held, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def test_tus_is_spoken_as_its_clients_expect(client: TeamClient) -> None:
    content = trace_bytes()
    announced = client.announce(content)
    url = announced.headers["Location"]

    options = client.options(url)
    assert options.headers["Tus-Version"] == "1.0.0"
    assert options.headers["Tus-Extension"] == "termination"
    assert int(options.headers["Tus-Max-Size"]) > 0
    head = client.head(url, headers={"Tus-Resumable": "1.0.0"})
    assert (head.headers["Upload-Offset"], head.headers["Upload-Length"]) == (
        "0",
        str(len(content)),
    )
    assert head.headers["Cache-Control"] == "no-store"
    wrong = client.patch(url, content=content, headers={"Upload-Offset": "0"})
    assert wrong.status_code == 415
    assert client.send_bytes(url, content[5:], 5).status_code == 409
    old = client.head(url, headers={"Tus-Resumable": "0.2.2"})
    assert old.status_code == 400
    assert client.delete(url).status_code == 204
    assert client.head(url).status_code == 404


@pytest.mark.parametrize("form", ["tar", "tar.gz", "zip"])
def test_an_archive_may_hold_several_runs(client: TeamClient, samples_dir: Path, form: str) -> None:
    content = archive({"a": samples_dir / EAGER, "b": samples_dir / GRAPH}, form)

    job = client.upload(content)

    assert (job["state"], len(job["run_ids"])) == ("done", 2)
    names = {run["name"] for run in client.get("/api/v1/runs").json()["runs"]}
    assert names == {EAGER, GRAPH}


def test_an_archive_of_ranks_is_one_run(client: TeamClient, tmp_path: Path) -> None:
    paths = write_ranks(three_ranks(), tmp_path)
    together = packing.together(tmp_path, paths, None)

    job = client.upload(b"".join(together.read()))

    assert (job["state"], len(job["run_ids"])) == ("done", 1)
    report = client.get(f"/api/v1/runs/{job['run_ids'][0]}/report").json()
    assert [rank["wait_ns"] for rank in report["ranks"]["ranks"]] == [370_000, 410_000, 5_000]


def test_an_archive_of_which_a_part_is_bad_gives_the_rest(client: TeamClient) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed_zip:
        packed_zip.writestr("good.json", trace_bytes())
        packed_zip.writestr("bad.json", "no trace")

    job = client.upload(out.getvalue())

    assert job["state"] == "failed"
    assert job["error"].startswith("1 of 2 runs: bad.json")
    assert len(job["run_ids"]) == 1
    assert client.run_ids() == job["run_ids"]


@pytest.mark.parametrize("compress", [False, True])
def test_a_trace_is_told_by_its_content(client: TeamClient, compress: bool) -> None:
    content = gzip.compress(trace_bytes()) if compress else trace_bytes()

    job = client.upload(content, name="mine", format="run-directory.tar")  # a wrong hint

    assert job["state"] == "done"
    assert client.get("/api/v1/runs").json()["runs"][0]["name"] == "mine"


def test_the_original_comes_back_as_it_was_sent(client: TeamClient, samples_dir: Path) -> None:
    content = packed(samples_dir / EAGER)
    client.upload(content, format="run-directory.tar", metadata={"file": "run.tar"})

    answer = client.get(f"/api/v1/runs/{EAGER}/original")

    assert answer.content == content
    assert answer.headers["Hostbound-Sha256"] == sha256(content)
    assert 'filename="run.tar"' in answer.headers["Content-Disposition"]
    part = client.get(f"/api/v1/runs/{EAGER}/original", headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, content[100:200])


def test_a_deleted_run_is_gone_with_its_original_and_can_come_again(
    client: TeamClient, server: TeamServer
) -> None:
    content = trace_bytes()
    (run_id,) = client.upload(content)["run_ids"]
    blobs = list(server.data.glob(f"teams/*/blobs/{sha256(content)}"))

    assert client.delete(f"/api/v1/runs/{run_id}").json() == {"deleted": run_id}

    assert client.run_ids() == []
    assert client.get(f"/api/v1/uploads/{sha256(content)}").status_code == 404
    assert len(list(server.data.glob(f"teams/*/blobs/{sha256(content)}"))) == len(blobs) - 1
    assert client.delete(f"/api/v1/runs/{run_id}").status_code == 404
    assert client.upload(content)["run_ids"] == [run_id]


def test_the_original_of_two_runs_stays_until_both_are_deleted(
    client: TeamClient, samples_dir: Path
) -> None:
    content = archive({"a": samples_dir / EAGER, "b": samples_dir / GRAPH}, "tar")
    first, second = client.upload(content)["run_ids"]

    client.delete(f"/api/v1/runs/{first}")
    kept = client.get(f"/api/v1/uploads/{sha256(content)}").json()
    assert (kept["state"], kept["run_ids"]) == ("done", [second])
    assert client.get(f"/api/v1/runs/{second}/original").content == content

    client.delete(f"/api/v1/runs/{second}")
    assert client.get(f"/api/v1/uploads/{sha256(content)}").status_code == 404


def test_replace_converts_what_is_stored_again(client: TeamClient) -> None:
    content = trace_bytes()
    first = client.upload(content)

    answer = client.announce(content, metadata={"replace": True, "python_functions": True}).json()

    assert answer["job"]["id"] != first["id"]
    job = client.job_of(content)
    assert (job["state"], job["results"][0]["state"]) == ("done", "replaced")
    assert client.run_ids() == first["run_ids"]


def test_runs_are_filtered_and_paged(client: TeamClient) -> None:
    sent = [trace_bytes(seed=seed) for seed in range(4)]
    for number, content in enumerate(sent):
        client.upload(content, name=f"run {number}")

    def names(**query: Any) -> list[str]:
        return [r["name"] for r in client.get("/api/v1/runs", params=query).json()["runs"]]

    assert names() == ["run 3", "run 2", "run 1", "run 0"]
    assert names(limit=2, offset=1) == ["run 2", "run 1"]
    assert names(name="N 2") == ["run 2"]
    assert names(mode="foreign", limit=1) == ["run 3"]
    assert names(mode="eager") == []
    assert names(sha256=sha256(sent[1])) == ["run 1"]
    assert client.get("/api/v1/runs", params={"limit": 1}).json()["total"] == 4
    states = client.get("/api/v1/jobs", params={"state": "done", "limit": 2}).json()
    assert [job["name"] for job in states["jobs"]] == ["run 3", "run 2"]
    assert states["counts"]["done"] == 4


def test_comparing_needs_two_different_runs_that_are_there(client: TeamClient) -> None:
    client.upload(trace_bytes(), name="one")

    assert client.get("/api/v1/compare?runs=one").status_code == 422
    assert client.get("/api/v1/compare?runs=one,one").status_code == 422
    assert client.get("/api/v1/compare?runs=one,two").status_code == 404
    assert client.get("/api/v1/compare?runs=" + ",".join(["one"] * 50)).status_code == 422
    assert client.get("/api/v1/compare").status_code == 422


def test_the_command_line_says_of_a_server_what_it_says_of_a_store(
    server: TeamServer, tmp_path: Path, samples_dir: Path
) -> None:
    token = make_token(server.data, "remote")
    folders = [samples_dir / EAGER, samples_dir / GRAPH]
    with server.client(token) as client:
        for folder in folders:
            client.upload(packed(folder))
    db = ("--db", str(tmp_path / "runs.duckdb"))
    analyzer("ingest", *map(str, folders), *db)
    for command, code in (
        (("report", EAGER), 0),
        (("predict", EAGER, "--what", "graphs", "--json"), 0),
        (("compare", EAGER, GRAPH, "--fail-if", "launches > -100%"), 1),
        (("sql", "SELECT name, model FROM runs ORDER BY name", "--format", "csv"), 0),
    ):
        local = analyzer(*command, *db)
        asked = analyzer(*command, "--server", server.url, HOSTBOUND_TOKEN=token)
        assert (asked.returncode, asked.stdout) == (code, local.stdout), asked.stderr
        assert asked.stderr == local.stderr

    for path in ("nowhere", ""):
        refused = analyzer("report", path, "--server", server.url, HOSTBOUND_TOKEN=token)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
    assert "HOSTBOUND_TOKEN" in analyzer("report", "--server", server.url).stderr
