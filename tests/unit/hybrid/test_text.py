"""Text in and out: `python -m hybrid run`, and the engine in the place of `model.generate`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hybrid import Engine, HybridError  # noqa: E402  (after importorskip)
from hybrid.__main__ import main  # noqa: E402
from hybrid.model.hub import build_config  # noqa: E402

WORDS = ["<end>", "once", "upon", "a", "time", "there", "was"]
PROMPT = torch.tensor([[1, 2, 3, 4, 5]])


def tiny():
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=None,
    )
    model = build_config(config, torch.float32, "cpu", 3)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)
    return model


@pytest.fixture(scope="module")
def engine():
    with Engine.from_model(tiny(), max_context=128, background=False) as made:
        yield made


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    tiny().save_pretrained(folder)
    words = {word: i for i, word in enumerate([*WORDS, *(f"w{i}" for i in range(25))])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="<end>", unk_token="<end>"
    ).save_pretrained(folder)
    return str(folder)


class Streamer:
    def __init__(self) -> None:
        self.seen, self.ended = [], False

    def put(self, value) -> None:
        self.seen += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def test_greedy_tokens_are_those_of_the_models_own_generate(engine):
    theirs = tiny().generate(PROMPT, max_new_tokens=20, do_sample=False)
    streamer = Streamer()
    ours = engine.hf_generate(PROMPT, torch.ones_like(PROMPT), streamer, max_new_tokens=20)
    assert torch.equal(ours, theirs)
    assert streamer.seen == ours[0].tolist()
    assert streamer.ended


def test_a_length_of_prompt_and_new_tokens_is_kept(engine):
    assert engine.hf_generate(PROMPT, max_length=9, eos_token_id=99).shape == (1, 9)


def test_a_stop_token_ends_the_text(engine):
    free = engine.hf_generate(PROMPT, max_new_tokens=10, eos_token_id=[])[0].tolist()
    stop = free[len(PROMPT[0]) + 2]
    ended = engine.hf_generate(PROMPT, max_new_tokens=10, eos_token_id=stop)[0].tolist()
    assert ended == free[: free.index(stop, len(PROMPT[0])) + 1]


def test_drawn_tokens_follow_torchs_seed(engine):
    def drawn(seed: int):
        torch.manual_seed(seed)
        return engine.hf_generate(
            PROMPT, max_new_tokens=20, do_sample=True, temperature=1.5, eos_token_id=[]
        ).tolist()

    assert drawn(1) == drawn(1)
    assert len({str(drawn(seed)) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"num_beams": 4}, "num_beams=4"),
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
        ({"logits_processor": []}, "logits_processor"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}, "padded"),
        ({"input_ids": torch.ones(2, 3, dtype=torch.int64)}, "one sequence"),
    ],
)
def test_what_the_runtime_does_not_do_is_refused_by_name(engine, given, named):
    with pytest.raises(HybridError, match=named):
        engine.hf_generate(**{"input_ids": PROMPT, "max_new_tokens": 4, **given})


def test_run_prints_the_text_and_its_times(saved, capsys):
    arguments = ["run", "--model", saved, "--prompt", "once upon a time", "--device", "cpu"]
    assert main([*arguments, "--max-new-tokens", "6"]) == 0
    out, err = capsys.readouterr()
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    ids = torch.tensor([tokenizer("once upon a time")["input_ids"]])
    wanted = tiny().generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
    assert out.strip() == tokenizer.decode(wanted, skip_special_tokens=True)
    assert "4 prompt tokens" in err
    assert "ms to the first" in err


def test_run_says_in_one_line_what_is_wrong(tmp_path, capsys):
    assert main(["run", "--model", str(tmp_path / "none"), "--prompt", "x"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("hybrid: no tokenizer at")


def test_a_character_of_several_tokens_is_shown_when_it_is_whole():
    from hybrid.__main__ import _Text

    class Bytes:
        def decode(self, tokens, skip_special_tokens):
            return bytes(tokens).decode(errors="replace")

    text = _Text(Bytes())
    assert [text.add(token) for token in "aé".encode()] == ["a", "", "é"]
    assert text.rest() == ""
