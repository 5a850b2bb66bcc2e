"""docs/study.md says what the recorded result file says, and its arithmetic is right."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Last: some scripts there have the names of packages.
sys.path.append(str(ROOT / "benchmarks"))

import study_analyse  # noqa: E402
import study_page  # noqa: E402
import study_tables as t  # noqa: E402
from analyzer import queries  # noqa: E402
from analyzer.ingest import ingest  # noqa: E402
from analyzer.reports import prediction  # noqa: E402
from result_file import result  # noqa: E402


def book(*rows: Any) -> t.Book:
    return t.Book({"results": [vars(row) for row in rows]})


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(study_analyse.FILE.read_text(encoding="utf-8"))


def test_the_page_is_written_from_the_recorded_rows(recorded: dict[str, Any]) -> None:
    """`python benchmarks/study.py render` after a new recording or a change of the page."""
    expected = study_page.page(recorded, study_page.others())
    assert study_page.PAGE.read_text(encoding="utf-8") == expected


def test_another_number_in_the_file_is_another_number_on_the_page(recorded: dict[str, Any]) -> None:
    beside = study_page.others()
    changed = json.loads(json.dumps(recorded))
    for row in changed["results"]:
        if row["metric"] == "measured" and row["parameters"]["item"] == 8:
            row["p50"] *= 2
    assert study_page.page(changed, beside) != study_page.page(recorded, beside)


def test_every_figure_of_the_page_is_there() -> None:
    text = study_page.PAGE.read_text(encoding="utf-8")
    figures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert figures
    assert all((study_page.PAGE.parent / figure).is_file() for figure in figures)


def test_six_configurations_or_more_were_foretold_and_measured(recorded: dict[str, Any]) -> None:
    found = list(t.predicted_graphs(t.Book(recorded)))
    assert len({p["name"] for p in found}) >= 6
    for p in found:
        assert p["error"] == pytest.approx(p["predicted"] / p["measured"]["p50"] - 1)


def test_the_analyzer_says_how_good_its_predictions_were(recorded: dict[str, Any]) -> None:
    book = t.Book(recorded)
    errors = t.errors(book)
    for part in (
        f"{len(errors)} captured steps",
        f"median error {100 * median(errors):.1f} %",
        f"largest {100 * max(errors):.1f} %",
        f"{t.within(book)} within the bounds",
    ):
        assert part in prediction.VALIDATED


@pytest.mark.parametrize("batch", [1, 16])
def test_the_runs_kept_here_foretell_what_the_study_says(
    recorded: dict[str, Any], tmp_path: Path, batch: int
) -> None:
    names = [f"gpt2-bs{batch}-s512-{mode}" for mode in ("eager", "graph")]
    ingest([ROOT / "benchmarks" / "runs" / name for name in names], tmp_path / "db", jobs=1)
    with queries.connect(tmp_path / "db") as connection:
        run = queries.find_run(connection, names[0])
        value = prediction.predict(connection, run, ["graphs"])

    said = {p["phase"]: p for p in t.predicted_graphs(t.Book(recorded)) if p["name"] == names[0]}
    assert {p["phase"]: p["predicted_ns"] for p in value["predictions"]} == {
        phase: p["predicted"] for phase, p in said.items()
    }
    for measured in value["measured"]:  # the captured run is found beside the eager one
        assert measured["run"] == names[1]
        assert abs(measured["error"]) < 0.15


def test_readme_has_the_conclusions(recorded: dict[str, Any]) -> None:
    """Word by word; only the line breaks are its own."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for claim in study_page.claims(t.Book(recorded)):
        assert " ".join(claim.split()) in readme


def test_a_cell_says_median_spread_and_how_many() -> None:
    assert t.cell(vars(result("x", "ns", {}, [3e6, 1e6, 2e6])), t.MS) == "2 (1 to 3; 3)"
    assert t.cell(vars(result("x", "ns", {}, [2e6])), t.MS) == "2"
    assert t.cell(None) == "-"


def test_the_crossover_lies_between_the_measured_batches() -> None:
    tags = {"phase": "prefill"}
    rows = [
        result("hdbi", "", {"name": t.gpt2_name(batch), **tags}, [value])
        for batch, value in ((1, 0.1), (4, 0.4), (8, 0.6))
    ]
    assert t.crossover(book(*rows)) == pytest.approx(6.0)
    assert t.crossover(book(*rows[:2])) is None


def test_launches_a_token_are_a_prefill_and_nine_decode_steps_over_ten() -> None:
    rows = [
        result("launches", "count", {"name": "m", "phase": "prefill"}, [1000]),
        result("launches", "count", {"name": "m", "phase": "decode"}, [100, 300]),
    ]
    assert t.per_token(book(*rows), "m") == pytest.approx(280.0)


def test_two_rows_where_one_is_asked_for_are_an_error() -> None:
    row = result("x", "ns", {"name": "m"}, [1])
    with pytest.raises(ValueError, match="2 rows"):
        book(row, row).one("x", name="m")
