"""Op calls are found in recorded traces and made again: dims, strides, dtypes, alignment,
scalars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from collector.replay import op_calls
from collector.replay.op_calls import CannotReplay, OpCall

NAME = "gpt2-prefill-bs1-s512-execution-trace"


@pytest.fixture(scope="module")
def calls(shared_dir: Path) -> list[OpCall]:
    folder = shared_dir / "traces" / "h200"
    events = op_calls.load_trace(folder / f"{NAME}.kineto.json.gz")
    nodes = op_calls.load_execution_trace(folder / f"{NAME}.et.json.gz")
    return op_calls.from_run([events], nodes)


def test_every_launching_op_of_a_recorded_forward_is_tied_to_a_node(calls: list[OpCall]) -> None:
    assert calls
    assert [call.key[0] for call in calls if call.node is None] == []


def test_the_nodes_have_the_dtypes_of_the_trace(calls: list[OpCall]) -> None:
    for call in calls:
        node = call.node
        assert node is not None
        tensors = [k[7:-1] for k in node["inputs"]["types"] if k.startswith("Tensor(")]
        assert all(kind in call.key[2] for kind in tensors)


def node(schema: str, values: list[Any], shapes: list[Any], types: list[str], strides: list[Any]):
    return {
        "name": schema.partition("(")[0].partition(".")[0],
        "attrs": [{"name": "op_schema", "type": "string", "value": schema}],
        "inputs": {"values": values, "shapes": shapes, "types": types, "strides": strides},
    }


ADD = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"


def add_call(offset: int = 0, alpha: int = 2) -> OpCall:
    tensor = [1, 2, offset, 6, 4, "cpu"]
    found = node(
        ADD,
        [tensor, tensor, alpha],
        [[2, 3], [2, 3], []],
        ["Tensor(float)", "Tensor(float)", "Int"],
        [[1, 2], [3, 1], []],
    )
    return OpCall(("aten::add", "", "", "", ""), 1, found)


def test_a_call_is_bound_by_schema_overload_and_keyword() -> None:
    operator, positional, named = add_call().bind("cpu")

    assert operator is torch.ops.aten.add.Tensor
    assert [t.stride() for t in positional] == [(1, 2), (3, 1)]
    assert named == {"alpha": 2}
    assert torch.equal(operator(*positional, **named), positional[0] + 2 * positional[1])


def test_data_keeps_its_alignment() -> None:
    _, aligned, _ = add_call(offset=4).bind("cpu")
    _, shifted, _ = add_call(offset=5).bind("cpu")

    assert aligned[0].data_ptr() % op_calls.ALIGNMENT == 0
    assert shifted[0].data_ptr() % op_calls.ALIGNMENT == 4


def test_integer_tensors_are_valid_indices_and_masks_select() -> None:
    kinds = [("Tensor(long int)", 0), ("Tensor(int)", 0), ("Tensor(bool)", 1)]
    for kind, expected in kinds:
        tensor = op_calls._argument([1, 2, 0, 3, 8, "cpu"], [3], kind, [1], "cpu")  # pyright: ignore[reportPrivateUsage]
        assert tensor.tolist() == [expected] * 3


def test_nonzero_finds_something() -> None:
    found = node(
        "aten::nonzero(Tensor self) -> Tensor",
        [[1, 2, 0, 8, 8, "cpu"]],
        [[4, 2]],
        ["Tensor(long int)"],
        [[2, 1]],
    )
    operator, positional, _ = OpCall(("aten::nonzero", "", "", "", ""), 1, found).bind("cpu")

    assert operator(*positional).shape[0] > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attrs": []}, "no schema"),
        (
            {"attrs": [{"name": "op_schema", "value": "nowhere::op(Tensor self) -> Tensor"}]},
            "not registered",
        ),
        (
            {"inputs": {"values": [1], "shapes": [[]], "types": ["Object"], "strides": [[]]}},
            "type Object",
        ),
    ],
)
def test_what_cannot_be_made_again_says_why(change: dict[str, Any], reason: str) -> None:
    call = add_call()
    call.node = {**(call.node or {}), **change}

    with pytest.raises(CannotReplay, match=reason):
        call.bind("cpu")


def test_differently_aligned_calls_of_one_key_are_distinct() -> None:
    event: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1}
    event |= {"ts": "0", "dur": "10"}
    event["args"] = {
        "Input Dims": [[2, 3], [2, 3], []],
        "Input type": ["float", "float", "Scalar"],
        "Input Strides": [[1, 2], [3, 1], []],
        "Concrete Inputs": ["", "", "2"],
    }
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
    launch |= {"ts": "2", "dur": "1", "args": {"correlation": 5}}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7}
    kernel |= {"ts": "5", "dur": "1", "args": {"correlation": 5}}
    nodes = [add_call(offset).node or {} for offset in (0, 1, 4)]

    found = op_calls.from_run([[event, launch, kernel]], nodes)

    assert len(found) == 2


def test_texts_are_as_kineto_writes_them() -> None:
    assert op_calls.kineto_text([[1, 2], [], "a"]) == '[[1, 2], [], "a"]'
