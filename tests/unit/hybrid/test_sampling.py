"""Drawing a token: Philox, the softmax, and what top-k and top-p keep."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hybrid import HybridError, Sampling  # noqa: E402  (after importorskip)
from hybrid.state.sampling import draw, gumbel, philox  # noqa: E402


def test_philox_gives_the_published_words():
    """Known answers of Random123: zero counter and key, and all ones in the counter's low words."""
    assert philox(0, torch.tensor([0]), 0).item() == 0x6627E8D5
    numbers = gumbel(3, 1, 4096, torch.device("cpu"))
    assert abs(numbers.mean().item() - 0.5772) < 0.05
    assert not torch.equal(numbers, gumbel(3, 2, 4096, torch.device("cpu")))


def test_sampling_follows_the_softmax():
    """Chi-square over 8 tokens and 4,000 draws; 24.3 is the 0.1 % point of 7 degrees."""
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, -0.5, 0.2, 1.5])
    expected = torch.softmax(logits / 0.8, 0) * 4000
    drawn = torch.tensor(
        [int(draw(logits, Sampling(temperature=0.8, seed=11), step)) for step in range(4000)]
    )
    counts = torch.bincount(drawn, minlength=8).float()
    assert float(((counts - expected) ** 2 / expected).sum()) < 24.3


def test_top_k_and_top_p_keep_what_they_say():
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0])
    k = {int(draw(logits, Sampling(1.0, top_k=2, seed=1), i)) for i in range(200)}
    p = {int(draw(logits, Sampling(1.0, top_p=0.6, seed=1), i)) for i in range(200)}
    assert k == {0, 1}
    assert p == {0}


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}])
def test_a_sampling_value_outside_its_range_is_refused(wrong):
    with pytest.raises(HybridError):
        Sampling(**wrong)
