"""`analyzer serve` says in one line why it cannot start, with exit code 2, and leaves nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzer import cli
from analyzer.server import serve
from analyzer.store import discovery


@pytest.fixture
def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Starts a server that must refuse; its line. Nothing may be new in the folder."""

    def started(*_: Any) -> None:
        raise AssertionError("it started")

    monkeypatch.setattr(serve, "_run", started)
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert cli.main(["serve", "--no-pages", "--local", "--port", "0", *options]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        assert error.startswith("analyzer: ")
        assert sorted(tmp_path.rglob("*")) == before
        return error

    return run


def test_a_file_that_is_no_store_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "junk.duckdb").write_text("no store\n")
    (tmp_path / "folder.duckdb").mkdir()

    assert "junk.duckdb cannot be opened as a store" in refused("--db", "junk.duckdb")
    assert "folder.duckdb cannot be opened as a store" in refused("--db", "folder.duckdb")


@pytest.mark.parametrize(
    ("db", "said"),
    [("junk.duckdb", "cannot be opened as a store"), ("nowhere/runs.duckdb", "is no folder")],
)
def test_a_token_is_made_for_no_store_that_is_none(
    db: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "junk.duckdb").write_text("no store\n")

    assert cli.main(["token", "create", "--db", db, "--team", "default", "--scope", "admin"]) == 2

    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert said in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["junk.duckdb"]


def test_a_store_in_a_folder_that_is_not_there_is_refused(refused: Callable[..., str]) -> None:
    assert "nowhere is no folder" in refused("--db", "nowhere/runs.duckdb")
    assert "'.' is no file" in refused("--db", "")


def test_a_lake_file_that_is_missing_or_none_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "junk.toml").write_text("no lake\n")

    assert "missing.toml cannot be read" in refused("--db", "missing.toml")
    assert "junk.toml is no lake file" in refused("--db", "junk.toml")


def test_an_address_that_cannot_be_listened_on_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "Address already in use" in refused("--data", "new/data", "--port", str(port))
    assert "99999 is no port" in refused("--data", "data", "--port", "99999")
    assert "cannot be listened on" in refused("--data", "data", "--host", "a" * 80)
    (tmp_path / "empty").mkdir()
    for data in ("new/data", "empty"):
        assert "make a token first" in refused("--data", data, "--host", "0.0.0.0")


def test_an_identity_provider_that_cannot_be_read_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "junk.toml").write_text("no provider\n")

    assert "missing.toml cannot be read" in refused("--data", "data", "--oidc", "missing.toml")
    assert "junk.toml is no description" in refused("--data", "data", "--oidc", "junk.toml")


def test_a_folder_that_cannot_be_used_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert "file cannot be made: File exists" in refused("--data", "file")
    assert "file/data cannot be made: Not a directory" in refused("--data", "file/data")

    for name in ("teams", "server.lock"):
        folder = tmp_path / f"bad {name}"
        folder.mkdir()
        (folder / "server.lock").touch()
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/full/nothing")
        (folder / "teams").mkdir(exist_ok=True) if name != "teams" else None
        assert f"{name} cannot be" in refused("--data", str(folder))

    state = tmp_path / "bad state"
    (state / "teams").mkdir(parents=True)
    (state / "server.lock").touch()
    (state / "server.sqlite").write_text("no tokens, no jobs\n")
    assert "server.sqlite cannot be opened" in refused("--data", str(state))


def test_a_server_without_its_database_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    """Tokens are in it: without them everybody would be let in."""
    blobs = tmp_path / "data" / "teams" / "a" / "blobs"
    for name in ("blobs", "uploads", "work", "snapshots"):
        (tmp_path / "data" / "teams" / "a" / name).mkdir(parents=True)
    (blobs / ("0" * 64)).touch()
    (tmp_path / "data" / "server.lock").touch()

    assert "no server.sqlite" in refused("--data", "data")
    (tmp_path / "data" / "server.sqlite").touch()
    assert "put them back from a backup" in refused("--data", "data")


def test_a_damaged_store_that_is_all_there_is_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "x.duckdb.data"
    folder.mkdir()
    for name in ("server.lock", "server.sqlite"):
        (folder / name).touch()
    (tmp_path / "x.duckdb").write_text("no store\n")

    assert "x.duckdb cannot be opened as a store" in refused("--db", "x.duckdb")


def test_a_start_that_fails_late_takes_its_folder_along(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_note(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "runs.duckdb.server")

    monkeypatch.setattr(discovery, "leave_note", no_note)

    assert "runs.duckdb.server cannot be used: Permission denied" in refused("--db", "runs.duckdb")


@pytest.mark.parametrize(
    "options",
    [
        ("--workers", "-3"),
        ("--sql-at-once", "0"),
        ("--max-files", "-1"),
        ("--max-events", "many"),
        ("--data", ""),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(
    options: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", *options])
    assert ended.value.code == 2
    assert not list(tmp_path.iterdir())


def test_a_file_store_and_a_folder_are_not_served_together(refused: Callable[..., str]) -> None:
    assert "is for a lake" in refused("--db", "runs.duckdb", "--data", "data")


def test_a_cookie_secret_that_can_be_guessed_is_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "oidc.toml").write_text(
        '[auth]\nredirect_uri = "http://x/oauth2callback"\ncookie_secret = "short"\n'
        'client_id = "i"\nclient_secret = "s"\nserver_metadata_url = "http://x/m"\n[hostbound]\n'
        'teams = {"ada@example.com" = "perf"}\n'
    )

    assert "can be guessed" in refused("--data", "data", "--oidc", "oidc.toml")
