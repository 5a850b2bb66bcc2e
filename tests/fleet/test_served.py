"""The pages and the server on a lake: they read and load by the same way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from analyzer import cli
from analyzer.ingest import ingest
from analyzer.server import serve
from analyzer.store import open_store
from fleet.services import ROOT, free_port
from tests.support.app_pages import cells, link_tables

PAGES = ("runs", "run", "timeline", "kernels", "compare", "sweep", "sql")
EAGER, GRAPH = "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph"


@pytest.fixture
def filled(lake: Path, samples_dir: Path) -> Path:
    ingest([samples_dir / EAGER, samples_dir / GRAPH], lake, jobs=1)
    return lake


def test_every_page_shows_a_lake_and_what_is_loaded_meanwhile(
    filled: Path, samples_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTBOUND_DB", str(filled))
    for page in PAGES:
        app = AppTest.from_file(str(ROOT / "webapp" / "app.py"), default_timeout=240)
        if page == "compare":
            app.query_params["runs"] = f"{EAGER},{GRAPH}"
        if page != "runs":
            app.switch_page(f"pages/{page}.py")
        app.run()
        assert not app.exception, (page, [element.value for element in app.exception])
    app = AppTest.from_file(str(ROOT / "webapp" / "app.py"), default_timeout=240).run()
    assert len(cells(link_tables(app)[0])) == 2
    ingest(samples_dir / "gpt2-prefill-bs2-s512", filled)
    app.run()
    assert len(cells(link_tables(app)[0])) == 3


@pytest.fixture
def server(filled: Path) -> Iterator[Callable[..., Any]]:
    """`analyzer serve` on a lake; a function that asks it."""
    port = free_port()
    command = [sys.executable, "-m", "analyzer.cli", "serve", "--db", str(filled), "--no-pages"]
    process = subprocess.Popen(
        [*command, "--local", "--port", str(port)],
        cwd=filled.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ask(path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=240) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            return json.load(error)

    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield ask
    process.send_signal(signal.SIGTERM)
    process.wait(240)


def test_a_server_on_a_lake_lists_answers_sql_and_loads(
    server: Callable[..., Any], filled: Path, samples_dir: Path, capsys
) -> None:
    assert {run["name"] for run in server("/api/v1/runs")["runs"]} == {EAGER, GRAPH}
    count = {"sql": "SELECT count(*) AS n FROM runs"}
    assert server("/api/v1/sql", count)["rows"] == [[2]]
    refused = {"sql": "SELECT * FROM postgres_query('__ducklake_metadata_lake', 'SELECT 1')"}
    assert "not allowed" in server("/api/v1/sql", refused)["detail"]
    # The command finds the server by its note and uploads; the server's worker loads.
    source = samples_dir / "gpt2-prefill-bs2-s512"
    assert cli.main(["ingest", str(source), "--db", str(filled)]) == 0
    assert "stored: gpt2-prefill-bs2-s512" in capsys.readouterr().out
    assert server("/api/v1/sql", count)["rows"] == [[3]]
    with open_store(filled).reading() as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(3,)]


def test_a_server_starts_on_a_lake_without_tables_and_refuses_one_that_is_down(
    make_lake: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(serve, "_run", lambda *given: started.append(given))

    options = ("--no-pages", "--local", "--port", "0")
    assert cli.main(["serve", *options, "--db", str(make_lake())]) == 0
    assert len(started) == 1

    capsys.readouterr()
    down = tmp_path / "down.toml"
    down.write_text(f'catalog = "host=127.0.0.1 port={free_port()} dbname=a user=b"\ndata = "d"\n')
    assert cli.main(["serve", "--no-pages", "--port", "0", "--db", str(down)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("analyzer: ")
    assert "down.toml did not answer" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("down.toml.*"))
    assert len(started) == 1
