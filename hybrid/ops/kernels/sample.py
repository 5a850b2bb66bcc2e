"""The Triton kernel that draws a token, with its own Philox numbers. PDL as in `decode.py`."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .slots import (
    POSITION,
    RING_BASE,
    SEED_HIGH,
    SEED_LOW,
    STEP,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
)


@triton.jit
def _ordered(x):
    # float32 bits as int32 in the order of the floats.
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _noise(seed, step, index):
    word, _, _, _ = tl.philox(seed, index, step, 0, 0)
    uniform = (
        (word.to(tl.uint32, bitcast=True) >> 9).to(tl.float32) + 0.5
    ) * 1.1920928955078125e-07
    return -tl.log(-tl.log(uniform))


@triton.jit
def _sample(
    logits, control, best, arrivals, counter, ring, host_ring, V, blocks,
    RING: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_P: tl.constexpr, ADVANCE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    step = tl.load(control + STEP)
    top_k = tl.load(control + TOP_K)
    low = tl.load(control + SEED_LOW).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(control + SEED_HIGH).to(tl.uint32, bitcast=True).to(tl.uint64)
    seed = low | (high << 32)
    temperature = tl.load(control + TEMPERATURE).to(tl.float32, bitcast=True)
    top_p = tl.load(control + TOP_P).to(tl.float32, bitcast=True)
    index = pid * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + index, mask=index < V, other=float("-inf"))
    if temperature > 0:
        score = score / temperature + _noise(seed, step, index)
    top = tl.max(score, 0)
    first = tl.min(tl.where(score == top, index, V), 0)
    tl.store(best + pid, top)
    tl.store(best + blocks + pid, first.to(tl.float32, bitcast=True))
    tl.debug_barrier()
    before = tl.atomic_add(arrivals + counter, 1, sem="acq_rel", scope="gpu")
    if before == blocks - 1:
        tl.debug_barrier()
        each = tl.arange(0, BLOCKS_P)
        tops = tl.load(best + each, mask=each < blocks, other=float("-inf"), cache_modifier=".cg")
        firsts = tl.load(best + blocks + each, mask=each < blocks, other=0.0, cache_modifier=".cg")
        firsts = firsts.to(tl.int32, bitcast=True)
        top_all = tl.max(tops, 0)
        token = tl.min(tl.where((tops == top_all) & (each < blocks), firsts, V), 0)
        if (temperature > 0) & (((top_k > 0) & (top_k < V)) | (top_p < 1.0)):
            # Filtered: the threshold by bisection on the ordered bits of the logits, exactly.
            lane = tl.arange(0, BLOCK)
            highest = tl.full([BLOCK], float("-inf"), tl.float32)
            for start in tl.range(0, V, BLOCK):
                x = tl.load(logits + start + lane, mask=start + lane < V, other=float("-inf"))
                highest = tl.maximum(highest, x)
            peak = tl.max(highest, 0)
            floor = tl.full((), -2147483647, tl.int64)
            ceiling = _ordered(peak).to(tl.int64)
            if (top_k > 0) & (top_k < V):
                lo = floor
                hi = ceiling
                while lo < hi:
                    middle = (lo + hi + 1) >> 1
                    count = tl.zeros([BLOCK], tl.int32)
                    for start in tl.range(0, V, BLOCK):
                        ok = start + lane < V
                        x = tl.load(logits + start + lane, mask=ok, other=float("-inf"))
                        count += (ok & (_ordered(x).to(tl.int64) >= middle)).to(tl.int32)
                    enough = tl.sum(count, 0) >= top_k
                    lo = tl.where(enough, middle, lo)
                    hi = tl.where(enough, hi, middle - 1)
                floor = lo
            if top_p < 1.0:
                mass = tl.zeros([BLOCK], tl.float32)
                for start in tl.range(0, V, BLOCK):
                    ok = start + lane < V
                    x = tl.load(logits + start + lane, mask=ok, other=float("-inf"))
                    kept = ok & (_ordered(x).to(tl.int64) >= floor)
                    mass += tl.where(kept, tl.exp((x - peak) / temperature), 0.0)
                wanted = tl.sum(mass, 0) * top_p
                lo = floor
                hi = ceiling
                while lo < hi:
                    middle = (lo + hi + 1) >> 1
                    part = tl.zeros([BLOCK], tl.float32)
                    for start in tl.range(0, V, BLOCK):
                        ok = start + lane < V
                        x = tl.load(logits + start + lane, mask=ok, other=float("-inf"))
                        kept = ok & (_ordered(x).to(tl.int64) >= middle)
                        part += tl.where(kept, tl.exp((x - peak) / temperature), 0.0)
                    enough = tl.sum(part, 0) >= wanted
                    lo = tl.where(enough, middle, lo)
                    hi = tl.where(enough, hi, middle - 1)
                floor = lo
            lane_best = tl.full([BLOCK], float("-inf"), tl.float32)
            lane_index = tl.full([BLOCK], 0, tl.int32) + V
            for start in tl.range(0, V, BLOCK):
                at = start + lane
                ok = at < V
                x = tl.load(logits + at, mask=ok, other=float("-inf"))
                kept = ok & (_ordered(x).to(tl.int64) >= floor)
                y = tl.where(kept, x / temperature + _noise(seed, step, at), float("-inf"))
                better = y > lane_best
                lane_best = tl.where(better, y, lane_best)
                lane_index = tl.where(better, at, lane_index)
            top_all = tl.max(lane_best, 0)
            token = tl.min(tl.where(lane_best == top_all, lane_index, V), 0)
        # NaN logits compare with nothing; the token must stay a row of the embedding.
        token = tl.minimum(token, V - 1)
        place = (tl.load(control + RING_BASE) + step) % RING
        tl.store(control + TOKEN, token)
        tl.store(control + STEP, step + 1)
        if ADVANCE:
            tl.store(control + POSITION, tl.load(control + POSITION) + 1)
        tl.store(arrivals + counter, 0)
        tl.store(ring + place, token)
        tl.store(host_ring + place, token)
