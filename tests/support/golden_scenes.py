"""Scenes: one input loaded into a fresh store, and what every command says of it: texts by name.

Only what outlives a redesign is used: the command line and the store, a DuckDB file. What passes
(times, durations, versions, folders) is replaced or kept the same. `golden` keeps the answers.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb

from . import store_text

PROGRAM = "analyzer.cli:main"
ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "analyzer" / "samples"
GROUPS = ("program", "samples", "variants", "ranks", "h200", "cases", "others")
OTHERS = "others"  # recorded by others: nothing of them but digests is kept
STORE = "store.duckdb"
CHROME_BYTES = 400_000  # largest input of which the annotated trace is written too

# What differs from one run to the next, and what stands in its place.
_PASSING = (
    (re.compile(r'("ingested_at": )"[^"]*"'), r'\1"(time)"'),
    (re.compile(r"(?m)^( *ingested_at +)\S+ *$"), r"\1(time)"),
    (re.compile(r'("analyzer_version": )"[^"]*"'), r'\1"(version)"'),
    (re.compile(r"(?m)^( *analyzer_version +)\S+ *$"), r"\1(version)"),
    (re.compile(r'("(?:read|analyse|write)_seconds": )[\d.e-]+'), r"\1(seconds)"),
    (re.compile(r" in \d+\.\d\d s -> "), " in (seconds) s -> "),
)
Outputs = dict[str, str]


@dataclass(frozen=True)
class Scene:
    """One input and what is asked of it.

    Attributes:
        name: GROUP/INPUT.
        paths: What is loaded, by the links `samples` and `shared` in the working directory.
        options: Of the command `ingest`.
    """

    name: str
    paths: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]

    @property
    def is_ours(self) -> bool:
        return self.group != OTHERS

    @property
    def needs_shared(self) -> bool:
        return any("shared/" in text for text in (*self.paths, *self.options))

    def play(self, shared: Path | None) -> Outputs:
        """The outputs by name.

        Args:
            shared: The folder that holds traces/ and cases/; None where no scene needs it.
        """
        with _stage(shared) as folder:
            act = _ACTS.get(self.name, _one_store if len(self.paths) == 1 else _many_runs)
            outputs = act(self, folder)
            places = {str(SAMPLES): "samples", str(folder.resolve()): "."}
            if shared:
                places[str(shared.resolve())] = "shared"
            return {name: _lasting(text, places) for name, text in outputs.items()}


def shared_folder() -> Path | None:
    """HOSTBOUND_SHARED, or `shared` beside the checkout; None if it is not there."""
    path = Path(os.environ.get("HOSTBOUND_SHARED") or ROOT.parent / "shared")
    return path if (path / "traces").is_dir() else None


def scenes(shared: Path | None) -> list[Scene]:
    """All scenes; without `shared` those that need none."""
    samples = sorted(path.parent.name for path in SAMPLES.glob("*/manifest.json"))
    found = [Scene(name) for name in _ACTS if name.startswith("program/")]
    found += [Scene(f"samples/{name}", (f"samples/{name}",)) for name in samples]
    found.append(Scene("samples/together", tuple(f"samples/{name}" for name in samples)))
    found.append(Scene("variants/named", ("samples/gpt2-prefill-bs1-s512",)))
    graph = ("samples/gpt2-prefill-bs1-s512-graph",)
    found.append(Scene("variants/originals", graph, ("--keep-originals",)))
    found.append(
        Scene("variants/annotation", ("samples/gpt2-bs1-s512",), ("--step-annotation", "decode#*"))
    )
    if shared is None:
        return found
    h200 = "shared/traces/h200/gpt2-prefill-bs1-s512"
    replays = f"{h200}-graph-replay-only.json.gz"
    capture = f"{h200}-graph-capture-and-replay.json.gz"
    ranks = _files(shared, "ranks", "traces/ranks", "*.json.gz")
    found += [
        Scene("variants/capture", (replays,), ("--capture-trace", capture)),
        Scene("variants/python-functions", (f"{h200}-stack.json.gz",), ("--python-functions",)),
        *_files(shared, "h200", "traces/h200", "*.json.gz"),
        *ranks,
        Scene("ranks/together", tuple(rank.paths[0] for rank in ranks)),
        *_files(shared, "cases", "cases", "[0-9]*.json*"),
        *_files(shared, OTHERS, "traces", "*.json.gz"),
        *_files(shared, OTHERS, "traces/next", "*/*.json.gz"),
    ]
    return found


def _files(shared: Path, group: str, folder: str, pattern: str) -> list[Scene]:
    return [
        Scene(f"{group}/{_stem(path)}", (f"shared/{path.relative_to(shared)}",))
        for path in sorted((shared / folder).glob(pattern))
    ]


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


# A scene's stage and its commands.


@contextmanager
def _stage(shared: Path | None) -> Iterator[Path]:
    """A working directory of its own, in which paths are the same everywhere."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name)
        (folder / "samples").symlink_to(SAMPLES)
        if shared:
            (folder / "shared").symlink_to(shared.resolve())
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


@cache
def _program() -> Callable[[Sequence[str]], int]:
    module, _, function = PROGRAM.partition(":")
    return getattr(importlib.import_module(module), function)


def _ask(*words: str) -> str:
    """One command in this process: its line, exit code, stdout and stderr."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True)
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = _program()(words)
        except SystemExit as stop:
            code = stop.code
    said = out.buffer.getvalue().decode("utf-8", "backslashreplace")  # type: ignore[attr-defined]
    text = f"$ analyzer {' '.join(words)}\nexit {code}\n{said}"
    return text + (f"--- stderr\n{err.getvalue()}" if err.getvalue() else "")


def _db(*words: str) -> str:
    return _ask(*words, "--db", STORE)


def _lasting(text: str, places: dict[str, str]) -> str:
    for place, name in places.items():
        text = text.replace(place, name)
    for pattern, replacement in _PASSING:
        text = pattern.sub(replacement, text)
    return text


def _one_store(scene: Scene, folder: Path) -> Outputs:
    """A store with the input and, loaded before it, a sample to compare it with."""
    path = scene.paths[0]
    base = "gpt2-prefill-bs8-s512" if "prefill-bs2-s512" in path else "gpt2-prefill-bs2-s512"
    shutil.copy(_store_of(f"samples/{base}"), folder / STORE)
    found = {"ingest.json": _db("ingest", "--jobs", "1", "--json", *scene.options, path)}
    run = _newest(folder / STORE)
    if run[1] == base:
        return found | {"runs.json": _db("runs", "--json")}
    found |= store_text.tables(folder / STORE, run[0])
    found |= {
        "runs.txt": _db("runs"),
        "runs.json": _db("runs", "--json"),
        "show.txt": _without_path(_db("show", "latest")),
        "show.json": _db("show", run[0][:10], "--json"),
        "report.txt": _db("report"),
        "report.json": _db("report", run[0], "--json"),
    }
    if scene.group != "cases":
        found |= {
            "predict.txt": _db("predict"),
            "predict.json": _db("predict", "latest", "--json"),
            "compare.txt": _db("compare", base, "latest"),
            "compare.json": _db("compare", "latest", base, "--json", "--fail-if", "hdbi > +5%"),
        }
    if _bytes(folder / path) < CHROME_BYTES:
        found["export-chrome.json"] = _exported("chrome", folder, run[0])
    if scene.group == "samples":
        found |= {
            "verify.txt": _db("verify"),
            "predict-what.txt": _db("predict", "--what", "cpu-faster:1.5", "--what", "fuse:3"),
            "export-csv.txt": _exported("csv", folder, run[0]),
            "export-parquet.txt": _exported("parquet", folder, run[0]),
        }
    return found


def _without_path(text: str) -> str:
    """A table without the row whose length is the folder's, nor the blanks that it adds."""
    text = re.sub(r"(?m)^( *path +)\S.*$", r"\1(path)", text)
    return re.sub(r"(?m) +$", "", text)


def _bytes(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _many_runs(scene: Scene, folder: Path) -> Outputs:
    """One store with several runs, compared with the first."""
    found = {"ingest.txt": _db("ingest", "--jobs", "1", *scene.options, *scene.paths)}
    with duckdb.connect(str(folder / STORE), read_only=True) as connection:
        names = [n for (n,) in connection.execute("SELECT name FROM runs ORDER BY 1").fetchall()]
    gates = [f"--fail-if={gate}" for gate in ("wall_ns > +5%", "hdbi < -1%", "kernels > 0")]
    return found | {
        "runs.txt": _db("runs"),
        "runs.json": _db("runs", "--json"),
        "compare.txt": _db("compare", *names),
        "compare.json": _db("compare", *names, "--json"),
        "compare-pair.txt": _db("compare", *names[1:3]),
        "compare-gate.txt": _db("compare", *names[:2], *gates),
        "compare-no-metric.txt": _db("compare", *names[:2], "--fail-if", "nothing > 5%"),
        "compare-no-condition.txt": _db("compare", *names[:2], "--fail-if", "hdbi"),
        "verify.txt": _db("verify"),
        "verify.json": _db("verify", "--json"),
        "sql-totals.json": _db("sql", "SELECT * FROM run_totals ORDER BY ALL", "--json"),
    }


def _named(scene: Scene, folder: Path) -> Outputs:
    """The same content loaded three times, under a name of its own."""
    path = scene.paths[0]
    found = {
        "ingest.txt": _db("ingest", "--jobs", "1", path, "--name", "first name"),
        "ingest-again.json": _db("ingest", "--jobs", "1", path, "--json"),
        "ingest-replace.json": _db("ingest", "--jobs", "1", path, "--replace", "--json"),
        "ingest-two-names.txt": _db("ingest", "samples", "--name", "one"),
        "runs.txt": _db("runs"),
    }
    return found | store_text.tables(folder / STORE, _newest(folder / STORE)[0])


def _originals(scene: Scene, folder: Path) -> Outputs:
    found = _one_store(scene, folder)
    found["export-original.txt"] = _exported("original", folder, "latest")
    kept = sorted((folder / f"{STORE}.blobs").rglob("*"))
    found["originals.txt"] = "".join(f"{path.name}\n" for path in kept)
    return found


def _refusals(scene: Scene, folder: Path) -> Outputs:
    """Error lines and exit codes."""
    (folder / "empty").mkdir()
    (folder / "no.json").write_text("{")
    (folder / "no.duckdb").write_text("no store")
    found = {
        "no-store": _ask("report", "--db", "absent.duckdb"),
        "no-store-runs": _ask("runs", "--db", "absent.duckdb"),
        "no-folder": _ask("ingest", "--jobs", "1", "samples", "--db", "absent/store.duckdb"),
        "no-duckdb": _ask("runs", "--db", "no.duckdb"),
        "no-path": _db("ingest", "absent.json"),
        "empty-folder": _db("ingest", "empty"),
        "no-trace": _db("ingest", "no.json", "--jobs", "1"),
        "no-data": _ask("verify", "--data", "absent"),
    }
    shutil.copy(_store_of("samples/gpt2-prefill-bs2-s512"), folder / STORE)
    asked = {
        "unknown-run": ("show", "nothing"),
        "unknown-run-report": ("report", "nothing"),
        "unknown-what": ("predict", "--what", "magic"),
        "unknown-cpu": ("predict", "--what", "cpu-faster:none"),
        "one-run-twice": ("compare", "latest", "latest"),
        "one-run": ("compare", "latest"),
        "sql-mistake": ("sql", "SELECT"),
        "sql-no-table": ("sql", "SELECT * FROM nothing"),
        "sql-write": ("sql", "DROP TABLE runs"),
        "sql-file": ("sql", "SELECT * FROM read_csv('no.json')"),
        "sql-settings": ("sql", "SET threads = 1"),
        "export-target": ("export", "latest", "--out", "empty"),
        "export-chrome-target": ("export", "latest", "--format", "chrome", "--out", "no.json"),
        "export-no-original": ("export", "latest", "--format", "original"),
        "maintain": ("maintain",),
    }
    return found | {name: _db(*words) for name, words in asked.items()}


def _sql(scene: Scene, folder: Path) -> Outputs:
    """The command `sql` in its formats."""
    shutil.copy(_store_of("samples/gpt2-prefill-bs1-s512-graph"), folder / STORE)
    ask = "SELECT kind, kernel, call, op, op_from_capture, dur_ns FROM links ORDER BY ALL"
    odd = "SELECT 1.5 AS a, NULL AS b, [1, NULL] AS c, 'x,\"y\n' AS d, true AS e, {'k': 1} AS f"
    found = {"table.txt": _db("sql", ask), "limit.txt": _db("sql", ask, "--limit", "3")}
    for form in ("table", "csv", "json"):
        found[f"{form}-five.txt"] = _db("sql", ask, "--format", form, "--limit", "5")
        found[f"{form}-odd.txt"] = _db("sql", odd, "--format", form)
    found["empty.json"] = _db("sql", "SELECT * FROM latency", "--json")
    found["tables.txt"] = _db("sql", "SHOW TABLES")
    found["describe.txt"] = _db("sql", "DESCRIBE runs")
    return found


def _definition(scene: Scene, folder: Path) -> Outputs:
    """The store's tables, views, columns and comments, as DuckDB reports them."""
    shutil.copy(_store_of("samples/gpt2-prefill-bs2-s512"), folder / STORE)
    asked = {
        "tables": "SELECT table_name, comment, sql FROM duckdb_tables() ORDER BY ALL",
        "views": "SELECT view_name, comment, sql FROM duckdb_views() WHERE NOT internal "
        "ORDER BY ALL",
        "columns": "SELECT table_name, column_name, data_type, is_nullable, column_default, "
        "comment FROM duckdb_columns() WHERE NOT internal ORDER BY table_name, column_index",
        "indexes": "SELECT index_name, sql FROM duckdb_indexes() ORDER BY ALL",
        "constraints": "SELECT table_name, constraint_text FROM duckdb_constraints() ORDER BY ALL",
        "sequences": "SELECT sequence_name, sql FROM duckdb_sequences() ORDER BY ALL",
        "version": "SELECT schema_version FROM store_info",
    }
    with duckdb.connect(str(folder / STORE), read_only=True) as connection:
        return {
            f"{name}.txt": "".join(
                " | ".join(str(value) for value in row) + "\n"
                for row in connection.execute(sql).fetchall()
            )
            for name, sql in asked.items()
        }


def _openapi(scene: Scene, folder: Path) -> Outputs:
    """The server's description of its API."""
    module, _, function = PROGRAM.partition(":")
    program = f"import sys; from {module} import {function} as main; sys.exit(main())"
    options = ("--port", "0", "--workers", "1", "--no-pages")
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--data", "data", "--local", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("{") and json.loads(line).get("event") == "serving":
                break
        else:
            raise RuntimeError(f"the server did not start: {''.join(said)}")
        url = json.loads(said[-1])["url"] + "/api/v1/openapi.json"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        value = json.loads(_fetched(opener, url))
    finally:
        process.kill()
        process.communicate()
    # FastAPI's own order of keys is its business.
    return {"openapi.json": json.dumps(value, indent=1, sort_keys=True) + "\n"}


def _fetched(opener: urllib.request.OpenerDirector, url: str) -> bytes:
    """The answer of a server that listens in a moment."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with opener.open(url, timeout=30) as answer:
                return answer.read()
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


_ACTS: dict[str, Callable[[Scene, Path], Outputs]] = {
    "program/refusals": _refusals,
    "program/sql": _sql,
    "program/definition": _definition,
    "program/openapi": _openapi,
    "variants/named": _named,
    "variants/originals": _originals,
}


# Stores and files.


@cache
def _folder_of_stores() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="golden-stores-")


@cache
def _store_of(path: str) -> Path:
    """A store with one sample, made once a process."""
    store = Path(_folder_of_stores().name) / f"{Path(path).name}.duckdb"
    said = _ask("ingest", "--jobs", "1", path, "--db", str(store))
    assert store.is_file(), said
    return store


def _newest(store: Path) -> tuple[str, str]:
    """Id and name of the run loaded last."""
    with duckdb.connect(str(store), read_only=True) as connection:
        sql = "SELECT run_id, name FROM runs ORDER BY ingested_at DESC LIMIT 1"
        return connection.execute(sql).fetchall()[0]


def _exported(form: str, folder: Path, run: str) -> str:
    """What `export` said and wrote; of a table of rows its digest."""
    out = folder / f"out-{form}"
    said = _db("export", run, "--format", form, "--out", out.name, "--json")
    if form == "chrome":
        files = sorted(folder.glob(f"{out.name}*"))
        return said + "".join(store_text.chrome(path) for path in files)
    listed = sorted(out.iterdir()) if out.is_dir() else []
    reading = {"csv": store_text.csv_rows, "parquet": store_text.parquet_rows}
    read = reading.get(form, Path.read_bytes)
    lines = [f"{hashlib.sha256(read(path)).hexdigest()}  {path.name}\n" for path in listed]
    return said + "".join(lines)
