"""The network's hooks: where it pauses, what is cut out, what is left out."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hybrid import Sampling  # noqa: E402  (after importorskip)
from hybrid.model.hub import build_config  # noqa: E402
from hybrid.model.spec import spec_of  # noqa: E402
from hybrid.model.weights import adopt  # noqa: E402
from hybrid.network import Network  # noqa: E402
from hybrid.ops.reference import ReferenceOps  # noqa: E402
from hybrid.state.buffers import Buffers  # noqa: E402
from hybrid.state.kv_cache import KVCache  # noqa: E402

CONFIG = transformers.Qwen2MoeConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=128,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
    mlp_only_layers=[1],
)


class Recorded:
    """The reference operations, each noted in `seen` when it is called."""

    def __init__(self, seen: list[str]) -> None:
        self._ops, self._seen = ReferenceOps(), seen

    def __getattr__(self, name: str):
        return partial(self._call, name)

    def _call(self, name: str, *args, **kwargs):
        self._seen.append(name)
        return getattr(self._ops, name)(*args, **kwargs)


@pytest.fixture(scope="module")
def state():
    model = build_config(CONFIG, torch.float32, "cpu", 1)
    spec, device = spec_of(model.config), torch.device("cpu")
    b = Buffers(spec, 128, torch.float32, device, False)
    b.stage(np.arange(8), Sampling(), 0)
    b.upload(8)
    return spec, adopt(model, spec, 128), b, KVCache(spec, 128, torch.float32, device)


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_a_network_pauses_once_behind_every_operation(state, kind):
    spec, weights, b, cache = state
    seen: list[str] = []
    network = Network(spec, weights, Recorded(seen), pause=lambda: seen.append("pause"))
    network.run(kind, 16, b, cache)
    assert len(seen) > 20
    assert set(seen[1::2]) == {"pause"}
    assert "pause" not in seen[::2]


def test_what_is_cut_out_does_not_pause_when_it_is_run_later(state):
    spec, weights, b, cache = state
    seen: list[str] = []
    dynamic: list = []
    network = Network(spec, weights, Recorded(seen), pause=lambda: seen.append("pause"))
    network.run("decode", 16, b, cache, dynamic.append)
    assert {"attend", "sample"}.isdisjoint(seen)
    seen.clear()
    for call in dynamic:
        call()
    assert seen == ["attend"] * 3 + ["sample"]


def test_a_network_without_sampling_draws_no_token(state):
    spec, weights, b, cache = state
    with_it: list[str] = []
    without: list[str] = []
    Network(spec, weights, Recorded(with_it)).decode(b, cache, 16)
    Network(spec, weights, Recorded(without), sample=False).decode(b, cache, 16)
    assert with_it == [*without, "sample"]
