"""What a page must not do: lose what was typed or chosen, hide the device, mix what differs, call
unknown 0, or take an address that means nothing in silence.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from analyzer.ingest import ingest
from analyzer.queries.costs import AccountTime
from tests.support.app_pages import cells, link_tables, settled, texts
from tests.support.small_traces import GPU_EVENTS, event
from webapp import theme
from webapp.charts import accounts, parts, sweep, timeline

EAGER, GRAPH = "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph"


# -- typed SQL


def typed(app):
    return next(area for area in app.text_area if area.label.startswith("SQL"))


def send(app, sql: str):
    typed(app).set_value(sql)
    return next(button for button in app.button if button.label == "Run").click().run()


def test_every_statement_that_is_sent_is_answered(samples_store, show):
    app = show(samples_store, "sql")
    for i in range(5):
        send(app, f"SELECT {i} AS answer")
        assert typed(app).value == f"SELECT {i} AS answer"
        assert app.dataframe[0].value["answer"].to_list() == [i]


def test_an_example_or_a_statement_sent_before_replaces_what_is_typed(samples_store, show):
    app = show(samples_store, "sql")
    send(app, "SELECT 1 AS one")
    send(app, "SELECT 2 AS two")
    choice = next(w for w in app.selectbox if w.label.startswith("Example"))
    assert choice.options[:2] == ["SELECT 2 AS two", "SELECT 1 AS one"]
    choice.set_value("SELECT 1 AS one").run()
    assert typed(app).value == "SELECT 1 AS one"
    send(app, "SELECT 3 AS three")
    assert typed(app).value == "SELECT 3 AS three"


def test_the_schema_says_what_a_column_is_and_begins_with_what_is_asked_most(samples_store, show):
    app = show(samples_store, "sql")
    labels = [box.label.replace("\\", "") for box in app.expander]
    assert labels.index("step_totals") < labels.index("calls")
    assert any("prompt_len  BIGINT  -- tokens" in block.value for block in app.code)


# -- lanes


@pytest.fixture
def many_threads(store_of) -> Path:
    """Forty threads with ops and calls, the first of which launches most, and one stream."""
    events = list(GPU_EVENTS)
    for tid in range(101, 141):
        events += [event("aten::add", "cpu_op", 100 + i * 50, 30) | {"tid": tid} for i in range(9)]
        events.append(event("cudaEventRecord", "cuda_runtime", 110, 3) | {"tid": tid})
    return store_of(busy=events)


def test_the_device_is_drawn_however_many_threads_there_are(many_threads, show, monkeypatch):
    drawn: list[list[str]] = []
    draw = timeline.draw
    monkeypatch.setattr(
        timeline,
        "draw",
        lambda rows, labels, *rest: (drawn.append(labels), draw(rows, labels, *rest))[1],
    )
    app = show(many_threads, "timeline")
    assert {"host by account", "device idle, host in", "stream 0/7"} <= set(drawn[-1])
    assert len(drawn[-1]) == 24
    assert "61 more lanes of quieter threads and streams are not drawn" in texts(app)
    next(button for button in app.button if button.label == "Draw all lanes").click().run()
    assert len(drawn[-1]) == 85
    assert "not drawn" not in texts(app)


# -- another run


def test_another_run_has_no_window_event_or_kernel_of_the_one_before(samples_store, show):
    app = show(samples_store, "timeline", run=EAGER, **{"from": "1000", "to": "2000"}, event="op:3")
    choice = next(w for w in app.selectbox if w.label == "Run")
    other = next(i for i, said in enumerate(choice.options) if said.startswith(f"{GRAPH} "))
    choice.select_index(other).run()
    assert set(app.query_params) == {"run"}
    assert not app.code
    app = show(samples_store, "kernels", run=EAGER, kernel="5", family="gemm")
    choice = next(w for w in app.selectbox if w.label == "Run")
    choice.select_index(other).run()
    assert set(app.query_params) == {"run"}


def test_what_the_page_chooses_by_itself_is_no_step_of_the_browsers_history(samples_store, show):
    app = show(samples_store, "run")
    assert "run" not in app.query_params
    assert len(settled(app)["run"]) == 32


# -- the verdict


def test_the_verdict_is_that_of_the_chosen_phase(samples_dir, tmp_path, show):
    store = tmp_path / "phases.duckdb"
    ingest(samples_dir / "gpt2-bs1-s512", store, jobs=1)
    said = {}
    for phase in ("all steps", "prefill", "decode"):
        app = show(store, "run", phase=phase)
        figures = {metric.label: metric.value for metric in app.metric}
        said[phase] = next(t.value for t in app.markdown if t.value.startswith("The GPU waits"))
        assert f"waits for {figures['GPU waits']}" in said[phase]
        assert figures["HDBI, host-bound"] in said[phase].replace("\\", "")
    assert len(set(said.values())) == 3


# -- 0 and unknown


MTIA = [
    event("aten::mm", "cpu_op", 0, 100),
    {**event("mm", "mtia_ccp_events", 20, 50, device=0, stream=1), "pid": 3, "tid": 4},
]


@pytest.mark.parametrize("events", [MTIA, GPU_EVENTS[:3]], ids=["mtia", "cpu"])
def test_what_the_trace_does_not_tell_is_a_dash_and_never_0(store_of, show, events):
    store = store_of(one=events)
    figures = {m.label: m.value for m in show(store, "run").metric}
    unknown = ("T_DeviceActive", "T_Orchestration", "TKLQT", "launch floor", "HDBI, unknown")
    assert {figures[name] for name in unknown} == {"-"}
    row = cells(link_tables(show(store, "runs"))[0])[0]
    assert row["hdbi"]["text"] == "-"


# -- colours and means


def test_no_two_series_have_one_colour_and_what_is_left_over_is_grey():
    names = [f"series {i}" for i in range(12)]
    colours = parts.run_colours(names)
    assert len(set(theme.RUNS)) == len(theme.RUNS) == 8
    assert theme.REST not in theme.RUNS
    assert [colours[name] for name in names[:8]] == list(theme.RUNS)
    assert {colours[name] for name in names[8:]} == {theme.REST}


def test_a_sweep_names_the_series_that_are_left_without_a_colour():
    points = [
        sweep.Point(
            x=1, y=None, value=i / 10, series=f"s{i:02}", name=f"r{i}", run_id=str(i), exact=""
        )
        for i in range(10)
    ]
    spec = sweep.lines(points, "hdbi", "HDBI", "batch").to_dict()
    (colour,) = {
        tuple(layer["encoding"]["color"]["scale"]["domain"])
        for layer in spec["layer"]
        if "scale" in layer["encoding"].get("color", {})
    }
    assert colour == (*(f"s{i:02}" for i in range(8)), sweep.REST)
    rows = next(iter(spec["datasets"].values()))
    assert [row["series"] for row in rows if row["shown"] == sweep.REST] == ["s08", "s09"]


def test_a_sweep_takes_no_mean_of_different_configurations(samples_store, show, monkeypatch):
    made = []
    heat_map = sweep.heat_map
    monkeypatch.setattr(
        sweep, "heat_map", lambda cells, *rest: (made.append(cells), heat_map(cells, *rest))[1]
    )
    show(samples_store, "sweep")
    found = {(cell.x, cell.y): cell for cell in made[-1]}
    assert found[1, 512].value is None  # eager, compile and graph
    assert found[1, 512].text == "3 runs, 0.124 to 0.652"
    assert found[2, 512].value == pytest.approx(0.25, abs=0.001)


def test_repetitions_of_one_configuration_are_a_mean_that_says_so(
    samples_store, show, tmp_path, monkeypatch
):
    store = tmp_path / "repeated.duckdb"
    shutil.copy(samples_store, store)
    with duckdb.connect(str(store)) as connection:
        connection.execute("UPDATE runs SET batch_size = 1, mode = 'eager', model = 'gpt2'")
    made = []
    heat_map = sweep.heat_map
    monkeypatch.setattr(
        sweep, "heat_map", lambda cells, *rest: (made.append(cells), heat_map(cells, *rest))[1]
    )
    show(store, "sweep")
    (cell,) = made[-1]
    assert (cell.runs, cell.configurations) == (5, 1)
    assert cell.text == "0.344 of 5"


def test_a_sweep_of_a_phase_takes_its_steps_only(samples_dir, tmp_path, show, monkeypatch):
    store = tmp_path / "phases.duckdb"
    ingest(samples_dir / "gpt2-bs1-s512", store, jobs=1)
    made = []
    lines = sweep.lines
    monkeypatch.setattr(
        sweep,
        "lines",
        lambda points, *rest: (made.append(points[0].value), lines(points, *rest))[1],
    )
    for phase in ("all steps", "prefill", "decode"):
        show(store, "sweep", phase=phase)
    assert len(set(made)) == 3


# -- addresses that mean nothing


@pytest.mark.parametrize(
    ("page", "asked"),
    [
        ("timeline", {"run": EAGER, "trace": "77"}),
        ("timeline", {"run": EAGER, "from": "x"}),
        ("kernels", {"run": EAGER, "kernel": "99999"}),
        ("kernels", {"run": EAGER, "family": "zz"}),
        ("run", {"run": EAGER, "phase": "zz"}),
        ("sweep", {"quantity": "zz"}),
        ("sweep", {"along": "zz"}),
        ("runs", {"mode": "zzz"}),
        ("runs", {"bound": "zzz"}),
        ("compare", {"runs": f"{EAGER},nobody"}),
    ],
)
def test_an_address_that_means_nothing_here_is_said(samples_store, show, page, asked):
    said = " ".join(warning.value for warning in show(samples_store, page, **asked).warning)
    assert [*asked.values()][-1].rpartition(",")[2] in said


def test_time_that_may_be_exposed_or_hidden_is_drawn_as_neither():
    found = {"python": AccountTime(10, None), "launch": AccountTime(5, 2)}
    rows = next(iter(accounts.ledger(found).to_dict()["datasets"].values()))
    parts_of = {(row["account"], row["part"]): row["value"] for row in rows}
    assert parts_of == {
        ("python", "exposed or hidden: unknown"): 10,
        ("launch", "exposed"): 2,
        ("launch", "hidden"): 3,
    }
