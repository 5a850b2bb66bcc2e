"""The analyzer says what it said, byte for byte, and a store holds what it held.

Where it is meant to say something else: `python -m tests.support.golden --write`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support import golden
from support.golden_scenes import OTHERS, scenes

WITHOUT_SHARED = {scene.name: scene for scene in scenes(None)}


@pytest.mark.parametrize("name", golden.kept_scenes())
def test_an_input_gives_the_kept_answers(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    shared: Path | None = None
    scene = WITHOUT_SHARED.get(name)
    if scene is None:
        shared = request.getfixturevalue("shared_dir")
        scene = next((s for s in scenes(shared) if s.name == name), None)
        assert scene, f"{name} has golden files, but there is no such input under {shared}"

    outputs = scene.play(shared)

    if found := golden.differences(name, outputs):
        golden.write_texts(outputs, tmp_path)
        listed = "\n".join(found)
        pytest.fail(
            f"{len(found)} outputs of {name} are not the kept ones; what they are now is in "
            f"{tmp_path}\n{listed}\nIf that is meant: python -m tests.support.golden --write "
            f"--only '{name}'",
            pytrace=False,
        )


def test_every_input_of_the_checkout_has_golden_files() -> None:
    assert set(WITHOUT_SHARED) <= set(golden.kept_scenes())


def test_of_recordings_that_others_made_only_digests_are_kept() -> None:
    assert golden.kept_digests(OTHERS)
    assert not golden.kept_texts(OTHERS)
    for text in (golden.GOLDEN / f"{OTHERS}.sha256").read_text(encoding="utf-8").splitlines():
        value, _, name = text.partition("  ")
        assert len(value) == 64
        assert name.startswith(f"{OTHERS}/")
