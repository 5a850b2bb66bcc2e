"""Files of other profilers are sent to a server like any trace, and every page shows them, without
what they hold about users and hosts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from collector import cli
from tests.support.app_pages import PAGES, texts
from tests.support.nsys_files import SECRET, graph_run
from tests.support.rocprof_files import small_run
from tests.support.team_server import TeamServer
from tests.support.xplane_files import small_profile

pytest.importorskip("fastapi")
pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("format pages"), pytest.mark.timeout(900)]

APP = Path(__file__).resolve().parents[2] / "webapp" / "app.py"
PATIENCE_S = 240


def job_of_two(folder: Path) -> Path:
    for pid in (1, 2):
        small_run(pid).write(folder / SECRET / f"{pid}_results.db")
    return folder


def session(folder: Path) -> Path:
    small_profile().add_secrets().write(folder / "plugins/profile/1" / f"{SECRET}.xplane.pb")
    return folder


# A file, or a folder that is one trace, of each form.
FORMS: dict[str, Callable[[Path], Path]] = {
    "nsys": lambda path: graph_run("node").add_secrets().write(path / "report.sqlite"),
    "nsys-graphs": lambda path: graph_run("graph").add_secrets().write(path / "graphs.sqlite"),
    "nsys-parquet": lambda path: graph_run("node").add_secrets().write_parquet(path / "pqtdir"),
    "rocpd": lambda path: small_run().write(path / "results.db"),
    "rocpd-job": lambda path: job_of_two(path / "job"),
    "rocprof-json": lambda path: small_run(3).write_json(path / "results.json"),
    "jax": lambda path: small_profile(4).add_secrets().write(path / "profile.xplane.pb"),
    "jax-session": lambda path: session(path / "logdir"),
}
KERNELS = dict.fromkeys(FORMS, 4) | {
    "nsys-graphs": None,
    "rocpd-job": 8,  # and in each one from before, that no step has
    "jax": 16,
    "jax-session": 12,
}


@dataclass(frozen=True)
class Served:
    """A server that took a file of each form, and ended."""

    runs: dict[str, dict[str, object]]
    said: str
    store: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("formats")
    live = TeamServer(folder / "data").start()
    runs: dict[str, dict[str, object]] = {}
    try:
        for form, write in FORMS.items():
            (folder / form).mkdir()
            path = write(folder / form)
            code = cli.main(
                ["upload", str(path), "--to", live.url, "--wait", "--spool", str(folder / "spool")]
            )
            assert code == 0, form
            known = {str(run["run_id"]) for run in runs.values()}
            (runs[form],) = [run for run in live.runs() if run["run_id"] not in known]
        answers = [live.get(f"runs/{run['run_id']}/report") for run in runs.values()]
        said = json.dumps([live.runs(), live.get("jobs?limit=100"), answers, live.log])
    finally:
        live.stop()
    yield Served(runs, said, folder / "data" / "teams" / "default" / "store.duckdb")
    shutil.rmtree(folder)


@pytest.mark.parametrize("form", FORMS)
def test_a_server_makes_a_run_of_each_form(form: str, served: Served) -> None:
    assert served.runs[form]["kernels"] == KERNELS[form]


def test_a_server_tells_nobody_what_the_files_hold_beside_events(served: Served) -> None:
    assert SECRET not in served.said + "".join(map(str, served.store.parent.glob("*.duckdb*")))
    assert SECRET.encode() not in served.store.read_bytes()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("form", FORMS)
def test_every_page_shows_a_run_of_each_form(
    form: str, page: str, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTBOUND_DB", str(served.store))
    app = AppTest.from_file(str(APP), default_timeout=PATIENCE_S)
    run = str(served.runs[form]["run_id"])
    other = str(served.runs["nsys" if form != "nsys" else "jax"]["run_id"])
    app.query_params["runs" if page == "compare" else "run"] = (
        f"{run},{other}" if page == "compare" else run
    )
    if page != "runs":
        app.switch_page(f"pages/{page}.py")
    app.run()
    assert not app.exception, [element.value for element in app.exception]
    assert not app.error, [element.value for element in app.error]
    assert texts(app)
    assert SECRET not in texts(app)
