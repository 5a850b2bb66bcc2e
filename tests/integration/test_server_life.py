"""The life of a run on a server: named, tagged, owned, archived, deleted; and who did it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.team_server import TeamClient, TeamServer, analyzer, make_token, trace_bytes

pytestmark = [pytest.mark.xdist_group("server"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    server = TeamServer(tmp_path_factory.mktemp("life") / "data")
    make_token(server.data, "nobody")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def token(server: TeamServer, request: pytest.FixtureRequest) -> str:
    return make_token(server.data, f"t{abs(hash(request.node.name)) % 10**9}")


@pytest.fixture
def client(server: TeamServer, token: str) -> Iterator[TeamClient]:
    with server.client(token) as client:
        for number, name in enumerate("abc"):
            client.upload(trace_bytes(seed=number), name=name)
        yield client


def names(client: TeamClient, **query: Any) -> list[str]:
    answer = client.get("/api/v1/runs", params=query)
    assert answer.status_code == 200, answer.text
    return [run["name"] for run in answer.json()["runs"]]


def test_a_run_is_renamed_tagged_owned_and_found_by_it(client: TeamClient) -> None:
    changes = {
        "name": "fast",
        "tags": ["release", "gpt2", "gpt2"],
        "note": "after the fix",
        "owner": "ada",
        "is_baseline": True,
    }
    said = client.patch("/api/v1/runs/b", json=changes)
    assert said.status_code == 200, said.text
    assert said.json() == {
        "tags": ["gpt2", "release"],
        "note": "after the fix",
        "owner": "ada",
        "is_baseline": True,
        "archived_at": None,
    }
    assert names(client, tag="release") == ["fast"]
    assert names(client, owner="ada", baseline=True) == ["fast"]
    assert names(client, baseline=False, sort="name") == ["a", "c"]
    assert client.get("/api/v1/runs/fast/report").status_code == 200
    (run,) = client.get("/api/v1/runs", params={"tag": "gpt2"}).json()["runs"]
    assert run["note"] == "after the fix"

    client.patch("/api/v1/runs/fast", json={"owner": None})  # the rest stays
    assert names(client, tag=["release", "gpt2"]) == ["fast"]
    assert names(client, owner="ada") == []


def test_an_archived_run_is_in_no_list_but_that_of_archived_ones(
    server: TeamServer, client: TeamClient
) -> None:
    assert client.patch("/api/v1/runs/a", json={"archived": True}).status_code == 200
    assert names(client, sort="-name") == ["c", "b"]
    assert names(client, archived=True) == ["a"]
    assert client.patch("/api/v1/runs/a", json={"archived": False}).status_code == 200
    assert names(client, sort="name") == ["a", "b", "c"]


def test_pages_of_a_list_go_on_where_the_one_before_ended(client: TeamClient) -> None:
    found: list[str] = []
    query: dict[str, Any] = {"limit": 2, "sort": "-name"}
    while True:
        page = client.get("/api/v1/runs", params=query).json()
        found += [run["name"] for run in page["runs"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert found == ["c", "b", "a"]
    assert names(client, since="2000-01-01", sort="name") == ["a", "b", "c"]
    assert names(client, until="2000-01-01") == []


def test_scopes_say_who_may_change_and_who_may_archive(
    server: TeamServer, client: TeamClient
) -> None:
    made = {
        scope: client.post("/api/v1/tokens", json={"scopes": [scope]}).json()["token"]
        for scope in ("read", "upload")
    }
    with server.client(made["read"]) as reader, server.client(made["upload"]) as uploader:
        assert reader.patch("/api/v1/runs/a", json={"owner": "x"}).status_code == 403
        assert reader.get("/api/v1/audit").status_code == 403
        assert uploader.patch("/api/v1/runs/a", json={"owner": "x"}).status_code == 200
        assert uploader.patch("/api/v1/runs/a", json={"archived": True}).status_code == 403


def test_the_audit_log_says_who_did_what(client: TeamClient) -> None:
    client.patch("/api/v1/runs/a", json={"tags": ["x"]})
    (run,) = client.get("/api/v1/runs", params={"tag": "x"}).json()["runs"]
    client.delete(f"/api/v1/runs/{run['run_id']}")

    page = client.get("/api/v1/audit", params={"limit": 1}).json()
    (entry,) = page["entries"]
    assert (entry["action"], entry["what"]) == ("run deleted", run["run_id"])
    assert entry["detail"] == {"name": "a"}
    assert len(entry["by"]) == 32
    (before,) = client.get("/api/v1/audit", params={"cursor": page["next"]}).json()["entries"]
    assert (before["action"], before["detail"]) == ("run changed", {"tags": ["x"]})


def test_an_error_says_what_it_is_and_where_the_log_has_it(client: TeamClient) -> None:
    answer = client.get("/api/v1/runs/none", headers={"X-Request-Id": "proxy-0001"})

    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "proxy-0001"
    said = answer.json()
    assert (said["title"], said["status"]) == ("Not Found", 404)
    assert said["request_id"] == "proxy-0001"
    assert "there is no run 'none'" in said["detail"]

    forged = client.get("/api/v1/runs", headers={"X-Request-Id": 'x"} {"event":"forged"}'})
    assert "forged" not in forged.headers["x-request-id"]


def test_the_command_line_edits_deletes_and_keeps_what_is_asked_for(
    server: TeamServer, client: TeamClient, token: str
) -> None:
    def run(*arguments: str) -> Any:
        return analyzer(*arguments, "--server", server.url, HOSTBOUND_TOKEN=token)

    done = run("edit", "a", "--tag", "release", "--owner", "ada", "--json")
    assert json.loads(done.stdout)["tags"] == ["release"], done.stderr
    assert run("edit", "a", "--untag", "release", "--tag", "keep").returncode == 0
    assert names(client, tag="keep") == ["a"]

    refused = run("delete", "b")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert run("delete", "b", "--yes").returncode == 0
    assert names(client, sort="name") == ["a", "c"]

    assert "0 runs" in run("retention", "--keep", "90d").stdout
    rule = ("retention", "--keep", "0d", "--keep-tag", "keep")
    assert "1 run would be deleted" in run(*rule).stdout
    assert names(client, sort="name") == ["a", "c"]
    assert "1 run deleted" in run(*rule, "--delete").stdout
    assert names(client) == ["a"]
