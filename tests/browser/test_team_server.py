"""The pages inside `analyzer serve`: login by a token and by an identity provider, each team its
own runs, names that mean harm, the state of uploads.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from support.team_server import TeamServer, make_token, packed, trace_bytes
from tests.support.browser import LONGEST_TEST_S, PATIENCE_MS, Watched

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(LONGEST_TEST_S),
]

HARM = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>'


@dataclass(frozen=True)
class Team:
    server: TeamServer
    token: str  # reads
    admin: str


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Iterator[Team]:
    """A server with runs of two teams, one of them named to do harm."""
    data = tmp_path_factory.mktemp("team") / "data"
    admins = {name: make_token(data, name) for name in ("perf", "other")}
    server = TeamServer(data, "--pages").start()
    with server.client(admins["perf"]) as client:
        client.upload(packed(samples_dir / "gpt2-prefill-bs1-s512"))
        client.upload(trace_bytes(30, name=HARM), name=HARM)
        client.upload(b"no trace", name="broken <b>one</b>")
    with server.client(admins["other"]) as client:
        client.upload(trace_bytes(seed=5), name="run_of_other")
    yield Team(server, make_token(data, "perf", "read"), make_token(data, "loader", "admin"))
    server.stop()


@pytest.fixture
def enter(browser: Any) -> Iterator[Callable[[str], Watched]]:
    """A fresh browser at a server."""
    contexts: list[Any] = []

    def new(base: str) -> Watched:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        return Watched(page, base)

    yield new
    for context in contexts:
        context.close()


def log_in(watched: Watched, token: str, path: str = "") -> None:
    watched.page.goto(f"{watched.base}/{path}")
    watched.page.get_by_label("Token").fill(token)
    watched.page.get_by_role("button", name="Log in").click()
    watched.settle()


def test_a_token_logs_in_once_and_leads_to_the_page_that_was_wanted(
    team: Team, enter: Callable[[str], Watched]
) -> None:
    watched = enter(team.server.url)

    log_in(watched, team.token, "run?run=gpt2-prefill-bs1-s512")

    watched.url_has("/run?run=")
    assert team.token not in watched.page.url
    watched.page.get_by_text("Team perf").wait_for()
    watched.open("jobs")  # a reload and another page: still logged in
    watched.page.get_by_role("heading", name="Jobs").wait_for()


def test_a_team_sees_its_own_runs_on_the_pages(team: Team, enter: Callable[[str], Watched]) -> None:
    watched = enter(team.server.url)
    log_in(watched, team.token, "sql?" + urlencode({"sql": "SELECT name FROM runs", "run": 1}))
    watched.page.get_by_text("2 rows").wait_for()

    watched.open("run?run=run_of_other")

    watched.page.get_by_text("has no run").wait_for()


def test_names_from_traces_run_nothing_on_the_pages(
    team: Team, enter: Callable[[str], Watched]
) -> None:
    watched = enter(team.server.url)
    watched.page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    log_in(watched, team.token)
    for path in ("", "run?run=" + HARM, "kernels?run=" + HARM, "timeline?run=" + HARM, "jobs"):
        watched.page.goto(f"{watched.base}/{path}")
        watched.settle()
        assert watched.page.evaluate("window.harmed") is None, path
        assert watched.page.locator("img[src=x]").count() == 0, path


def test_failed_conversions_are_shown_with_their_reason(
    team: Team, enter: Callable[[str], Watched]
) -> None:
    watched = enter(team.server.url)

    log_in(watched, team.token, "jobs")

    watched.page.get_by_text("broken <b>one</b>").wait_for()
    watched.page.get_by_text("is no trace").first.wait_for()
    watched.page.get_by_role("button", name="Try again").click()
    watched.page.get_by_text("lacks the scope upload").wait_for()  # this token reads only


def load(watched: Watched, *files: Path) -> None:
    watched.page.locator("input[type=file]").set_input_files([str(file) for file in files])


def test_what_is_dropped_on_a_page_becomes_an_upload(
    team: Team, enter: Callable[[str], Watched], samples_dir: Path, tmp_path: Path
) -> None:
    """A trace, and all files of a run directory, kept and converted like any other upload."""
    trace = tmp_path / "dropped.json"
    trace.write_bytes(trace_bytes(seed=9))
    folder = samples_dir / "gpt2-prefill-bs1-s512-graph"
    watched = enter(team.server.url)
    log_in(watched, team.admin)

    load(watched, trace)
    watched.page.get_by_text("dropped is in the store").wait_for()
    watched.open("")
    load(watched, *sorted(folder.iterdir()))
    watched.page.get_by_text("gpt2-prefill-bs1-s512-graph is in the store").wait_for()

    with team.server.client(team.admin) as client:
        jobs = client.get("/api/v1/jobs").json()["jobs"]
        assert [job["state"] for job in jobs] == ["done", "done"]
        original = client.get("/api/v1/runs/dropped/original")
        assert original.content == trace.read_bytes()
        listed = client.get("/api/v1/runs").json()["runs"]
        assert {run["source"] for run in listed} == {"trace", "run_directory"}


def test_who_may_not_upload_is_told_so_on_the_page(
    team: Team, enter: Callable[[str], Watched]
) -> None:
    watched = enter(team.server.url)

    log_in(watched, team.token)

    watched.page.get_by_text("lacks the scope upload").wait_for()


# -- an identity provider


class Provider:
    """An identity provider on loopback: whoever asks is `email`, of `groups`."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.answer(self)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.nonce = ""
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/authorize":
            self.nonce = query.get("nonce", "")
            target = query["redirect_uri"] + "?" + urlencode({"code": "x", "state": query["state"]})
            request.send_response(302)
            request.send_header("Location", target)
            request.end_headers()
            return
        body = {
            "/.well-known/openid-configuration": self.description,
            "/jwks": lambda: {"keys": [self.key.as_dict(private=False, alg="RS256", use="sig")]},
            "/token": self.token,
        }[parts.path]()
        content = json.dumps(body).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def description(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def token(self) -> dict[str, Any]:
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": "hostbound",
            "sub": "1",
            "email": "ada@example.com",
            "groups": self.groups,
            "iat": now,
            "exp": now + 600,
            "nonce": self.nonce,
        }
        signed = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)
        return {
            "access_token": "a",
            "token_type": "Bearer",
            "expires_in": 600,
            "id_token": signed,
        }


@pytest.fixture(scope="module")
def provided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TeamServer, Provider]]:
    """A server whose people log in by an identity provider; the team `perf` has a run."""
    provider = Provider()
    folder = tmp_path_factory.mktemp("oidc")
    data = folder / "data"
    token = make_token(data)
    described = folder / "provider.toml"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    described.write_text(
        f"""
        [auth]
        redirect_uri = "http://127.0.0.1:{port}/oauth2callback"
        cookie_secret = "{"c" * 40}"
        client_id = "hostbound"
        client_secret = "secret"
        server_metadata_url = "{provider.url}/.well-known/openid-configuration"
        [hostbound]
        claim = "groups"
        [hostbound.teams]
        "gpu people" = "perf"
        """
    )
    server = TeamServer(data, "--pages", "--oidc", str(described), "--port", str(port)).start()
    with server.client(token) as client:
        client.upload(trace_bytes(), name="run_of_perf")
    yield server, provider
    server.stop()
    provider.http.shutdown()


def test_an_identity_provider_logs_in_and_tells_the_team(
    provided: tuple[TeamServer, Provider], enter: Callable[[str], Watched], tmp_path: Path
) -> None:
    server, provider = provided
    provider.groups = ["others", "gpu people"]
    watched = enter(server.url)
    watched.open("run?run=run_of_perf")
    assert not watched.page.get_by_text("run_of_perf").count()

    watched.page.get_by_role("button", name="Log in", exact=True).click()

    watched.page.get_by_text("Team perf").wait_for()
    watched.open("sql?" + urlencode({"sql": "SELECT name FROM runs", "run": 1}))
    watched.page.get_by_text("1 row, at most").wait_for()
    trace = tmp_path / "by_ada.json"
    trace.write_bytes(trace_bytes(seed=21))
    watched.open("")
    load(watched, trace)
    watched.page.get_by_text("by_ada is in the store").wait_for()


def test_pages_take_no_file_before_somebody_has_logged_in(
    provided: tuple[TeamServer, Provider],
) -> None:
    """Streamlit keeps what comes in memory, for any session that is open."""
    server, _ = provided
    with server.client() as nobody:
        answer = nobody.put("/_stcore/upload_file/some-session/some-file", content=b"x")
        assert answer.status_code == 401
        assert nobody.put("/_stcore/upload_file/", content=b"x").status_code == 401


def test_somebody_without_a_team_sees_nothing(
    provided: tuple[TeamServer, Provider], enter: Callable[[str], Watched]
) -> None:
    server, provider = provided
    provider.groups = ["others"]
    watched = enter(server.url)
    watched.open("")

    watched.page.get_by_role("button", name="Log in", exact=True).click()

    watched.page.get_by_text("no team here is yours").wait_for()
    assert not watched.page.get_by_text("run_of_perf").count()


def test_behind_a_proxy_everything_stands_below_its_path(
    tmp_path: Path, samples_dir: Path, enter: Callable[[str], Watched]
) -> None:
    """Upload, login, pages and links; what is not below the path is not there."""
    data = tmp_path / "data"
    admin = make_token(data, "perf")
    server = TeamServer(data, "--pages", "--base-path", "/hostbound").start()
    try:
        assert server.url.endswith("/hostbound")
        origin = server.url.removesuffix("/hostbound")
        for path in ("/readyz", "/api/v1/runs", "/", "/hostboundless/readyz"):
            assert httpx.get(origin + path, trust_env=False).status_code == 404
        with server.client(admin) as client:
            client.upload(packed(samples_dir / "gpt2-prefill-bs1-s512"))
        watched = enter(server.url)
        log_in(watched, admin, "run?run=gpt2-prefill-bs1-s512")
        watched.url_has("/hostbound/run?run=")
        watched.page.get_by_text("The GPU waits for 90 %").wait_for()
        watched.page.get_by_role("link", name="Runs").click()
        watched.settle()
        watched.page.get_by_role("link", name="gpt2-prefill-bs1-s512", exact=True).click()
        watched.url_has("/hostbound/run?run=")
        watched.page.get_by_text("The GPU waits for 90 %").wait_for()
        out = watched.page.get_by_role("link", name="Log out").get_attribute("href")
        assert out.endswith("/hostbound/logout")
        watched.page.goto(out if "://" in out else f"{origin}{out}")
        watched.url_has("/hostbound/login")
    finally:
        server.stop()
