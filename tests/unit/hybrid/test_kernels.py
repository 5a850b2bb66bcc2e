"""The text of the Triton kernels, which no CPU runs: their constants are those of the host."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path
from typing import get_args

import pytest

pytest.importorskip("torch")

from hybrid.model.spec import QkNorm
from hybrid.ops.interface import Kind
from hybrid.state import control

FOLDER = Path(control.__file__).parents[1] / "ops" / "kernels"
FILES = ("decode", "moe", "prefill", "sample")
WORDS = {name for name in vars(control) if name.isupper()}
TRITON = {"tl", "triton", "gdc_wait", "gdc_launch_dependents"}


def tree_of(name: str) -> ast.Module:
    return ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def kernels_of(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_each_word_of_the_control_block_is_a_triton_constant_of_the_same_name():
    found = {}
    for node in tree_of("slots").body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            found[ast.unparse(target)] = ast.unparse(node.value)
    assert found == {word: f"tl.constexpr(control.{word})" for word in WORDS}


@pytest.mark.parametrize("name", FILES)
def test_a_kernel_reads_no_global_but_triton_its_helpers_and_control_words(name):
    """Triton refuses any other global, but only when it compiles the kernel on a GPU."""
    tree = tree_of(name)
    helpers = {kernel.name for kernel in kernels_of(tree)}
    imported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "slots"
        for alias in node.names
    }
    assert imported <= WORDS
    read: set[str] = set()
    for kernel in kernels_of(tree):
        names = [node for node in ast.walk(kernel) if isinstance(node, ast.Name)]
        local = {argument.arg for argument in kernel.args.args}
        local |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        read |= {node.id for node in names if isinstance(node.ctx, ast.Load)} - local
        assert not local & (imported | helpers), kernel.name
    assert read - helpers - TRITON - set(dir(builtins)) == imported


@pytest.mark.parametrize("name", FILES)
def test_a_kernel_names_the_words_of_the_control_block(name):
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.BinOp) and ast.unparse(node.left) == "control":
            assert isinstance(node.right, ast.Name), ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.load", "tl.store"):
            assert ast.unparse(node.args[0]) != "control"


def test_kinds_and_norms_that_kernels_ask_for_are_those_that_launches_give():
    known = {"KIND": get_args(Kind), "NORM": ("none", "rms", "layer"), "QK_NORM": get_args(QkNorm)}
    asked: dict[str, set[str]] = {name: set() for name in known}
    for node in ast.walk(tree_of("decode")):
        if isinstance(node, ast.Compare) and ast.unparse(node.left) in known:
            (value,) = node.comparators
            assert isinstance(value, ast.Constant)
            asked[ast.unparse(node.left)].add(value.value)
    # "store" and "none" are what is left when nothing is asked for.
    assert asked["KIND"] == set(known["KIND"]) - {"store"}
    assert asked["NORM"] == set(known["NORM"]) - {"none"}
    assert asked["QK_NORM"] == set(known["QK_NORM"])
