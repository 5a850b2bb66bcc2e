"""What each page says, on samples and on stores that lack something."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from analyzer.ingest import ingest
from tests.support.app_pages import PAGES, cells, charts, link_tables, texts
from tests.support.small_traces import CPU_EVENTS, GPU_EVENTS, written
from webapp import components, data, downloads
from webapp.query_task import QueryTask

EAGER, GRAPH = "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph"
PARAMS = {"compare": {"runs": f"{EAGER},{GRAPH}"}, "sql": {"run": "1"}}
Show = Callable[..., object]


def test_runs_page_lists_every_run_and_counts_them(samples_store, show):
    app = show(samples_store, "runs")
    (table,) = link_tables(app)
    assert len(table["rows"]) == 5
    assert "**5** of 5 runs" in texts(app)
    assert charts(app) == 1


def test_search_and_filters_come_from_the_url(samples_store, show):
    app = show(samples_store, "runs", q="GRAPH")
    assert [row["run"]["text"] for row in cells(link_tables(app)[0])] == [GRAPH]
    app = show(samples_store, "runs", mode="eager", batch_size="8")
    assert "**1** of 5 runs" in texts(app)
    app = show(samples_store, "runs", q="nothing like it")
    assert "take a filter away" in texts(app)


def test_a_search_typed_goes_into_the_url(samples_store, show):
    app = show(samples_store, "runs")
    app.text_input[0].set_value("compile").run()
    assert app.query_params["q"] in ("compile", ["compile"])
    assert "**1** of 5 runs" in texts(app)


def test_a_run_is_a_link_and_unknown_is_sorted_as_unknown(store_of, show):
    app = show(store_of(cpu=CPU_EVENTS, one=GPU_EVENTS), "runs")
    rows = {row["run"]["text"]: row for row in cells(link_tables(app)[0])}
    assert rows["one"]["run"]["href"].startswith("/run?run=")
    assert rows["one"]["idle"]["order"] == pytest.approx(0.433, abs=0.001)
    assert {rows["cpu"][name]["order"] for name in ("idle", "hdbi", "bound")} == {None}
    assert rows["cpu"]["idle"]["text"] == rows["cpu"]["hdbi"]["text"] == "-"


def test_chosen_runs_of_the_address_lead_to_their_comparison(samples_store, show):
    first, second = _ids(samples_store)[:2]
    app = show(samples_store, "runs", picked=f"{second[:8]},{first[:8]}", q="nothing like it")
    assert "take a filter away" in texts(app)
    app = show(samples_store, "runs", picked=f"{second[:8]},{first[:8]}", bound="balanced")
    assert "2 chosen, " in texts(app)
    links = {link.proto.label: link.proto for link in app.get("page_link")}
    assert links["Open"].disabled
    assert not links["Compare"].disabled
    assert links["Compare"].query_string == f"runs={second}%2C{first}"


def _ids(store: Path) -> list[str]:
    with duckdb.connect(str(store), read_only=True) as connection:
        return [row[0] for row in connection.execute("SELECT run_id FROM runs").fetchall()]


def test_run_page_says_how_host_bound_and_what_to_try(samples_store, show):
    app = show(samples_store, "run", run=EAGER)
    said = texts(app)
    assert "The GPU waits for 90 % of the steps' host time" in said
    assert "software stack dominates" in said
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["GPU waits"] == "90 %"
    assert figures["of it in framework"] == "9.77 ms"
    assert figures["HDBI, host-bound"] == "0.173"
    assert figures["as CUDA graphs"] == "1.48 ms"
    assert charts(app) == 4
    assert "not measured" in said  # the floor is an estimate, in plain sight


def test_run_page_predicts_a_graph_and_says_where_such_predictions_held(samples_store, show):
    app = show(samples_store, "run", run=EAGER)
    (table,) = [t.value for t in app.dataframe if "predicted (ms)" in t.value.columns]
    graphs = table[table["change"] == "graphs"].iloc[0]
    assert graphs["low (ms)"] < graphs["predicted (ms)"] < graphs["high (ms)"] < graphs["now (ms)"]
    assert "held against" in texts(app)

    app = show(samples_store, "run", run=GRAPH)
    assert "replays graphs already" in texts(app)


def test_a_device_bound_run_gets_other_advice(samples_store, show):
    assert "Device work dominates" in texts(show(samples_store, "run", run=GRAPH))


def test_a_run_that_is_not_there_is_named_and_the_newest_shown(samples_store, show):
    app = show(samples_store, "run", run="nobody")
    assert "has no run nobody" in app.warning[0].value


def test_timeline_draws_lanes_and_takes_its_window_from_the_url(samples_store, show):
    whole = show(samples_store, "timeline", run=EAGER)
    assert charts(whole) == 1
    part = show(samples_store, "timeline", run=EAGER, **{"from": "12000000", "to": "13500000"})
    assert "1.50 ms of" in texts(part)
    next(b for b in part.button if b.label == "Zoom in").click().run()
    assert "750 us of" in texts(part)
    next(b for b in part.button if b.label == "Whole trace").click().run()
    assert "from" not in part.query_params


def test_a_long_trace_is_drawn_before_its_accounts_are_read_and_then_once(
    samples_store, show, tmp_path, monkeypatch
):
    store = tmp_path / "long.duckdb"
    shutil.copy(samples_store, store)
    with duckdb.connect(str(store)) as connection:
        connection.execute("UPDATE traces SET events = 1000000")
    drawn = []
    only_chart, selectable_chart = components.only_chart, components.selectable_chart
    profile = data.profile
    monkeypatch.setattr(
        components,
        "only_chart",
        lambda *given: (drawn.append(given[1]), only_chart(*given))[1],
    )
    monkeypatch.setattr(
        components,
        "selectable_chart",
        lambda *given, **named: (drawn.append(given[2]), selectable_chart(*given, **named))[1],
    )
    monkeypatch.setattr(data, "profile", lambda *given: (drawn.append("read"), profile(*given))[1])
    app = show(store, "timeline", run=EAGER)
    assert charts(app) == 1
    assert [said.split()[0] for said in drawn] == ["Timeline", "read", "Timeline"]
    app.run()
    assert [said.split()[0] for said in drawn[3:]] == ["read", "Timeline"]


@pytest.mark.parametrize("junk", ["x", "-5", "99999999999999", ""])
def test_a_window_that_makes_no_sense_shows_something_all_the_same(samples_store, show, junk):
    assert charts(show(samples_store, "timeline", run=EAGER, **{"from": junk, "to": junk})) == 1


def test_an_event_of_the_url_is_shown_with_its_launch_and_op(samples_store, show):
    app = show(samples_store, "timeline", run=EAGER, event="stream:3")
    assert "vectorized_gather_kernel" in app.code[0].value
    facts = dict(app.dataframe[-1].value.itertuples(index=False))
    assert facts["call"] == "cudaLaunchKernel"
    assert facts["op"] == "aten::gather"


def test_an_event_can_be_chosen_without_a_mouse(samples_store, show):
    app = show(samples_store, "timeline", run=EAGER)
    choice = next(w for w in app.selectbox if w.label == "Event")
    longest = next(i for i, said in enumerate(choice.options) if said.startswith("stream 0/7: "))
    choice.select_index(longest).run()
    assert "stream:" in "".join(app.query_params["event"])
    assert "Kernel2" in app.code[0].value


@pytest.mark.parametrize("event", ["call:3", "op:3", "stream:999999", "nonsense", "op:"])
def test_any_event_in_the_url_is_shown_or_refused_in_one_line(samples_store, show, event):
    show(samples_store, "timeline", run=EAGER, event=event)


def test_kernels_page_searches_and_goes_down_to_every_launch(samples_store, show):
    app = show(samples_store, "kernels", run=EAGER, q="addmm")
    assert "**4** kernels" in texts(app)
    app = show(samples_store, "kernels", run=EAGER, kernel="5")
    assert {m.label: m.value for m in app.metric}["times"] == "36"
    assert charts(app) == 5


def test_compare_says_what_changed_and_names_the_unknown_host(samples_store, show):
    app = show(samples_store, "compare", runs=f"{EAGER},{GRAPH}")
    assert "times faster" in texts(app)
    assert "host" in app.warning[0].value
    assert charts(app) == 2
    rows = cells(link_tables(app)[0])
    assert [row["base"]["text"] for row in rows] == ["base", "make base"]
    assert rows[1]["step_step"]["text"] == "1.68 ms  ×0.18"
    swapped = f"runs={'%2C'.join(row['id'] for row in reversed(link_tables(app)[0]['rows']))}"
    assert rows[1]["base"]["href"] == f"/compare?{swapped}"


def test_compare_names_the_libraries_whose_versions_differ(samples_store, show, tmp_path):
    store = tmp_path / "hosts.duckdb"
    shutil.copy(samples_store, store)
    with duckdb.connect(str(store)) as connection:
        for name, torch in ((EAGER, "2.11.0"), (GRAPH, "2.12.0")):
            connection.execute(
                "INSERT INTO hosts (host_id, host, versions) VALUES (?, ?, ?)",
                [torch, f"host-{torch}", f'{{"python": "3.12", "torch": "{torch}"}}'],
            )
            connection.execute("UPDATE runs SET host_id = ? WHERE name = ?", [torch, name])
    (warning,) = show(store, "compare", runs=f"{EAGER},{GRAPH}").warning
    said = warning.value.replace("\\", "").split("  \n")
    assert "library versions differ: torch 2.11.0 and 2.12.0" in said
    assert "hosts differ: host-2.11.0 and host-2.12.0" in said


def test_compare_shows_the_ratios_of_runs_that_were_recorded_interleaved(
    interleaved_pair, samples_store, show, tmp_path
):
    store = tmp_path / "interleaved.duckdb"
    ingest(interleaved_pair, store, jobs=1)
    said = "Recorded interleaved: ratio of interleaved-8 to interleaved-1"

    assert said in texts(show(store, "compare", runs="interleaved-1,interleaved-8")).replace(
        "\\", ""
    )
    assert said not in texts(show(samples_store, "compare", runs=f"{EAGER},{GRAPH}"))


def test_compare_with_one_run_asks_for_another(samples_store, show):
    assert "Choose two runs or more" in texts(show(samples_store, "compare", runs=EAGER))


def test_sweep_marks_where_the_bound_is_crossed(samples_store, show):
    app = show(samples_store, "sweep")
    assert "stops being host-bound between batch 2 and 8" in texts(app)
    assert charts(app) == 2


@pytest.mark.parametrize("quantity", ["orchestration_ns", "ttft_ns", "launches"])
@pytest.mark.parametrize("along", ["mode", "model", "host"])
def test_sweep_takes_any_pair_of_the_url(samples_store, show, quantity, along):
    show(samples_store, "sweep", quantity=quantity, along=along)


def test_sql_answers_and_draws(samples_store, show):
    app = show(samples_store, "sql", sql="SELECT name, hdbi FROM run_totals", run="1")
    assert len(app.dataframe[0].value) == 5
    assert charts(app) == 1


def test_any_column_name_of_an_answer_can_be_drawn(samples_store, show):
    sql = 'SELECT name AS "^a.*$", hdbi AS "b.c [x]" FROM run_totals'
    app = show(samples_store, "sql", sql=sql, run="1")
    assert charts(app) == 1
    assert not app.error


def test_sql_answered_once_is_not_asked_again_for_another_drawing(samples_store, show, monkeypatch):
    app = show(samples_store, "sql", sql="SELECT name, hdbi, kernels FROM run_totals", run="1")
    monkeypatch.setattr(QueryTask, "__init__", None)
    next(w for w in app.selectbox if w.label == "Value").set_value("hdbi").run()
    assert not app.exception
    assert app.query_params["y"] in ("hdbi", ["hdbi"])


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE runs", "SELECT * FROM read_csv('/etc/passwd')", "SELEC", "SELECT 1; SELECT 2", ""],
)
def test_sql_that_is_not_one_reading_statement_is_refused_in_one_line(samples_store, show, sql):
    app = show(samples_store, "sql", sql=sql or " ", run="1")
    assert len(app.error) == 1
    assert "Traceback" not in app.error[0].value


SHOWN = {
    "runs": {},
    "run": {"run": EAGER},
    "timeline": {"run": EAGER, "event": "stream:3"},
    "kernels": {"run": EAGER, "kernel": "5"},
    "compare": {"runs": f"{EAGER},{GRAPH}"},
    "sweep": {},
    "sql": {"run": "1"},
}


def kinds_offered(app) -> list[str]:
    """The kinds of files that the page offers, each file under a name of its own."""
    names = [button.proto.label for button in app.get("download_button")]
    assert len(set(names)) == len(names)
    return [name.rpartition(".")[2] for name in names]


@pytest.mark.parametrize("page", PAGES)
def test_every_chart_and_table_can_be_taken_away(samples_store, show, page):
    app = show(samples_store, page, **SHOWN[page])
    offered, drawn = kinds_offered(app), charts(app)
    tables = len(app.dataframe) + len(link_tables(app))
    assert drawn + tables > 0
    assert offered.count("csv") == offered.count("parquet") == drawn + tables
    assert offered.count("png") == offered.count("svg") == drawn


@pytest.mark.parametrize("page", PAGES)
def test_what_is_taken_away_is_a_picture_and_rows(samples_store, show, monkeypatch, page):
    taken = []
    monkeypatch.setattr(downloads, "offer", lambda *given: taken.append(given))
    show(samples_store, page, **SHOWN[page])
    assert taken
    for name, rows, *rest in taken:
        lines = downloads.csv(rows).decode().splitlines()
        assert len(lines) > 1, name
        assert lines[0].split(",")[0] != ""
        for chart in rest[:1]:
            title = rest[2]
            picture = downloads.picture(chart, "svg", title=title)
            assert picture.startswith(b"<svg")
            assert title.split()[0].encode() in picture
            assert downloads.picture(chart, "png", title=title).startswith(b"\x89PNG")
        assert downloads.parquet(rows).startswith(b"PAR1")


def test_latency_that_was_measured_is_drawn_and_can_be_taken_away(samples_store, show, tmp_path):
    store = tmp_path / "latency.duckdb"
    shutil.copy(samples_store, store)
    with duckdb.connect(str(store)) as connection:
        connection.execute(
            "INSERT INTO latency SELECT run_id, i, 9000000 + i, 8000000 + i, 90000000, "
            "[8000000 + i, 8100000] FROM runs, range(20) AS one(i)"
        )
    app = show(store, "compare", runs=f"{EAGER},{GRAPH}")
    assert charts(app) == 2 + 3  # TTFT, TPOT, ITL
    tables = len(app.dataframe) + len(link_tables(app))
    assert kinds_offered(app).count("csv") == charts(app) + tables
    said = next(t.value for t in app.dataframe if "quantity" in t.value.columns)
    assert {"p50 (ms)", "p99 (ms)"} <= set(said.columns)
    assert show(store, "sweep", quantity="tpot_ns").get("download_button")


# -- stores that lack something


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_place_explains_the_first_step(tmp_path, show, page):
    app = show(tmp_path / "none.duckdb", page)
    assert "no run in this store yet" in texts(app)
    assert "analyzer ingest" in app.code[0].value


@pytest.mark.parametrize("page", PAGES)
def test_a_run_without_gpu_is_shown_for_what_it_is(store_of, show, page):
    app = show(store_of(cpu=CPU_EVENTS), page, **PARAMS.get(page, {}))
    assert not app.error
    if page == "run":
        assert "no kernel" in texts(app)


@pytest.mark.parametrize("page", PAGES)
def test_a_run_without_floor_has_unknown_hdbi_and_no_error(store_of, show, page):
    store = store_of(one=GPU_EVENTS, two=GPU_EVENTS[:-2])
    params = {"runs": "one,two"} if page == "compare" else PARAMS.get(page, {})
    app = show(store, page, **params)
    assert not app.error
    if page == "run":
        assert {m.label: m.value for m in app.metric}["HDBI, unknown"] == "-"


@pytest.mark.parametrize("page", PAGES)
def test_a_broken_store_is_one_clear_message(tmp_path, show, page):
    store = tmp_path / "broken.duckdb"
    store.write_bytes(b"this is no database" * 1000)
    app = show(store, page)
    assert len(app.error) == 1
    assert "cannot be opened as a store" in app.error[0].value


@pytest.mark.parametrize("page", PAGES)
def test_a_newer_store_asks_for_an_upgrade(store_of, show, page):
    store = store_of(cpu=CPU_EVENTS)
    with duckdb.connect(str(store)) as connection:
        connection.execute("UPDATE store_info SET schema_version = 99")
    app = show(store, page)
    assert len(app.error) == 1
    assert "upgrade hostbound" in app.error[0].value


@pytest.fixture(scope="module")
def locked_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store that another process has open for writing."""
    folder = tmp_path_factory.mktemp("locked")
    store = folder / "locked.duckdb"
    ingest(written(folder / "cpu.json", CPU_EVENTS), store)
    code = f"import duckdb; c = duckdb.connect({str(store)!r}); print(1, flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    holder.stdout.readline()
    yield store
    holder.communicate(b"\n")


@pytest.mark.parametrize("page", PAGES)
def test_a_locked_store_is_said_to_be_in_use(locked_store, show, monkeypatch, page):
    monkeypatch.setattr("webapp.store.PATIENCE_S", 0.3)
    app = show(locked_store, page, **PARAMS.get(page, {}))
    assert len(app.error) == 1
    assert "in use" in app.error[0].value


def test_names_of_kernels_are_text_never_markup(store_of, show):
    store = store_of(hostile=GPU_EVENTS)
    for page, params in (("kernels", {"kernel": "0"}), ("timeline", {"event": "stream:0"})):
        app = show(store, page, **params)
        assert any("<script>" in block.value for block in app.code)
        for element in app.markdown:
            assert "<script>" not in element.value.replace("\\<", "")
            assert not element.allow_html
