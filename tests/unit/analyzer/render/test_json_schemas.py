"""The schemas in the repository are those of the records, and what commands print keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from analyzer import cli
from analyzer.ingest import ingest
from analyzer.render.json_schemas import SCHEMAS, text

FOLDER = Path(__file__).resolve().parents[4] / "schemas" / "json"
RUNS = ("gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph")
COMMANDS = {
    "report": ["report", RUNS[0]],
    "compare": ["compare", *RUNS, "--fail-if", "launches > +5%"],
    "predict": ["predict", RUNS[0]],
    "doctor": ["doctor", RUNS[0]],
    "runs": ["runs"],
}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    path = tmp_path_factory.mktemp("schemas") / "s.duckdb"
    ingest([samples_dir / name for name in RUNS], path, jobs=1)
    return path


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_file_is_what_the_records_say(name: str) -> None:
    """`python -m analyzer.render.json_schemas schemas/json` writes them."""
    assert (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8") == text(name)


def test_there_is_no_schema_of_nothing() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.schema.json" for name in SCHEMAS}
    assert set(COMMANDS) == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_a_command_prints_keeps_its_schema(
    name: str, db: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*COMMANDS[name], "--db", str(db), "--json"]) == 0

    jsonschema.validate(json.loads(capsys.readouterr().out), json.loads(text(name)))


def test_each_field_says_what_it_is() -> None:
    parts: dict[str, Any] = json.loads(text("report"))["$defs"]

    silent = [
        f"{part}.{field}"
        for part, described in parts.items()
        for field, entry in described.get("properties", {}).items()
        if "description" not in entry
    ]

    # Of the collector's manifest, whose fields its own module documents.
    assert len(silent) < sum(len(d.get("properties", {})) for d in parts.values()) / 10, silent
