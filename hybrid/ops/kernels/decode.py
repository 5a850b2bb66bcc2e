"""Triton kernels of one token: embedding, matrix times vector, attention.

The residual stream is float32; norms are folded into the product that follows (each program sums
the squares of the x it reads anyway). No atomics but arrival counters, so results do not depend on
timing. Programmatic dependent launch (PDL): a kernel may start while the one before it drains. It
loads weights, which nobody writes, first; `gdc_wait` stands before the first read of anything that
another kernel wrote.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .slots import IDS, POSITION, TOKEN


@triton.jit
def _embed(
    out, control, table, learned, width, last,
    ROWS: tl.constexpr, LEARNED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    if ROWS:
        token = tl.load(control + IDS + row)
        position = row
    else:
        token = tl.load(control + TOKEN)
        position = tl.load(control + POSITION)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(table + token.to(tl.int64) * width + column, mask=inside, other=0.0).to(tl.float32)
    if LEARNED:
        place = tl.minimum(position, last)
        x += tl.load(learned + place * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, x, mask=inside)


@triton.jit
def _tile(w, start, k, K, row_ok, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, LAST: tl.constexpr):
    # LAST: the tile may lie wholly past the end (prefetch), so columns need a mask all the same.
    if EVEN_K and not LAST:
        if EVEN_N:
            return tl.load(w + start, eviction_policy="evict_first")
        else:
            return tl.load(
                w + start, mask=row_ok[:, None], other=0.0, eviction_policy="evict_first"
            )
    else:
        column_ok = (start + k < K)[None, :]
        if EVEN_N:
            return tl.load(w + start, mask=column_ok, other=0.0, eviction_policy="evict_first")
        else:
            return tl.load(
                w + start,
                mask=column_ok & row_ok[:, None],
                other=0.0,
                eviction_policy="evict_first",
            )


@triton.jit
def _gemv(
    x, w, out, bias, norm_w, norm_b, gate, N, K, eps,
    BN: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr, NORM: tl.constexpr, KIND: tl.constexpr,
    BIAS: tl.constexpr, GATE: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    row_ok = row < N
    k = tl.arange(0, BK)
    w_row = w + row[:, None] * K + k[None, :]
    w_row2 = w_row + N * K
    if PDL:
        gdc_launch_dependents()
    w_a = _tile(w_row, 0, k, K, row_ok, EVEN_N, EVEN_K, False)
    w_b = w_a
    if KIND == "swiglu":
        w_b = _tile(w_row2, 0, k, K, row_ok, EVEN_N, EVEN_K, False)
    if PDL:
        gdc_wait()
    mean = 0.0
    rstd = 1.0
    if NORM == "layer":
        every = tl.arange(0, BX)
        whole = tl.load(x + every, mask=every < K, other=0.0)
        mean = tl.sum(whole, 0) / K
        centred = tl.where(every < K, whole - mean, 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, 0) / K + eps)
    acc = tl.zeros([BN, BK], tl.float32)
    acc2 = tl.zeros([BN, BK], tl.float32)
    squares = tl.zeros([BK], tl.float32)
    for start in tl.range(0, K, BK):
        if DEPTH == 1:
            now_a = w_a
            now_b = w_b
            w_a = _tile(w_row, start + BK, k, K, row_ok, EVEN_N, EVEN_K, True)
            if KIND == "swiglu":
                w_b = _tile(w_row2, start + BK, k, K, row_ok, EVEN_N, EVEN_K, True)
        else:
            now_a = _tile(w_row, start, k, K, row_ok, EVEN_N, EVEN_K, False)
            now_b = now_a
            if KIND == "swiglu":
                now_b = _tile(w_row2, start, k, K, row_ok, EVEN_N, EVEN_K, False)
        ok = start + k < K
        v = tl.load(x + start + k, mask=ok, other=0.0).to(tl.float32)
        if NORM == "rms":
            squares += v * v
            v = v * tl.load(norm_w + start + k, mask=ok, other=0.0).to(tl.float32)
        if NORM == "layer":
            v = (v - mean) * rstd
            v = v * tl.load(norm_w + start + k, mask=ok, other=0.0).to(tl.float32)
            v = v + tl.load(norm_b + start + k, mask=ok, other=0.0).to(tl.float32)
        acc += now_a.to(tl.float32) * v[None, :]
        if KIND == "swiglu":
            acc2 += now_b.to(tl.float32) * v[None, :]
    y = tl.sum(acc, 1)
    scale = 1.0
    if NORM == "rms":
        scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)
        y = y * scale
    if BIAS:
        y += tl.load(bias + row, mask=row_ok, other=0.0).to(tl.float32)
    if KIND == "swiglu":
        y2 = tl.sum(acc2, 1) * scale
        if BIAS:
            y2 += tl.load(bias + N + row, mask=row_ok, other=0.0).to(tl.float32)
        y = y * tl.sigmoid(y) * y2
    if KIND == "gelu":
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    if KIND == "add":
        if GATE:
            y = y * tl.sigmoid(tl.load(gate).to(tl.float32))
        y += tl.load(out + row, mask=row_ok, other=0.0)
    tl.store(out + row, y.to(out.dtype.element_ty), mask=row_ok)


@triton.jit
def _rotated(base, d, ok, cos, sin, norm_w, rstd, DIM: tl.constexpr, ROPE: tl.constexpr,
             NORMED: tl.constexpr):  # fmt: skip
    x = tl.load(base + d, mask=ok, other=0.0).to(tl.float32)
    if NORMED:
        x = x * rstd * tl.load(norm_w + d, mask=ok, other=0.0).to(tl.float32)
    if ROPE:
        half: tl.constexpr = DIM // 2
        first = d < half
        other = tl.where(first, d + half, d - half)
        y = tl.load(base + other, mask=ok, other=0.0).to(tl.float32)
        if NORMED:
            y = y * rstd * tl.load(norm_w + other, mask=ok, other=0.0).to(tl.float32)
        angle = tl.where(first, d, d - half)
        c = tl.load(cos + angle, mask=ok, other=0.0)
        s = tl.load(sin + angle, mask=ok, other=0.0)
        x = x * c + tl.where(first, -y, y) * s
    return x


@triton.jit
def _rstd(base, WIDTH: tl.constexpr, WIDTH_P: tl.constexpr, eps):
    every = tl.arange(0, WIDTH_P)
    x = tl.load(base + every, mask=every < WIDTH, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)


@triton.jit
def _attend(
    qkv, k_cache, v_cache, control, cos, sin, q_norm, k_norm, partial, arrivals, out,
    slots, scale, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr,
    ROPE: tl.constexpr, QK_NORM: tl.constexpr, Q_P: tl.constexpr, K_P: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr, MAX_SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    split = tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    kv_head = head // group
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    position = tl.load(control + POSITION)
    active = position // SPLIT + 1
    if split < active:
        d = tl.arange(0, DIM_P)
        d_ok = d < DIM
        k_base = qkv + HEADS * DIM + kv_head * DIM
        q_base = qkv + head * DIM
        q_rstd = 1.0
        k_rstd = 1.0
        if QK_NORM == "head":
            q_rstd = _rstd(q_base, DIM, DIM_P, eps)
            k_rstd = _rstd(k_base, DIM, DIM_P, eps)
            qn = q_norm
            kn = k_norm
        elif QK_NORM == "full":
            q_rstd = _rstd(qkv, HEADS * DIM, Q_P, eps)
            k_rstd = _rstd(qkv + HEADS * DIM, KV_HEADS * DIM, K_P, eps)
            qn = q_norm + head * DIM
            kn = k_norm + kv_head * DIM
        else:
            qn = q_norm
            kn = k_norm
        half: tl.constexpr = DIM // 2
        NORMED: tl.constexpr = QK_NORM != "none"
        c_row = cos + position * half
        s_row = sin + position * half
        q = _rotated(q_base, d, d_ok, c_row, s_row, qn, q_rstd, DIM, ROPE, NORMED)
        q = q * scale
        best = -1e30
        total = 0.0
        acc = tl.zeros([DIM_P], tl.float32)
        k_head = k_cache + kv_head.to(tl.int64) * slots * DIM
        v_head = v_cache + kv_head.to(tl.int64) * slots * DIM
        stop = tl.minimum(position, (split + 1) * SPLIT)
        for start in tl.range(split * SPLIT, stop, BLOCK):
            s = start + tl.arange(0, BLOCK)
            s_ok = s < stop
            both = s_ok[:, None] & d_ok[None, :]
            at = s[:, None] * DIM + d[None, :]
            keys = tl.load(k_head + at, mask=both, other=0.0).to(tl.float32)
            values = tl.load(v_head + at, mask=both, other=0.0).to(tl.float32)
            score = tl.where(s_ok, tl.sum(keys * q[None, :], 1), float("-inf"))
            top = tl.maximum(best, tl.max(score, 0))
            p = tl.exp(score - top)
            shrink = tl.exp(best - top)
            total = total * shrink + tl.sum(p, 0)
            acc = acc * shrink + tl.sum(p[:, None] * values, 0)
            best = top
        if split == active - 1:
            # The token itself: from registers, and into the cache by one program a kv head.
            fresh = _rotated(k_base, d, d_ok, c_row, s_row, kn, k_rstd, DIM, ROPE, NORMED)
            stored = fresh.to(k_cache.dtype.element_ty)
            value = tl.load(k_base + KV_HEADS * DIM + d, mask=d_ok, other=0.0)
            if head % group == 0:
                write = d_ok & (position < slots)
                tl.store(k_head + position * DIM + d, stored, mask=write)
                tl.store(
                    v_head + position * DIM + d, value.to(v_cache.dtype.element_ty), mask=write
                )
            score_new = tl.sum(stored.to(tl.float32) * q, 0)
            top_new = tl.maximum(best, score_new)
            p_new = tl.exp(score_new - top_new)
            shrink_new = tl.exp(best - top_new)
            total = total * shrink_new + p_new
            acc = acc * shrink_new + p_new * value.to(tl.float32)
            best = top_new
        if active == 1:
            tl.store(out + head * DIM + d, (acc / total).to(out.dtype.element_ty), mask=d_ok)
        else:
            place = partial + (head * MAX_SPLITS + split) * (DIM + 2)
            tl.store(place + d, acc, mask=d_ok)
            tl.store(place + DIM, best)
            tl.store(place + DIM + 1, total)
            # All of this program's stores before its arrival; .cg below: no stale L1 lines.
            tl.debug_barrier()
            before = tl.atomic_add(arrivals + head, 1, sem="acq_rel", scope="gpu")
            if before == active - 1:
                tl.debug_barrier()
                each = tl.arange(0, MAX_SPLITS)
                each_ok = each < active
                row = partial + (head * MAX_SPLITS + each) * (DIM + 2)
                bests = tl.load(row + DIM, mask=each_ok, other=-1e30, cache_modifier=".cg")
                totals = tl.load(row + DIM + 1, mask=each_ok, other=0.0, cache_modifier=".cg")
                factor = tl.exp(bests - tl.max(bests, 0))
                accs = tl.load(
                    row[:, None] + d[None, :],
                    mask=each_ok[:, None] & d_ok[None, :],
                    other=0.0,
                    cache_modifier=".cg",
                )
                result = tl.sum(accs * factor[:, None], 0) / tl.sum(totals * factor, 0)
                tl.store(out + head * DIM + d, result.to(out.dtype.element_ty), mask=d_ok)
                tl.store(arrivals + head, 0)
