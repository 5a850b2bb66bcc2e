"""Which models are known, and what is said of others."""

from __future__ import annotations

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")

from hybrid import HybridError, UnsupportedModel, spec_of  # noqa: E402  (after importorskip)
from hybrid.model.hub import build  # noqa: E402


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope"),
    ],
)
def test_an_unknown_feature_is_refused_by_name(changed, named):
    config = transformers.LlamaConfig(**changed)
    with pytest.raises(UnsupportedModel, match=named):
        spec_of(config)


def test_an_unknown_family_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="mamba"):
        spec_of(transformers.MambaConfig())


def test_an_unknown_builtin_name_lists_those_that_exist():
    with pytest.raises(HybridError, match=r"llama-2-7b.*olmoe-1b-7b"):
        build("llama-9")
