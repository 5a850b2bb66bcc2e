"""The persistent decode kernel: its arithmetic, barriers and refusals, without a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hybrid.model.hub import build_config  # noqa: E402  (after importorskip)
from hybrid.model.spec import spec_of  # noqa: E402
from hybrid.model.weights import adopt  # noqa: E402
from hybrid.network import Network  # noqa: E402
from hybrid.ops.persistent import nvrtc, sizes  # noqa: E402
from hybrid.ops.persistent.sizes import Tiling  # noqa: E402
from hybrid.ops.reference import ReferenceOps  # noqa: E402
from hybrid.state import control as slot  # noqa: E402
from hybrid.state.buffers import Buffers  # noqa: E402
from hybrid.state.kv_cache import KVCache  # noqa: E402
from support.persistent_on_cpu import COMPILER, Emulated  # noqa: E402

SLOTS = 128
SMALL = Tiling(
    grid=3, warps=4, chunk=2048, flying=3, stages=8, shared=8 << 10, min_part=16, watchdog_ns=10**9
)
LLAMA = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
}
WIDE = {"hidden_size": 128, "intermediate_size": 1400, "num_key_value_heads": 4}
MANY = Tiling(
    grid=12, warps=2, chunk=1024, flying=2, stages=5, shared=8 << 10, min_part=8, full_part=20
)
CASES = {
    "llama": ("LlamaConfig", {}, SMALL),
    "qwen2": ("Qwen2Config", {}, SMALL),
    "qwen3": ("Qwen3Config", {}, SMALL),
    "a context in six parts": ("LlamaConfig", {}, MANY),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 2}, SMALL),
    "seven heads a key head": (
        "LlamaConfig",
        {"hidden_size": 112, "num_attention_heads": 7, "num_key_value_heads": 1},
        SMALL,
    ),
    "rows longer than a chunk": (
        "LlamaConfig",
        WIDE,
        Tiling(
            grid=5,
            warps=2,
            chunk=2048,
            flying=2,
            stages=4,
            shared=24 << 10,
            min_part=8,
            full_part=12,
        ),
    ),
}
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++ to build the kernel")


def model_of(case: str):
    name, changes, tiling = CASES[case]
    base = {"vocab_size": 100} if name == "GPT2Config" else LLAMA
    config = getattr(transformers, name)(**{**base, **changes})
    model = build_config(config, torch.bfloat16, "cpu", 1)
    torch.manual_seed(2)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
        else:
            parameter.data.mul_(3)
    spec = spec_of(model.config)
    return spec, adopt(model, spec, SLOTS), tiling


class Pair:
    """The kernel and the plain operations over the same token, position and cache.

    The plain ones keep what stands between two operations in float32, as the kernel does.
    """

    def __init__(self, case: str, folder: Path, **options) -> None:
        self.spec, self.weights, self.tiling = model_of(case)
        cpu = torch.device("cpu")
        self.buffers = [Buffers(self.spec, SLOTS, torch.float32, cpu, False) for _ in range(2)]
        self.caches = [KVCache(self.spec, SLOTS, torch.bfloat16, cpu) for _ in range(2)]
        self.kernel = Emulated(
            self.spec,
            self.weights,
            self.buffers[0],
            self.caches[0],
            self.tiling,
            folder,
            **options,
        )

    def start(self, position: int) -> None:
        torch.manual_seed(position)
        past = torch.randn_like(self.caches[0].storage_L2HSD)
        for b, cache, beyond in zip(self.buffers, self.caches, (float("nan"), 0.0), strict=True):
            b.control[slot.TOKEN], b.control[slot.POSITION] = 7, position
            cache.storage_L2HSD.copy_(past)
            cache.storage_L2HSD[..., position:, :] = beyond
        self.buffers[0].logits_V.fill_(float("nan"))

    def expected(self):
        b, cache = self.buffers[1], self.caches[1]
        Network(self.spec, self.weights, ReferenceOps(), sample=False).decode(b, cache, SLOTS)
        return b.logits_V


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_a_step_has_the_logits_and_the_cache_row_of_the_plain_operations(case, folder):
    pair = Pair(case, folder)
    for position in (0, 5, 125):
        pair.start(position)
        assert pair.kernel.run(pair.tiling.grid, seed=position) is None
        wanted = pair.expected()
        assert (pair.buffers[0].logits_V - wanted).norm() < 1e-5 * wanted.norm()
        ours, theirs = (c.storage_L2HSD[..., position, :].float() for c in pair.caches)
        assert (ours - theirs).norm() <= 1e-2 * theirs.norm()
        assert int(pair.kernel.arguments.fault) == 0


@needs_compiler
def test_the_order_of_threads_copies_and_stores_changes_no_bit(folder):
    pair = Pair("llama", folder)
    pair.start(50)
    seen = []
    for seed in range(12):
        assert pair.kernel.run(pair.tiling.grid, seed) is None
        seen.append(pair.buffers[0].logits_V.clone())
    assert all(torch.equal(logits, seen[0]) for logits in seen)


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        ("constexpr u32 TAG = 3;", "constexpr u32 TAG = 0;"),
        ("at - tail_at > RING", "false"),
        ("mbarrier_wait(&shared->full[chunk % STAGES], chunk / STAGES & 1);", ""),
    ],
    ids=["values without tags", "a ring without room", "no waiting for a copy"],
)
def test_a_missing_wait_shows(change, folder):
    pair = Pair("llama", folder, change=change)
    pair.start(50)
    found = [pair.kernel.run(pair.tiling.grid, seed) for seed in range(4)]
    wanted = pair.expected()
    wrong = not (pair.buffers[0].logits_V - wanted).norm() < 1e-5 * wanted.norm()
    assert wrong or any(found)


@needs_compiler
def test_a_block_that_never_comes_ends_in_a_fault_and_so_does_every_step_behind_it(folder):
    pair = Pair("llama", folder)
    pair.start(5)
    arguments = pair.kernel.arguments
    assert pair.kernel.run(pair.tiling.grid - 1, seed=0) is None
    assert int(arguments.fault) > 0
    pair.buffers[0].logits_V.fill_(3.0)
    assert pair.kernel.run(pair.tiling.grid, seed=1) is None
    assert bool((pair.buffers[0].logits_V == 3.0).all())


def test_a_model_that_the_kernel_cannot_run_is_refused_by_name():
    spec, weights, _ = model_of("llama")
    whole = Tiling(grid=132)
    assert sizes.refusal(spec, weights, whole) is None
    wide = SimpleNamespace(**{**vars(weights), "dtype": torch.float32})
    for changed, given, named in (
        ({"sparse": (True, False, False)}, weights, "experts"),
        ({"qk_norm": "full"}, weights, "norm over all heads"),
        ({"head_dim": 80}, weights, "head_dim is 80"),
        ({"inner": 100}, weights, "16 bytes"),
        ({"inner": 80000}, weights, "no ring"),
        ({"heads": 34}, weights, "17 query heads"),
        ({}, wide, "float32"),
    ):
        other = type(spec)(**{**vars(spec), **changed})
        assert named in str(sizes.refusal(other, given, whole))


def test_the_compiler_is_asked_once_for_the_same_sizes_driver_and_architecture(
    tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_compile", lambda source, options: asked.append(options) or b"code")
    first = nvrtc.build("source", {"A": "1"}, "sm_90a", "13000")
    again = nvrtc.build("source", {"A": "1"}, "sm_90a", "13000")
    assert (first.cubin, first.cached) == (b"code", False)
    assert (again.cubin, again.cached) == (b"code", True)
    for changed in (
        ("other", {"A": "1"}, "sm_90a", "13000"),
        ("source", {"A": "2"}, "sm_90a", "13000"),
        ("source", {"A": "1"}, "sm_100a", "13000"),
        ("source", {"A": "1"}, "sm_90a", "13010"),
    ):
        assert not nvrtc.build(*changed).cached
    assert len(asked) == 5


def test_a_disk_that_takes_nothing_costs_only_the_compilation(tmp_path, monkeypatch):
    (tmp_path / "hostbound").write_text("not a folder", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_compile", lambda source, options: b"code")
    assert nvrtc.build("source", {}, "sm_90a", "13000").cubin == b"code"
    assert not nvrtc.build("source", {}, "sm_90a", "13000").cached


class GivenUp:
    """A step that has given a barrier up."""

    fault = 7

    def enqueue(self) -> None:
        raise AssertionError("a step that was given up is not enqueued again")


def test_a_step_that_was_given_up_is_an_error_once_and_the_engine_goes_on_without_it():
    from hybrid import Engine, HybridError

    config = transformers.LlamaConfig(**LLAMA)
    model = build_config(config, torch.float32, "cpu", 1)
    with Engine.from_model(model, max_context=128, background=False) as engine:
        assert "needs CUDA" in engine.stats()["decode_step"]
        wanted = engine.generate([1, 2, 3], 6)
        engine.runner._persistent = GivenUp()
        with pytest.raises(HybridError, match=r"barrier 7 .* did not come"):
            engine.generate([1, 2, 3], 6)
        assert engine.generate([1, 2, 3], 6) == wanted
        assert engine.stats()["decode_step"].startswith("kernels: barrier 7")
        assert engine.stats()["decode_graphs"] == []
