"""The house's measures: a reader finds a thing where it belongs, and can read it in one go."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

PACKAGES = ("schemas", "collector", "hybrid", "analyzer", "webapp")
MOST_MODULES, MOST_LINES, MOST_CLASS_LINES = 15, 450, 300


@pytest.fixture(scope="module")
def modules(root: Path) -> list[Path]:
    return sorted(p for package in PACKAGES for p in (root / package).rglob("*.py"))


def test_no_folder_holds_more_modules_than_one_can_survey(modules: list[Path]) -> None:
    counts = Counter(p.parent for p in modules if p.name != "__init__.py")
    assert {f: n for f, n in counts.items() if n > MOST_MODULES} == {}


def test_no_module_is_longer_than_one_reads_at_once(modules: list[Path]) -> None:
    lines = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in modules}
    assert {p: n for p, n in lines.items() if n > MOST_LINES} == {}


def test_no_class_is_longer_than_its_purpose(modules: list[Path]) -> None:
    lengths = {
        f"{p}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for p in modules
        for node in ast.walk(ast.parse(p.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert {name: n for name, n in lengths.items() if n > MOST_CLASS_LINES} == {}


def test_no_module_has_the_name_of_a_drawer(modules: list[Path]) -> None:
    drawers = {"utils", "util", "common", "helpers", "misc"}
    assert [p for p in modules if p.stem in drawers] == []
