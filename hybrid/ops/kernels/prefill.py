"""Triton kernels of the rows of a prompt. PDL as in `decode.py`."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .slots import LENGTH


@triton.jit(do_not_specialize=["count"])
def _upload(control, staged, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # Not from a cache: the host wrote these bytes a moment ago.
    words = tl.load(staged + i, mask=i < count, other=0, cache_modifier=".cv")
    tl.store(control + i, words, mask=i < count)


@triton.jit
def _norm_rows(
    x, delta, part_stride, weight, bias, out, width, eps,
    PARTS: tl.constexpr, LAYER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    ok = k < width
    at = row * width + k
    w = tl.load(weight + k, mask=ok, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    v = tl.load(x + at, mask=ok, other=0.0)
    if PARTS > 0:
        for part in tl.static_range(PARTS):
            v += tl.load(delta + part * part_stride + at, mask=ok, other=0.0).to(tl.float32)
        tl.store(x + at, v, mask=ok)
    if LAYER:
        mean = tl.sum(v, 0) / width
        c = tl.where(ok, v - mean, 0.0)
        y = c * tl.rsqrt(tl.sum(c * c, 0) / width + eps) * w
        y += tl.load(bias + k, mask=ok, other=0.0).to(tl.float32)
    else:
        y = v * tl.rsqrt(tl.sum(v * v, 0) / width + eps) * w
    tl.store(out + at, y.to(out.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["M"])
def _linear_rows(
    a, w, bias, out, M, N, K,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    # Rows and columns past the end are clamped, not masked: their results are not stored.
    a_at = a + tl.minimum(m, M - 1)[:, None] * K + k[None, :]
    w_at = w + tl.minimum(n, N - 1)[None, :] * K + k[:, None]
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        left = start + k < K
        rows = tl.load(a_at + start, mask=left[None, :], other=0.0)
        columns = tl.load(w_at + start, mask=left[:, None], other=0.0)
        acc = tl.dot(rows, columns, acc)
    if BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    ok = (m < M)[:, None] & (n < N)[None, :]
    tl.store(out + m[:, None] * N + n[None, :], acc.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _full_norm_rows(
    qkv, q_norm, k_norm, eps,
    Q: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    if tl.program_id(1) == 0:
        base = qkv + row * WIDTH
        ok = i < Q
        x = tl.load(base + i, mask=ok, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x, 0) / Q + eps)
        y = y * tl.load(q_norm + i, mask=ok, other=0.0).to(tl.float32)
        tl.store(base + i, y.to(qkv.dtype.element_ty), mask=ok)
    else:
        base = qkv + row * WIDTH + Q
        ok = i < K
        x = tl.load(base + i, mask=ok, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x, 0) / K + eps)
        y = y * tl.load(k_norm + i, mask=ok, other=0.0).to(tl.float32)
        tl.store(base + i, y.to(qkv.dtype.element_ty), mask=ok)


@triton.jit
def _halves(at, place, ok, cos, sin, norm, eps,
            HALF: tl.constexpr, ROPE: tl.constexpr, NORMED: tl.constexpr):  # fmt: skip
    # Rotary pairs element i of the first half with element i of the second: two tiles, no shuffle.
    h = tl.arange(0, HALF)
    both = ok[:, None] & (h >= 0)[None, :]
    a = tl.load(at + h[None, :], mask=both, other=0.0).to(tl.float32)
    b = tl.load(at + HALF + h[None, :], mask=both, other=0.0).to(tl.float32)
    if NORMED:
        rstd = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
        a = a * rstd * tl.load(norm + h).to(tl.float32)[None, :]
        b = b * rstd * tl.load(norm + HALF + h).to(tl.float32)[None, :]
    if ROPE:
        c = tl.load(cos + place[:, None] * HALF + h[None, :], mask=both, other=0.0)
        s = tl.load(sin + place[:, None] * HALF + h[None, :], mask=both, other=0.0)
        first = a * c - b * s
        b = b * c + a * s
        a = first
    return a, b


@triton.jit(do_not_specialize=["rows"])
def _attend_rows(
    qkv, k_cache, v_cache, cos, sin, q_norm, out, rows, slots, scale, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, ROPE: tl.constexpr,
    HEAD_NORM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Causal attention of a prompt. Keys and values are in the cache, rotated; queries are not yet.
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    head = tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    DIM: tl.constexpr = 2 * HALF
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    kv_head = head // group
    kind = qkv.dtype.element_ty
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DIM)
    h = tl.arange(0, HALF)
    if PDL:
        gdc_wait()
    q_at = qkv + m[:, None] * WIDTH + head * DIM
    q1, q2 = _halves(q_at, m, m < rows, cos, sin, q_norm, eps, HALF, ROPE, HEAD_NORM)
    q1 = q1.to(kind)
    q2 = q2.to(kind)
    best = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DIM], tl.float32)
    stop = tl.minimum((block + 1) * BM, rows)
    for start in tl.range(0, stop, BN):
        n = start + tl.arange(0, BN)
        n_ok = n < rows
        place = kv_head.to(tl.int64) * slots * DIM + n[:, None] * DIM
        k1 = tl.load(k_cache + place + h[None, :], mask=n_ok[:, None], other=0.0)
        k2 = tl.load(k_cache + place + HALF + h[None, :], mask=n_ok[:, None], other=0.0)
        v = tl.load(v_cache + place + d[None, :], mask=n_ok[:, None], other=0.0)
        score = tl.dot(q1, tl.trans(k1))
        score = tl.dot(q2, tl.trans(k2), score) * scale
        score = tl.where((m[:, None] >= n[None, :]) & n_ok[None, :], score, float("-inf"))
        top = tl.maximum(best, tl.max(score, 1))
        p = tl.exp2(score - top[:, None])
        shrink = tl.exp2(best - top)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(kind), v, acc * shrink[:, None])
        best = top
    y = acc / total[:, None]
    at = out + m[:, None] * (HEADS * DIM) + head * DIM + d[None, :]
    tl.store(at, y.to(out.dtype.element_ty), mask=(m < rows)[:, None])


@triton.jit
def _rotate_rows(
    qkv, k_cache, v_cache, cos, sin, q_norm, k_norm, slots, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, FIRST: tl.constexpr, DIM: tl.constexpr,
    DIM_P: tl.constexpr, ROPE: tl.constexpr, HEAD_NORM: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    # BLOCK divides both head counts, so a program holds heads of one kind only.
    row = tl.program_id(0)
    first_head = FIRST + tl.program_id(1) * BLOCK
    if PDL:
        gdc_launch_dependents()
    head = first_head + tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, DIM_P)[None, :]
    ok = (d < DIM) & (head >= 0)
    base = qkv + row * (HEADS + 2 * KV_HEADS) * DIM
    at = base + head * DIM
    if PDL:
        gdc_wait()
    x = tl.load(at + d, mask=ok, other=0.0)
    if first_head < HEADS + KV_HEADS:
        v = x.to(tl.float32)
        half: tl.constexpr = DIM // 2
        first = d < half
        other = tl.where(first, d + half, d - half)
        w = q_norm
        rstd = tl.zeros([BLOCK, 1], tl.float32) + 1.0
        if HEAD_NORM:
            if first_head >= HEADS:
                w = k_norm
            rstd = tl.rsqrt(tl.sum(v * v, 1) / DIM + eps)[:, None]
            v = v * rstd * tl.load(w + d, mask=d < DIM, other=0.0).to(tl.float32)
        if ROPE:
            y = tl.load(at + other, mask=ok, other=0.0).to(tl.float32)
            if HEAD_NORM:
                y = y * rstd * tl.load(w + other, mask=d < DIM, other=0.0).to(tl.float32)
            angle = tl.where(first, d, d - half)
            c = tl.load(cos + row * half + angle, mask=d < DIM, other=0.0)
            s = tl.load(sin + row * half + angle, mask=d < DIM, other=0.0)
            v = v * c + tl.where(first, -y, y) * s
        x = v.to(qkv.dtype.element_ty)
        if FIRST == 0:
            # Both halves of a head are read by all lanes before one is overwritten.
            tl.debug_barrier()
            tl.store(at + d, x, mask=ok)
        if first_head >= HEADS:
            place = (head - HEADS).to(tl.int64) * slots * DIM + row * DIM
            tl.store(k_cache + place + d, x, mask=ok & (row < slots))
    else:
        place = (head - HEADS - KV_HEADS).to(tl.int64) * slots * DIM + row * DIM
        tl.store(v_cache + place + d, x, mask=ok & (row < slots))


@triton.jit
def _activate_rows(
    up, out, width, GELU: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = k < width
    if PDL:
        gdc_wait()
    if GELU:
        x = tl.load(up + row * width + k, mask=ok, other=0.0).to(tl.float32)
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        x = tl.load(up + row * 2 * width + k, mask=ok, other=0.0).to(tl.float32)
        y = x * tl.sigmoid(x)
        y = y * tl.load(up + row * 2 * width + width + k, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * width + k, y.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _take_row(x, attention, control, x_out, attention_out, width, attention_width,
              BLOCK: tl.constexpr):  # fmt: skip
    last = tl.load(control + LENGTH) - 1
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + last * width + k, mask=k < width, other=0.0)
    tl.store(x_out + k, v, mask=k < width)
    a = tl.load(attention + last * attention_width + k, mask=k < attention_width, other=0.0)
    tl.store(attention_out + k, a, mask=k < attention_width)
