"""Triton kernels of mixtures of experts: for one token, and for the rows of a prompt.

Experts are found by device-side id and read in place. PDL as in `decode.py`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _ranks(logits, E: tl.constexpr, E_P: tl.constexpr):
    # rank[i] = how many logits stand before i; equal ones in order of index.
    i = tl.arange(0, E_P)
    mine = tl.load(logits + i, mask=i < E, other=float("-inf")).to(tl.float32)
    theirs = tl.load(logits + i, mask=i < E, other=float("-inf")).to(tl.float32)
    ahead = (theirs[None, :] > mine[:, None]) | (
        (theirs[None, :] == mine[:, None]) & (i[None, :] < i[:, None])
    )
    return tl.sum(ahead.to(tl.int32), 1)


@triton.jit
def _moe_up(
    x, norm_w, logits, w, out, index, weight, N, K, eps,
    E: tl.constexpr, E_P: tl.constexpr, TOP: tl.constexpr, RENORM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    row = tl.program_id(1) * BN + tl.arange(0, BN)
    row_ok = row < N
    k = tl.arange(0, BK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    rank = _ranks(logits, E, E_P)
    e = tl.arange(0, E_P)
    expert = tl.sum(tl.where(rank == place, e, 0), 0)
    if tl.program_id(1) == 0:
        score = tl.load(logits + e, mask=e < E, other=float("-inf")).to(tl.float32)
        p = tl.exp(score - tl.max(score, 0))
        if RENORM:
            z = tl.sum(tl.where(rank < TOP, p, 0.0), 0)
        else:
            z = tl.sum(p, 0)
        tl.store(index + place, expert)
        tl.store(weight + place, tl.sum(tl.where(rank == place, p, 0.0), 0) / z)
    base = w + expert.to(tl.int64) * 2 * N * K
    w_row = base + row[:, None] * K + k[None, :]
    w_row2 = w_row + N * K
    acc = tl.zeros([BN, BK], tl.float32)
    acc2 = tl.zeros([BN, BK], tl.float32)
    squares = tl.zeros([BK], tl.float32)
    for start in tl.range(0, K, BK):
        ok = start + k < K
        both = ok[None, :] & row_ok[:, None]
        a = tl.load(w_row + start, mask=both, other=0.0, eviction_policy="evict_first")
        c = tl.load(w_row2 + start, mask=both, other=0.0, eviction_policy="evict_first")
        v = tl.load(x + start + k, mask=ok, other=0.0)
        squares += v * v
        v = v * tl.load(norm_w + start + k, mask=ok, other=0.0).to(tl.float32)
        acc += a.to(tl.float32) * v[None, :]
        acc2 += c.to(tl.float32) * v[None, :]
    scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)
    y = tl.sum(acc, 1) * scale
    y = y * tl.sigmoid(y) * (tl.sum(acc2, 1) * scale)
    tl.store(out + place * N + row, y.to(out.dtype.element_ty), mask=row_ok)


@triton.jit
def _moe_down(
    h, w, index, weight, out, N, K,
    TOP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    row_ok = row < N
    k = tl.arange(0, BK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros([BN, BK], tl.float32)
    # Experts in the order of their rank, always: no atomics, the same sum every time.
    for place in tl.static_range(TOP):
        expert = tl.load(index + place).to(tl.int64)
        share = tl.load(weight + place)
        base = w + expert * N * K
        for start in tl.range(0, K, BK):
            ok = start + k < K
            both = ok[None, :] & row_ok[:, None]
            a = tl.load(
                base + row[:, None] * K + start + k[None, :],
                mask=both,
                other=0.0,
                eviction_policy="evict_first",
            )
            v = tl.load(h + place * K + start + k, mask=ok, other=0.0).to(tl.float32) * share
            acc += a.to(tl.float32) * v[None, :]
    y = tl.sum(acc, 1) + tl.load(out + row, mask=row_ok, other=0.0)
    tl.store(out + row, y, mask=row_ok)


@triton.jit
def _route_rows(
    logits, index, weight, width,
    E: tl.constexpr, E_P: tl.constexpr, TOP: tl.constexpr, RENORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    base = logits + row * width
    rank = _ranks(base, E, E_P)
    e = tl.arange(0, E_P)
    score = tl.load(base + e, mask=e < E, other=float("-inf")).to(tl.float32)
    p = tl.exp(score - tl.max(score, 0))
    if RENORM:
        z = tl.sum(tl.where(rank < TOP, p, 0.0), 0)
    else:
        z = tl.sum(p, 0)
    tl.store(index + row * TOP + rank, e, mask=rank < TOP)
    tl.store(weight + row * TOP + rank, p / z, mask=rank < TOP)


@triton.jit
def _experts_rows(
    a, w, out, pair_of_row, expert_of_block, weight, N, K,
    E: tl.constexpr, TOP: tl.constexpr, UP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(1)
    expert = tl.load(expert_of_block + block)
    if expert < E:
        pair = tl.load(pair_of_row + block * BM + tl.arange(0, BM))
        real = pair >= 0
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        safe = tl.where(real, pair, 0)
        if UP:
            a_at = a + (safe // TOP)[:, None] * K + k[None, :]
            base = w + expert.to(tl.int64) * 2 * N * K
        else:
            a_at = a + safe[:, None] * K + k[None, :]
            base = w + expert.to(tl.int64) * N * K
        w_at = base + tl.minimum(n, N - 1)[None, :] * K + k[:, None]
        acc = tl.zeros([BM, BN], tl.float32)
        acc2 = tl.zeros([BM, BN], tl.float32)
        for start in range(0, K, BK):
            left = start + k < K
            rows = tl.load(a_at + start, mask=left[None, :], other=0.0)
            acc = tl.dot(rows, tl.load(w_at + start, mask=left[:, None], other=0.0), acc)
            if UP:
                second = tl.load(w_at + N * K + start, mask=left[:, None], other=0.0)
                acc2 = tl.dot(rows, second, acc2)
        if UP:
            y = acc * tl.sigmoid(acc) * acc2
        else:
            y = acc * tl.load(weight + safe)[:, None]
        ok = real[:, None] & (n < N)[None, :]
        tl.store(out + safe[:, None] * N + n[None, :], y.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _sum_pairs(pairs, out, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = k < width
    y = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOP):
        y += tl.load(pairs + (row * TOP + place) * width + k, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * width + k, y.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _gate_rows(delta, y, logits, width, gate_row, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = k < width
    share = tl.sigmoid(tl.load(logits + row * (gate_row + 1) + gate_row).to(tl.float32))
    at = row * width + k
    v = tl.load(delta + at, mask=ok, other=0.0).to(tl.float32)
    v += tl.load(y + at, mask=ok, other=0.0).to(tl.float32) * share
    tl.store(delta + at, v.to(delta.dtype.element_ty), mask=ok)
