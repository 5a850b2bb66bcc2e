"""What a lake file may say, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer import cli
from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.store import lake_connection, open_store
from analyzer.store.lake_file import read_lake_file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("catalog = ", "no lake file"),
        ('data = "d"', "catalog"),
        ('catalog = "dbname=x"\ndata = "d"\ncolour = "red"', "colour"),
        ('catalog = "dbname=x"\ndata = 5', "data"),
        ('catalog = "dbname=x password=y"\ndata = "d"', "password"),
        ('catalog = "dbname=x"\ndata = "ftp://host/d"', "give a folder"),
        ('catalog = "dbname=x"\ndata = ""', "give a folder"),
        ('catalog = "dbname=x"\ndata = "s3://b/p"\n[s3]\nendpoint = 9', "endpoint"),
    ],
)
def test_a_wrong_lake_file_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "lake.toml"
    file.write_text(text)
    with pytest.raises(AnalyzerError, match=words) as caught:
        read_lake_file(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_lake_file_is_refused(tmp_path: Path, samples_dir: Path, capsys) -> None:
    file = tmp_path / "lake.toml"
    assert cli.main(["runs", "--db", str(file)]) == 2
    assert cli.main(["ingest", str(samples_dir), "--db", str(file)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 2
    assert all(str(file) in line for line in said)


def test_s3_without_keys_is_refused(make_lake, samples_dir: Path, monkeypatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(AnalyzerError, match="AWS_ACCESS_KEY_ID"):
        ingest(samples_dir, make_lake("s3://bucket/prefix"))


def test_a_lake_without_runs_is_said_as_for_a_file(lake: Path, capsys) -> None:
    assert cli.main(["report", "--db", str(lake)]) == 2
    assert "load a run first" in capsys.readouterr().err
    assert cli.main(["maintain", "--db", str(lake)]) == 2
    assert "load a run first" in capsys.readouterr().err
    with open_store(lake).writing():
        pass
    assert cli.main(["report", "--db", str(lake)]) == 2
    assert "no run yet" in capsys.readouterr().err


def test_a_lake_whose_postgresql_is_not_there_is_one_line(
    tmp_path: Path, samples_dir: Path
) -> None:
    file = tmp_path / "lake.toml"
    file.write_text(f'catalog = "host={tmp_path} dbname=x"\ndata = "d"\n')
    for ask in (
        lambda: ingest(samples_dir, file),
        lambda: open_store(file).stamp(),
        lambda: open_store(file).maintain(1),
        lambda: open_store(file).reading().__enter__(),
    ):
        with pytest.raises(AnalyzerError, match="did not answer") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_upkeep_of_a_file_is_refused(tmp_path: Path, capsys) -> None:
    assert cli.main(["maintain", "--db", str(tmp_path / "s.duckdb")]) == 2
    assert "needs no upkeep" in capsys.readouterr().err


def test_extensions_come_from_a_folder_that_is_named(lake: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(lake_module_variable := lake_variable(), str(tmp_path))
    with pytest.raises(AnalyzerError, match="pip install") as caught:
        open_store(lake).writing().__enter__()
    assert lake_module_variable in str(caught.value)
    for name in lake_extensions():
        source = lake_extension_file(name)
        (tmp_path / source.name).symlink_to(source)
    with open_store(lake).writing() as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(0,)]


def test_an_extension_that_was_tampered_with_is_refused(lake: Path, tmp_path, monkeypatch) -> None:
    for name in lake_extensions():
        data = bytearray(lake_extension_file(name).read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / f"{name}.duckdb_extension").write_bytes(data)
    monkeypatch.setenv(lake_variable(), str(tmp_path))
    with pytest.raises(AnalyzerError, match="signature"):
        open_store(lake).writing().__enter__()


def lake_variable() -> str:
    return lake_connection.EXTENSIONS_VARIABLE


def lake_extensions() -> tuple[str, ...]:
    return lake_connection.EXTENSIONS[:2]


def lake_extension_file(name: str) -> Path:
    package = __import__(f"duckdb_extension_{name}")
    (found,) = Path(package.__file__).parent.rglob(f"{name}.duckdb_extension")
    return found
