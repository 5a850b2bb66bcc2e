"""Which models the kernel of `step.cu` is for, and the sizes that it is compiled with."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hybrid.model.spec import Spec
from hybrid.model.weights import Weights
from hybrid.state import control as slot

# Families whose kernel was measured and checked through the engine on an H200; the others may ask.
PROVEN = ("llama",)
_SHARED_BYTES = 227 << 10
_HEAD_DIMS = (32, 64, 128, 256)
_MOST_PARTS = 16


@dataclass(frozen=True)
class Tiling:
    """What may be chosen for a device, whatever the model.

    Attributes:
        grid: Thread blocks, one a multiprocessor.
        warps: Warps of a block that compute; one more copies.
        chunk: Bytes that are copied to shared memory at once, a whole row at least.
        flying: Chunks on their way at most.
        stages: Chunks in shared memory at most.
        shared: Bytes of shared memory of a block.
        min_part: Positions of the cache that one block attends over at least, up to four parts.
        full_part: Positions for which there are more than four.
        watchdog_ns: How long a barrier is waited for.
    """

    grid: int
    warps: int = 8
    # Proven with the engine; two chunks of 32 KB are 0.01 ms a token faster in the kernel alone.
    chunk: int = 16 << 10
    flying: int = 4
    stages: int = 32
    shared: int = _SHARED_BYTES
    min_part: int = 128
    full_part: int = 1024
    watchdog_ns: int = 2_000_000_000


def refusal(spec: Spec, weights: Weights, tiling: Tiling) -> str | None:
    """Return why the kernel cannot run the model, None if it can."""
    if any(spec.sparse):
        return "experts are not implemented in the persistent kernel"
    if spec.qk_norm == "full":
        return "a norm over all heads is not implemented in the persistent kernel"
    if str(weights.dtype) != "torch.bfloat16":
        return f"the weights are {weights.dtype}; the persistent kernel reads bfloat16"
    if spec.head_dim not in _HEAD_DIMS:
        return f"head_dim is {spec.head_dim}; the persistent kernel has {_HEAD_DIMS}"
    if spec.heads // spec.kv_heads > 16:
        return f"{spec.heads // spec.kv_heads} query heads share a key head; 16 may"
    widths = (spec.hidden, spec.inner, spec.attention_width)
    if any(width % 8 for width in widths):
        return f"a row of {widths} elements is not of whole 16 bytes"
    row = 2 * max(2 * spec.hidden, spec.inner, spec.attention_width)
    ring = tiling.shared - _headroom(spec, tiling)
    if 3 * row > ring:
        return f"a row of {row} bytes leaves no ring in {ring} bytes of shared memory"
    unaligned = [name for name, at in pointers(weights).items() if at % 16]
    if unaligned:
        return f"weights do not stand at whole 16 bytes: {unaligned[:3]}"
    return None


def macros(spec: Spec, weights: Weights, slots: int, tiling: Tiling) -> dict[str, str]:
    """Return the macros of `step.cu`.

    Args:
        slots: Rows of the KV cache.
    """
    first = weights.layers[0]
    learned = weights.position_PD.shape[0] if weights.position_PD is not None else 0
    headroom = _headroom(spec, tiling)
    chosen = asdict(tiling)
    del chosen["shared"], chosen["watchdog_ns"]
    numbers: dict[str, int] = {
        **{name.upper(): value for name, value in chosen.items()},
        "HEADROOM": headroom,
        "RING": (tiling.shared - headroom) // 128 * 128,
        "LAYERS": spec.layers,
        "HIDDEN": spec.hidden,
        "HEADS": spec.heads,
        "KV_HEADS": spec.kv_heads,
        "DIM": spec.head_dim,
        "INNER": spec.inner,
        "VOCAB": spec.vocab,
        "SLOTS": slots,
        "PARTS": parts(spec, slots, tiling),
        "QKV_BIAS": first.qkv.bias_N is not None,
        "OUTPUT_BIAS": first.output.bias_N is not None,
        "UP_BIAS": first.up is not None and first.up.bias_N is not None,
        "DOWN_BIAS": first.down is not None and first.down.bias_N is not None,
        "LAYER_NORM": spec.norm == "layer",
        "GELU_MLP": spec.activation == "gelu",
        "ROPE": weights.cos_PH is not None,
        "QK_NORM": spec.qk_norm == "head",
        "LEARNED": learned,
        "TOKEN": slot.TOKEN,
        "POSITION": slot.POSITION,
        "NO_BARRIER": False,
    }
    return {
        **{name: str(int(value)) for name, value in numbers.items()},
        "EPS": f"{spec.eps!r}f",
        "WATCHDOG_NS": f"{tiling.watchdog_ns}ull",
    }


def parts(spec: Spec, slots: int, tiling: Tiling) -> int:
    """Return into how many parts the context of a kv head is cut at most."""
    return max(1, min(_MOST_PARTS, tiling.grid // spec.kv_heads, max(4, slots // tiling.full_part)))


def pointers(weights: Weights) -> dict[str, int]:
    """Return the address of every tensor that rows are copied from, by its name."""
    found = {"embedding": weights.embedding_VD.data_ptr(), "head": weights.head_VD.data_ptr()}
    if weights.position_PD is not None:
        found["positions"] = weights.position_PD.data_ptr()
    for i, layer in enumerate(weights.layers):
        linears = {"qkv": layer.qkv, "output": layer.output, "up": layer.up, "down": layer.down}
        for name, linear in linears.items():
            if linear is not None:
                found[f"layer {i} {name}"] = linear.weight_NK.data_ptr()
        for name, norm in (("norm", layer.attention_norm), ("mlp norm", layer.mlp_norm)):
            found[f"layer {i} {name}"] = norm.weight_K.data_ptr()
    return found


def _headroom(spec: Spec, tiling: Tiling) -> int:
    """Bytes before the ring: barriers, and partial sums of products or of attention."""
    heads = min(spec.heads // spec.kv_heads, 2)
    sums = max(2 * 64 * tiling.warps, heads * tiling.warps * (spec.head_dim + 2)) * 4
    weights = 4 * _MOST_PARTS * spec.heads
    return -(-(20 * tiling.stages + 8 * tiling.warps + 64 + weights + sums) // 128) * 128
