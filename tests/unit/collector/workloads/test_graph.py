"""Mode `graph` without a GPU: the order of its replays, and that it is eager where no graph is."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from collector.errors import CollectorError
from collector.workloads import make
from collector.workloads.graph import GraphWorkload, kernels_as_in_eager
from collector.workloads.models import LoadedModel

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=64)
    torch.manual_seed(0)
    return LoadedModel(transformers.GPT2LMHeadModel(config).eval(), "tiny", 64, 64)


class Graph:
    """Writes down that it was replayed."""

    def __init__(self, log: list[int], number: int) -> None:
        self.replay = lambda: log.append(number)


@pytest.fixture
def captured(model: LoadedModel) -> tuple[GraphWorkload, list[int]]:
    """As after a capture of three steps on a GPU."""
    made: Any = GraphWorkload(model, torch.tensor([[1, 2]]), 3, "cpu")
    log: list[int] = []
    made._steps = [(Graph(log, n), torch.tensor([[10 + n]])) for n in range(3)]
    made._device = "cuda:0"
    return made, log


def test_each_step_replays_its_own_graph_and_a_prefill_begins_again(
    captured: tuple[GraphWorkload, list[int]],
) -> None:
    workload, log = captured

    tokens = [workload.prefill(), workload.decode(), workload.decode(), workload.prefill()]

    assert tokens == [[10], [11], [12], [10]]
    assert log == [0, 1, 2, 0]


def test_a_step_that_was_not_captured_is_refused(
    captured: tuple[GraphWorkload, list[int]],
) -> None:
    workload, log = captured
    with pytest.raises(CollectorError, match="begin with a prefill"):
        workload.decode()
    workload.prefill()
    workload.decode()
    workload.decode()
    with pytest.raises(CollectorError, match="3 steps are captured"):
        workload.decode()
    assert log == [0, 1, 2]


def test_on_a_cpu_the_steps_are_those_of_eager(model: LoadedModel) -> None:
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    graph, engine = make.make(model, "graph", ids, 3, "cpu")
    eager, _ = make.make(model, "eager", ids, 3, "cpu")

    with torch.inference_mode():
        found = [[w.prefill(), w.decode(), w.decode()] for w in (graph, eager)]

    assert found[0] == found[1]
    assert engine is None  # nothing to capture


def test_attention_is_chosen_as_without_a_capture_and_only_meanwhile() -> None:
    masking_utils: Any = importlib.import_module("transformers.masking_utils")
    before = masking_utils.is_tracing
    masking_utils.is_tracing = lambda tensor=None: True
    try:
        with kernels_as_in_eager():
            assert not masking_utils.is_tracing()
            assert masking_utils.is_tracing(torch.ones(1))  # a padding mask's values stay unread
        assert masking_utils.is_tracing()
    finally:
        masking_utils.is_tracing = before
