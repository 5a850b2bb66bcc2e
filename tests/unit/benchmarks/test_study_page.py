"""docs/study.md says what the recorded result file says, and its arithmetic is right."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from jinja2 import Environment, meta

from analyzer import queries
from analyzer.ingest import ingest
from analyzer.reports import prediction
from benchmarks.result_file import result
from benchmarks.study import page, results, values
from benchmarks.study import tables as t
from benchmarks.study.results import MS, Recorded, Results

ROOT = Path(__file__).parents[3]


def of_rows(*rows: Any) -> Results:
    return Results({"results": [vars(row) for row in rows]})


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return results.recorded()


def test_the_page_is_written_from_the_recorded_rows(recorded: Recorded) -> None:
    """`python -m benchmarks.study render` after a new recording or a change of the template."""
    assert page.PAGE.read_text(encoding="utf-8") == page.render(recorded)


def test_another_number_in_the_file_is_another_number_on_the_page(recorded: Recorded) -> None:
    changed = json.loads(json.dumps(recorded.study.content))
    for row in changed["results"]:
        if row["metric"] == "measured" and row["parameters"]["item"] == 8:
            row["p50"] *= 2
    other = replace(recorded, study=Results(changed))
    assert page.render(other) != page.render(recorded)


def test_the_template_uses_every_value(recorded: Recorded) -> None:
    template = page.TEMPLATE.read_text(encoding="utf-8")
    used = meta.find_undeclared_variables(Environment().parse(template))
    assert used - set(page.names(recorded)) == set(values.values(recorded))


def test_every_figure_of_the_page_is_there() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    figures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert figures
    assert all((page.PAGE.parent / figure).is_file() for figure in figures)


def test_six_configurations_or_more_were_predicted_and_measured(recorded: Recorded) -> None:
    found = list(t.predicted_graphs(recorded.study))
    assert len({p["name"] for p in found}) >= 6
    for p in found:
        assert p["error"] == pytest.approx(p["predicted"] / p["measured"]["p50"] - 1)


def test_the_analyzer_says_how_good_its_predictions_were(recorded: Recorded) -> None:
    study = recorded.study
    errors = values.prediction_errors(study)
    for part in (
        f"{len(errors)} captured steps",
        f"median error {100 * median(errors):.1f} %",
        f"largest {100 * max(errors):.1f} %",
        f"{sum(p['is_within_bounds'] for p in t.predicted_graphs(study))} within the bounds",
    ):
        assert part in prediction.VALIDATED


@pytest.mark.parametrize("batch", [1, 16])
def test_the_runs_kept_here_predict_what_the_study_says(
    recorded: Recorded, tmp_path: Path, batch: int
) -> None:
    names = [f"gpt2-bs{batch}-s512-{mode}" for mode in ("eager", "graph")]
    ingest([ROOT / "benchmarks" / "runs" / name for name in names], tmp_path / "db", jobs=1)
    with queries.connect(tmp_path / "db") as connection:
        run = queries.find_run(connection, names[0])
        value = prediction.predict(connection, run, ["graphs"])

    said = {p["phase"]: p for p in t.predicted_graphs(recorded.study) if p["name"] == names[0]}
    assert {p.phase: p.predicted_ns for p in value.predictions} == {
        phase: p["predicted"] for phase, p in said.items()
    }
    for measured in value.measured:  # the captured run is found beside the eager one
        assert measured.run == names[1]
        assert abs(measured.error) < 0.15


def test_readme_has_the_conclusions(recorded: Recorded) -> None:
    """Word by word; only the line breaks are its own."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    text = page.render(recorded).partition("What to conclude:")[2].partition("What not to")[0]
    claims = [" ".join(claim.split()) for claim in text.split("\n- ")[1:]]
    assert len(claims) == 6
    for claim in claims:
        assert f"- {claim}" in readme


def test_a_cell_says_median_spread_and_how_many() -> None:
    assert results.cell(vars(result("x", "ns", {}, [3e6, 1e6, 2e6])), MS) == "2 (1 to 3; 3)"
    assert results.cell(vars(result("x", "ns", {}, [2e6])), MS) == "2"
    assert results.cell(None) == "-"


def test_the_crossover_lies_between_the_measured_batches() -> None:
    tags = {"phase": "prefill"}
    rows = [
        result("hdbi", "", {"name": t.gpt2_name(batch), **tags}, [value])
        for batch, value in ((1, 0.1), (4, 0.4), (8, 0.6))
    ]
    assert values.crossover(of_rows(*rows)) == pytest.approx(6.0)
    assert values.crossover(of_rows(*rows[:2])) is None


def test_launches_a_token_are_a_prefill_and_nine_decode_steps_over_ten() -> None:
    rows = [
        result("launches", "count", {"name": "m", "phase": "prefill"}, [1000]),
        result("launches", "count", {"name": "m", "phase": "decode"}, [100, 300]),
    ]
    assert t.launches_per_token(of_rows(*rows), "m") == pytest.approx(280.0)


def test_two_rows_where_one_is_asked_for_are_an_error() -> None:
    row = result("x", "ns", {"name": "m"}, [1])
    with pytest.raises(ValueError, match="2 rows"):
        of_rows(row, row).one("x", name="m")
