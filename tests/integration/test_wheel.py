"""The wheel in a bare environment: builds, installs, and reads a run without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]

SAMPLE = "gpt2-prefill-bs1-s512"


@dataclass(frozen=True)
class BareEnvironment:
    """A virtual environment away from the checkout, and an empty folder to work in."""

    bin: Path
    workdir: Path

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # No PYTHONPATH, no checkout as working directory: only what the wheel brought can be found.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        return subprocess.run(
            [str(self.bin / command), *arguments],
            cwd=self.workdir,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def bare_environment(folder: Path) -> BareEnvironment:
    venv.create(folder / "venv", with_pip=True)
    workdir = folder / "work"
    workdir.mkdir()
    return BareEnvironment(folder / "venv" / ("Scripts" if os.name == "nt" else "bin"), workdir)


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy of the tracked files, so that no build folder of the checkout leaks in."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    copy_sources(root, source)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "dist"), str(source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "dist").glob("*.whl")
    return path


def copy_sources(root: Path, target: Path) -> None:
    """Copy what git tracks or would track; that is what a fresh clone has."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = root / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(source.read_bytes())


def test_the_wheel_holds_sql_samples_and_licence_and_no_tests(root: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    for package in ("schemas", "analyzer"):
        for path in (root / package).rglob("*.sql"):
            assert path.relative_to(root).as_posix() in names
    for path in (root / "analyzer" / "samples").rglob("*"):
        if path.is_file():
            assert path.relative_to(root).as_posix() in names
    assert "analyzer/trace/_scan.c" in names
    assert "hybrid/ops/tuning_h200.json" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    top_level = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert top_level == {"schemas", "collector", "hybrid", "analyzer", "webapp"}


def test_a_bare_install_says_which_extra_a_command_needs(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bare = bare_environment(tmp_path_factory.mktemp("base"))
    installed = bare.run("python", "-m", "pip", "install", "-q", str(wheel))
    assert installed.returncode == 0, installed.stderr

    answer = bare.run("analyzer", "runs")
    assert answer.returncode == 2
    assert "hostbound[analyzer]" in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1

    answer = bare.run("webapp")
    assert answer.returncode == 2
    assert "hostbound[webapp]" in answer.stderr


def test_the_installed_analyzer_reads_a_run_and_reports_it(
    root: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bare = bare_environment(tmp_path_factory.mktemp("analyzer"))
    installed = bare.run(
        *("python", "-m", "pip", "install", "-q", "-c", str(root / "constraints.txt")),
        f"{wheel}[analyzer]",
    )
    assert installed.returncode == 0, installed.stderr

    assert bare.run("analyzer", "--help").returncode == 0

    where = bare.run(
        "python", "-c", "import analyzer, pathlib; print(pathlib.Path(analyzer.__file__).parent)"
    ).stdout.strip()
    assert "site-packages" in where

    ingested = bare.run("analyzer", "ingest", str(Path(where) / "samples" / SAMPLE))
    assert ingested.returncode in (0, 1), ingested.stderr

    reported = bare.run("analyzer", "report", "latest", "--json")
    assert reported.returncode in (0, 1), reported.stderr
    totals = json.loads(reported.stdout)["totals"]
    assert totals["kernels"] == 705
    assert totals["wall_ns"] > 0
