"""Which tile is fastest for each product of the built-in models?

    python -m benchmarks.hybrid_tune [--only gemv rows ranks attention] [--write FILE] [--out FILE]

Times every candidate over enough copies of the weights that none stays in the L2 cache, inside one
CUDA graph, as the runtime runs it. Prints the winners as records of `hybrid/ops/tuning_h200.json`,
with the read rate reached, and writes them there with `--write`; cuBLAS stands beside the row
products. `ranks`: which of cuBLASLt's algorithms a product of a prompt takes. `attention`: the
fused kernel beside rotary + the library's, to be chosen from by hand.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from hybrid.model.hub import BUILTIN
from hybrid.model.spec import Spec, spec_of
from hybrid.model.weights import Linear, Norm
from hybrid.ops.cublaslt import CublasLt
from hybrid.ops.triton_ops import TritonOps
from hybrid.ops.tuning import AttentionTile, GemvTile, RowTile, gemv_rule
from hybrid.state.buffers import Buffers
from hybrid.state.kv_cache import KVCache

# kind, outputs, inputs, with norm, float32 result
GEMVS = [
    ("store", 12288, 4096, True, False),
    ("add", 4096, 4096, False, True),
    ("swiglu", 11008, 4096, True, False),
    ("add", 4096, 11008, False, True),
    ("store", 32000, 4096, True, True),
    ("store", 3072, 2048, True, False),
    ("add", 2048, 2048, False, True),
    ("swiglu", 8192, 2048, True, False),
    ("add", 2048, 8192, False, True),
    ("store", 128256, 2048, True, True),
    ("store", 2304, 768, True, False),
    ("add", 768, 768, False, True),
    ("gelu", 3072, 768, True, False),
    ("add", 768, 3072, False, True),
    ("store", 50257, 768, True, True),
    ("store", 6144, 2048, True, False),
    ("store", 50304, 2048, True, True),
]
GEMV_TILES = [
    (1, 1024, 4, 1), (1, 2048, 4, 1), (2, 512, 2, 1), (2, 1024, 4, 1), (2, 2048, 4, 1),
    (4, 512, 2, 1), (4, 512, 4, 1), (4, 1024, 4, 1), (4, 1024, 8, 1), (8, 256, 4, 1),
    (8, 512, 4, 1), (8, 512, 8, 1), (16, 256, 4, 1), (16, 256, 8, 1), (8, 512, 4, 0),
    (4, 1024, 4, 0),
]  # fmt: skip
SMALL_TILES = [(1, 256, 1, 1), (2, 256, 2, 1), (4, 256, 4, 1), (4, 256, 2, 1), (1, 1024, 2, 1)]
ROW_SHAPES = [(12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008)]
RANK_SHAPES = {
    ((22016, 4096), (4096, 11008), (12288, 4096), (4096, 4096)): "llama-2-7b",
    ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)): "llama-3.2-1b",
    ((6144, 2048),): "olmoe-1b-7b",
}
# Algorithms offered for so many rows more or less are tried too.
NEAR = 32
ATTENTION_MODELS = ("llama-2-7b", "llama-3.2-1b")
ATTENTION_ROWS = (16, 64, 112, 208, 352, 512, 768, 1024)
ATTENTION_TILES = [
    (32, 64, 4, 2), (64, 64, 4, 2), (64, 64, 8, 2), (128, 64, 8, 2), (64, 64, 4, 3), (64, 32, 4, 4),
    (64, 128, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2),
]  # fmt: skip
ROW_TILES = {
    16: [(16, 32, 256, 4, 4), (16, 64, 128, 4, 5), (16, 32, 128, 4, 6), (16, 16, 256, 4, 5)],
    32: [(32, 32, 256, 4, 4), (32, 64, 128, 4, 4), (32, 32, 128, 4, 5)],
    64: [(64, 64, 128, 4, 4), (64, 32, 128, 4, 5), (64, 64, 64, 4, 6)],
    128: [(128, 64, 64, 4, 5), (128, 128, 64, 8, 4), (128, 32, 128, 4, 4)],
}


def timed(run: Any, count: int, replays: int = 6) -> float:
    """Return microseconds of one call, from a graph of `count` calls; run(i) makes call i."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for i in range(count):
            run(i)
        graph.capture_end()
        best = []
        for _ in range(replays):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            best.append(start.elapsed_time(end) * 1e3 / count)
    return sorted(best)[len(best) // 2]


def tune_gemv(ops: TritonOps, deadline: float) -> list[dict[str, Any]]:
    found = []
    for kind, outputs, width, normed, wide in GEMVS:
        if time.monotonic() > deadline:
            break
        rows = outputs * 2 if kind == "swiglu" else outputs
        copies = max(2, min(48, int(1.2e9 / (rows * width * 2))))
        stack = torch.randn(copies, rows, width, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(width, device="cuda", dtype=torch.float32 if normed else torch.bfloat16)
        out = torch.zeros(outputs, device="cuda", dtype=torch.float32 if wide else torch.bfloat16)
        layer = width == 768
        weight = torch.ones(width, device="cuda", dtype=torch.bfloat16)
        norm = Norm(weight, torch.zeros_like(weight) if layer else None) if normed else None
        times = {}
        for tile in GEMV_TILES + (SMALL_TILES if width <= 1024 or outputs <= 768 else []):
            ops.tuning.gemv_tiles[(kind, outputs, width)] = GemvTile(*tile)
            try:
                times[tile] = timed(
                    lambda i, s=stack, k=kind, o=out, n=norm, v=x: ops.gemv(
                        v, Linear(s[i]), o, k, norm=n, eps=1e-5
                    ),
                    copies,
                )
            except Exception as error:
                print("skipped", kind, outputs, width, tile, type(error).__name__, error)
        tile = min(times, key=times.__getitem__)
        ops.tuning.gemv_tiles[(kind, outputs, width)] = GemvTile(*tile)
        us = times[tile]
        record = {
            "kind": kind, "outputs": outputs, "inputs": width, "tile": list(tile),
            "us": round(us, 1), "tb_s": round(rows * width * 2 / us / 1e6, 2),
        }  # fmt: skip
        print(f"    {json.dumps(record)},")
        found.append(
            {"record": record, "us": us, "rule": gemv_rule(kind, outputs, width),
             "all": {str(k): v for k, v in times.items()}}
        )  # fmt: skip
        del stack
    return found


def tune_rows(ops: TritonOps, deadline: float) -> list[dict[str, Any]]:
    found = []
    for outputs, width in ROW_SHAPES:
        copies = max(3, int(6e8 / (outputs * width * 2)))
        stack = torch.randn(copies, outputs, width, device="cuda", dtype=torch.bfloat16)
        for rows, tiles in ROW_TILES.items():
            if time.monotonic() > deadline:
                return found
            a = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(rows, outputs, device="cuda", dtype=torch.bfloat16)
            times: dict[Any, float] = {}
            for tile in [None, *tiles]:
                set_row_tile(ops, (rows, outputs, width), tile)
                try:
                    times[tile] = timed(
                        lambda i, s=stack, v=a, o=out: ops.linear_rows(v, Linear(s[i]), o), copies
                    )
                except Exception as error:
                    print("skipped", rows, outputs, width, tile, type(error).__name__, error)
            tile = min(times, key=times.__getitem__)
            set_row_tile(ops, (rows, outputs, width), tile)
            us, cublas_us = times[tile], times.get(None)
            record = {
                "rows": rows, "outputs": outputs, "inputs": width, "tile": tile and list(tile),
                "us": round(us, 1), "cublas_us": cublas_us and round(cublas_us, 1),
            }  # fmt: skip
            print(f"    {json.dumps(record)},")
            found.append(
                {"record": record, "us": us, "cublas_us": cublas_us,
                 "all": {str(k): v for k, v in times.items()}}
            )  # fmt: skip
        del stack
    return found


def set_row_tile(ops: TritonOps, shape: tuple[int, int, int], tile: Any) -> None:
    """Make a product of (rows, outputs, inputs) take a tile; None: the library's product."""
    if tile is None:
        ops.tuning.row_tiles.pop(shape, None)
    else:
        ops.tuning.row_tiles[shape] = RowTile(*tile)


class Candidates:
    """Ways to compute one product of a prompt: cuBLASLt's algorithms, its own and borrowed ones."""

    def __init__(self, lt: CublasLt, outputs: int, width: int, parts: tuple[int, ...]) -> None:
        self.lt, self.outputs, self.width, self.parts = lt, outputs, width, parts
        copies = max(3, int(6e8 / (outputs * width * 2)))
        self.stack = torch.randn(copies, outputs, width, device="cuda", dtype=torch.bfloat16)

    def by_rows(self, rows: int) -> list[tuple[int, int, int]]:
        """(source, rank, parts) of every distinct algorithm offered for about so many rows."""
        found: dict[tuple[int, bytes], tuple[int, int, int]] = {}
        near = sorted(range(max(8, rows - NEAR), rows + NEAR + 1, 8), key=lambda n: abs(n - rows))
        for parts in self.parts:
            for source in near:
                offered = self.lt.ranked(source, self.outputs, self.width, parts)
                for rank, algorithm in enumerate(offered):
                    found.setdefault((parts, algorithm), (source, rank, parts))
        return list(found.values())

    def us(self, rows: int, choice: tuple[int, int, int] | None, replays: int) -> float:
        """Microseconds of one product (None: torch's choice)."""
        a = torch.randn(rows, self.width, device="cuda", dtype=torch.bfloat16)
        parts = choice[2] if choice else 1
        kind = torch.float32 if parts > 1 else torch.bfloat16
        out = torch.empty(parts, rows, self.outputs, device="cuda", dtype=kind)

        def run(i: int) -> None:
            if choice is None:
                torch.mm(a, self.stack[i].t(), out=out[0])
            else:
                result = out if parts > 1 else out[0]
                self.lt.product(a, self.stack[i], result, choice[1], choice[0])

        return timed(run, len(self.stack), replays)


def norm_us(ops: TritonOps, spec: Spec, rows: int) -> dict[int, float]:
    """Microseconds of the norm that adds a product in one, two or four parts."""
    b = Buffers(spec, 512, torch.bfloat16, torch.device("cuda"), False)
    norm = Norm(torch.ones(spec.hidden, device="cuda", dtype=torch.bfloat16), None)
    return {
        parts: timed(lambda _, n=parts: ops.norm_rows(b, norm, 1e-5, rows, n), 64, 4)
        for parts in (1, 2, 4)
    }


def tune_ranks(ops: TritonOps, deadline: float) -> list[dict[str, Any]]:
    """Products of a prompt, without bias: cuBLASLt's algorithms beside torch's choice.

    What a norm adds afterwards counts with the norm, as it may be left in parts.
    """
    lt = CublasLt(torch.device("cuda"))
    print(f"    # cuBLASLt {lt.version}")
    found = []
    for shapes, name in RANK_SHAPES.items():
        class_name, sizes = BUILTIN[name]
        spec = spec_of(getattr(transformers, class_name)(**sizes))
        norms: dict[int, dict[int, float]] = {}
        for outputs, width in shapes:
            added = outputs == spec.hidden
            candidates = Candidates(lt, outputs, width, (1, 2, 4) if added else (1,))
            for rows in range(16, 513, 8):
                if time.monotonic() > deadline:  # without the shape that is not finished
                    return [one for one in found if one["shape"][1:] != [outputs, width]]
                if added and rows not in norms:
                    norms[rows] = norm_us(ops, spec, rows)
                row = one_product(candidates, rows, norms[rows] if added else {})
                found.append(row)
            print(record_text(rank_records(found)[-1]) + ",", flush=True)
            del candidates
    return found


def rank_records(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a record a shape of what was found, where it is faster than torch's choice."""
    choices: dict[tuple[int, int], list[list[int]]] = {}
    for one in found:
        rows, outputs, width = one["shape"]
        shape = choices.setdefault((outputs, width), [])
        if one["choice"] is not None:
            source, rank, parts = one["choice"]
            shape.append([rows, source, rank, parts][: 4 if parts > 1 else 3])
    return [
        {"outputs": outputs, "inputs": width, "choices": chosen}
        for (outputs, width), chosen in choices.items()
    ]


def one_product(candidates: Candidates, rows: int, norm: dict[int, float]) -> dict[str, Any]:
    def priced(choice: tuple[int, int, int] | None, replays: int) -> float:
        return candidates.us(rows, choice, replays) + norm.get(choice[2] if choice else 1, 0.0)

    rough: dict[tuple[int, int, int], float] = {}
    for choice in candidates.by_rows(rows):
        try:
            rough[choice] = priced(choice, 2)
        except OSError:  # an algorithm of other rows need not do these
            continue
    best = sorted(rough, key=rough.__getitem__)[:4]
    fine = {choice: min(priced(choice, 5), priced(choice, 5)) for choice in best}
    torch_us = min(priced(None, 5), priced(None, 5))
    winner = min(fine, key=fine.__getitem__)
    whole = min((c for c in rough if c[2] == 1), key=rough.__getitem__)
    return {
        "shape": [rows, candidates.outputs, candidates.width],
        "choice": list(winner) if fine[winner] < 0.98 * torch_us else None,
        "us": fine[winner],
        "torch_us": torch_us,
        "tried": len(rough),
        "best": {str(c): us for c, us in fine.items()},
        "best_in_one_part": [str(whole), rough[whole]],
        "norm_us": {str(parts): us for parts, us in norm.items()},
    }


def tune_attention(deadline: float) -> list[dict[str, Any]]:
    found = []
    for name in ATTENTION_MODELS:
        class_name, sizes = BUILTIN[name]
        spec: Spec = spec_of(getattr(transformers, class_name)(**sizes))
        device = torch.device("cuda")
        b = Buffers(spec, 1024, torch.bfloat16, device, False)
        cache = KVCache(spec, 1024, torch.bfloat16, device, layers=1)
        b.qkv_TN.normal_()
        half = spec.head_dim // 2
        angles = torch.rand(1024, half, device=device) if spec.positions == "rope" else None
        layer = SimpleNamespace(q_norm=None, k_norm=None)
        weights: Any = SimpleNamespace(cos_PH=angles, sin_PH=angles, layers=(layer,))
        ops = TritonOps(pdl=True)
        state = (b, cache, weights, 0, spec)

        def attend(rows: int, _: int, ops: TritonOps = ops, state: Any = state) -> None:
            ops.attend_rows(*state, rows)

        for rows in ATTENTION_ROWS:
            times: dict[Any, float] = {}
            for tile in [None, *ATTENTION_TILES]:
                if time.monotonic() > deadline:
                    return found
                tiles = () if tile is None else ((rows, AttentionTile(*tile)),)
                ops.tuning.attention_tiles = tiles
                try:
                    times[tile] = timed(partial(attend, rows), 24)
                except Exception as error:
                    print("skipped", name, rows, tile, type(error).__name__, error)
            shown = ", ".join(f"{tile}: {us:.1f}" for tile, us in times.items())
            print(
                f"    # {name}, {rows} rows, us by tile (None: the library's): {shown}", flush=True
            )
            found.append({"model": name, "rows": rows, "us": {str(k): v for k, v in times.items()}})
    return found


def record_text(record: dict[str, Any]) -> str:
    """Return a record as the tuning file has it, wrapped where it is long."""
    return textwrap.fill(
        json.dumps(record), 120, initial_indent="    ", subsequent_indent="      ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def tuning_text(document: dict[str, Any]) -> str:
    """Return a tuning file's text: a record a line."""
    sections: list[str] = []
    for name, value in document.items():
        records = ",\n".join(map(record_text, value)) if isinstance(value, list) else None
        text = json.dumps(value) if records is None else f"[\n{records}\n  ]"
        sections.append(f'  "{name}": {text}')
    return "{\n" + ",\n".join(sections) + "\n}\n"


def rewrite(path: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """Put what was found into a tuning file; shapes that were not measured stay as they are."""
    document = json.loads(path.read_text(encoding="utf-8"))
    measured = {
        "gemv": [one["record"] for one in found.get("gemv", [])],
        "rows": [one["record"] for one in found.get("rows", [])],
        "ranks": rank_records(found.get("ranks", [])),
    }
    if measured["ranks"]:
        document["cublaslt_version"] = CublasLt(torch.device("cuda")).version
    for part, records in measured.items():
        # Text and sizes name a shape; lists and times say what was found for it.
        names = ("kind", "rows", "outputs", "inputs")
        by_shape = {tuple(r.get(n) for n in names): r for r in [*document[part], *records]}
        document[part] = [r for r in by_shape.values() if r.get("tile", True) is not None]
    path.write_text(tuning_text(document), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Find the fastest tile of each product.")
    parts = ("gemv", "rows", "ranks", "attention")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--write", type=Path, help="put the winners into this tuning file")
    parser.add_argument("--out", help="also write everything measured to this JSON file")
    parser.add_argument("--seconds", type=float, default=240, help="stop after this long")
    arguments = parser.parse_args()
    ops = TritonOps(pdl=True)
    found: dict[str, list[dict[str, Any]]] = {}
    each = arguments.seconds / len(arguments.only)
    for part in arguments.only:
        deadline = time.monotonic() + each
        print(f'  "{part}": [')
        if part == "gemv":
            found[part] = tune_gemv(ops, deadline)
        elif part == "rows":
            found[part] = tune_rows(ops, deadline)
        elif part == "ranks":
            found[part] = tune_ranks(ops, deadline)
        else:
            found[part] = tune_attention(deadline)
        print("  ]", flush=True)
    if arguments.write:
        rewrite(arguments.write, found)
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
