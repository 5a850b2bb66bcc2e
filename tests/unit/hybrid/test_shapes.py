"""Buckets: what a request is padded to, what is captured for it, what is not evicted."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hybrid import ContextOverflow, Options, spec_of  # noqa: E402  (after importorskip)
from hybrid.shapes import Shapes, bucket  # noqa: E402

SPEC = spec_of(transformers.GPT2Config())


def test_a_length_is_padded_to_8_rows_where_arithmetic_counts_and_to_more_elsewhere():
    assert [bucket(n) for n in (1, 96, 97, 512, 513, 1024, 1025)] == [
        16, 96, 104, 512, 528, 1024, 1088,
    ]  # fmt: skip


def test_a_request_needs_one_prefill_and_the_contexts_that_it_grows_through():
    shapes = Shapes.choose(Options(max_context=1000), SPEC)
    assert shapes.max_context == 1024
    assert shapes.request(500, 20) == [("prefill", 504), ("decode", 512), ("decode", 1024)]


def test_decode_graphs_and_the_longest_prefill_are_pinned():
    shapes = Shapes.choose(Options(prefill_lengths=(30, 60)), SPEC)
    pinned = [key for key in shapes.at_start() if shapes.is_pinned(key)]
    assert pinned == [("prefill", 64), ("decode", 512), ("decode", 1024)]
    assert not Shapes.choose(Options(prefill_lengths=()), SPEC).is_pinned(("prefill", 64))


def test_a_context_beyond_the_models_positions_is_refused():
    with pytest.raises(ContextOverflow, match="1025 is beyond the model's 1024"):
        Shapes.choose(Options(max_context=1025), SPEC)
