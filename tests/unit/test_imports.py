"""What an import really brings in: the contracts of pyproject.toml, seen in a fresh interpreter."""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ANALYSIS_SIDE = {"duckdb", "polars", "pyarrow", "streamlit", "altair"}
GPU_SIDE = {"torch", "transformers", "triton"}
HEAVY = ANALYSIS_SIDE | GPU_SIDE | {"numpy", "pandas", "msgspec"}

NEEDS_TRITON = ("hybrid.ops.kernels", "hybrid.ops.products", "hybrid.ops.triton_")
# Pages run when imported; the scanner is no Python module (ctypes loads it); triton may be absent.
NOT_TO_IMPORT = (
    "webapp.pages",
    "webapp.app",
    "analyzer.trace._scan",
    *(() if importlib.util.find_spec("triton") else NEEDS_TRITON),
)

FORBIDDEN = {
    # msgspec reads the documents of a run directory.
    "schemas": HEAVY - {"msgspec"} | {"orjson", "collector", "hybrid", "analyzer", "webapp"},
    "collector": ANALYSIS_SIDE | {"analyzer", "webapp"},
    "hybrid": ANALYSIS_SIDE | {"analyzer", "webapp", "collector"},
    "analyzer": GPU_SIDE | {"streamlit", "altair", "collector", "hybrid", "webapp"},
    "webapp": GPU_SIDE | {"collector", "hybrid"},
}

IMPORT_AND_LIST = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
cuda = "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized()
print(json.dumps({"modules": sorted({m.partition(".")[0] for m in sys.modules}), "cuda": cuda}))
"""


def imported_by(root: Path, *names: str) -> tuple[set[str], bool]:
    """Import `names` in a fresh interpreter; return its top-level modules and if CUDA is set up."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_LIST, *names],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    return set(answer["modules"]), answer["cuda"]


def modules_of(root: Path, package: str) -> list[str]:
    """Return every module of a package that can be imported here."""
    found = [package]
    for info in pkgutil.walk_packages([str(root / package)], prefix=package + "."):
        if not info.name.startswith(NOT_TO_IMPORT) and "__main__" not in info.name:
            found.append(info.name)
    return found


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_imports_nothing_of_the_other_side(root: Path, package: str) -> None:
    modules, _ = imported_by(root, *modules_of(root, package))
    assert modules & FORBIDDEN[package] == set()


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_importing_a_package_touches_no_gpu(root: Path, package: str) -> None:
    _, cuda_is_initialized = imported_by(root, package)
    assert not cuda_is_initialized


@pytest.mark.parametrize("package", ["collector", "analyzer", "webapp"])
def test_a_command_can_be_imported_without_its_extra(root: Path, package: str) -> None:
    """The entry point must live to say which extra is missing."""
    modules, _ = imported_by(root, f"{package}.cli")
    assert modules & HEAVY == set()


def test_a_missing_extra_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from schemas.extras import MissingExtra, require

    require("analyzer", "json", "sys")
    with pytest.raises(MissingExtra) as raised:
        require("analyzer", "json", "no_such_library_at_all")

    assert raised.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no_such_library_at_all" in line
    assert "pip install 'hostbound[analyzer]'" in line
