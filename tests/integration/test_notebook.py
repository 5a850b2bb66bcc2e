"""What a notebook does: the one in docs/ runs, and answers show themselves."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer import load
from analyzer.errors import AnalyzerError
from analyzer.queries.records import Run

ROOT = Path(__file__).resolve().parents[2]


def cells() -> list[str]:
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; its value is that of its last expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        return exec(compile(tree, "cell", "exec"), names)
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_notebook_of_the_docs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}

    report, figures, prediction, costs, compared = [run_cell(cell, names) for cell in cells()]

    assert "Ledger of the launching thread" in report._repr_html_()
    assert 0 < figures[0] < 1
    assert prediction.predictions[0].what == "graphs"
    assert costs["ns"][0] > 0
    assert "graph" in compared._repr_html_()


def test_each_table_of_a_run_is_a_frame(samples_dir: Path, tmp_path: Path) -> None:
    run = load(samples_dir / "gpt2-prefill-bs1-s512", tmp_path / "s.duckdb")

    assert run.frame("steps").height == run.report().measured.steps
    assert isinstance(run.frame("device_events"), pl.DataFrame)
    assert isinstance(run.report().run, Run)
    with pytest.raises(AnalyzerError, match="there is no table 'x'"):
        run.frame("x")


def test_several_runs_do_not_answer_as_one(samples_dir: Path, tmp_path: Path) -> None:
    names = ("gpt2-prefill-bs1-s512", "gpt2-prefill-bs2-s512")
    both = load([samples_dir / name for name in names], tmp_path / "s.duckdb")

    assert [entry.state for entry in both] == ["stored", "stored"]
    with pytest.raises(AnalyzerError, match="2 runs were loaded"):
        both.report()


def test_what_could_not_be_loaded_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")

    with pytest.raises(AnalyzerError, match=r"broken\.json"):
        load(tmp_path / "broken.json", tmp_path / "s.duckdb").report()
