"""What all tests share: where recorded traces are, and what a machine must have for a marker."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

ROOT = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def missing(what: str) -> None:
    """Skip the test and say what it misses; in CI, where nothing may be missing, fail it."""
    if IN_CI:
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


class _Closes(Protocol):
    def close(self) -> None: ...


_Part = TypeVar("_Part", bound=_Closes)


def running(start: Callable[[], _Part], absent: type[Exception]) -> Iterator[_Part]:
    """A service while tests use it; where it cannot start, `absent` says what it misses."""
    try:
        part = start()
    except absent as error:
        missing(str(error))
        raise
    yield part
    part.close()


def has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch  # deferred: two seconds that only a run with gpu tests should pay

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu on a machine without a CUDA device."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not has_cuda():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Recorded traces and cases: HOSTBOUND_SHARED, or `shared` beside the checkout."""
    path = Path(os.environ.get("HOSTBOUND_SHARED") or ROOT.parent / "shared")
    if not (path / "traces").is_dir():
        missing(
            f"no recorded traces at {path}: set HOSTBOUND_SHARED to the folder that holds traces/"
        )
    return path


@pytest.fixture(scope="session")
def samples_dir() -> Path:
    """The sample runs that come with the package."""
    return ROOT / "analyzer" / "samples"


@pytest.fixture
def interleaved_pair(samples_dir: Path, tmp_path: Path) -> list[Path]:
    """Two samples of three traces each, interleaved-1 and interleaved-8, variants of one group."""
    runs: list[Path] = []
    for variant, batch in ((1, 1), (2, 8)):
        run = tmp_path / f"interleaved-{batch}"
        shutil.copytree(samples_dir / f"gpt2-bs{batch}-s512", run)
        manifest = run / "manifest.json"
        group = {"id": "a group", "variant": variant, "variants": 2}
        of_own = {"run_id": f"id {batch}", "name": run.name, "group": group}
        manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | of_own))
        runs.append(run)
    return runs


@pytest.fixture(scope="session")
def screenshots_dir() -> Path | None:
    """Where browser tests leave pictures, if HOSTBOUND_SCREENSHOTS asks for them."""
    name = os.environ.get("HOSTBOUND_SCREENSHOTS")
    if not name:
        return None
    path = ROOT / name
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer GPT-2, saved as transformers saves one."""
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("models") / "tiny"
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=64, bos_token_id=1
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path
