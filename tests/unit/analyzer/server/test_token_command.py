"""`analyzer token` refuses what is wrong before it makes a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer import cli


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["list"], "no folder of a server"),
        (["revoke", "some-id"], "no folder of a server"),
        (["create", "--team", "A/..", "--scope", "read"], "no name for a team"),
        (["create", "--team", "a", "--scope", "fly"], "no scope"),
    ],
)
def test_a_refused_token_command_makes_no_folder(
    command: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"

    assert cli.main(["token", *command, "--data", str(data)]) == 2

    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not data.exists()
