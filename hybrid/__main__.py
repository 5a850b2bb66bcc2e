"""`python -m hybrid run`: a prompt in, text out as it comes, and how long it took."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from .errors import HybridError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, 2 for what the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m hybrid", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="generate text from a prompt")
    run.add_argument("--model", required=True, help="a folder that transformers saved")
    run.add_argument("--prompt", required=True)
    run.add_argument("--max-new-tokens", type=int, default=128)
    run.add_argument("--temperature", type=float, default=0.0, help="0, the default, is greedy")
    run.add_argument("--top-k", type=int, default=0, help="0 keeps all")
    run.add_argument("--top-p", type=float, default=1.0)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--device", help="cuda where there is one, else cpu")
    given = parser.parse_args(arguments)
    try:
        return _run(given)
    except HybridError as error:
        print(f"hybrid: {error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    from .engine import Engine  # deferred: --help needs no torch
    from .model import hub
    from .state.sampling import Sampling

    sampling = Sampling(given.temperature, given.top_k, given.top_p, given.seed)
    tokenizer = hub.tokenizer(given.model)
    ids: list[int] = tokenizer(given.prompt)["input_ids"]
    end: int | None = tokenizer.eos_token_id
    with Engine.from_model(given.model, device=given.device) as engine:
        engine.capture_all(len(ids), given.max_new_tokens)
        began = time.perf_counter()
        times: list[float] = []
        text = _Text(tokenizer)
        tokens = engine.generate(
            ids, given.max_new_tokens, sampling, stream=True, stop=() if end is None else (end,)
        )
        for token in tokens:
            times.append(time.perf_counter())
            print(text.add(token), end="", flush=True)
        print(text.rest())
        how = engine.stats().get("decode_step") or engine.options.mode
    each = (times[-1] - times[0]) / (len(times) - 1) * 1e3 if len(times) > 1 else None
    first = (times[0] - began) * 1e3
    print(
        f"{len(ids)} prompt tokens, {len(times)} new; {first:.2f} ms to the first"
        + (f", {each:.3f} ms a token ({1e3 / each:.0f} a second)" if each else "")
        + f"; decode: {how}",
        file=sys.stderr,
    )
    return 0


class _Text:
    """Tokens to text as they come: a character may need several tokens, and is then held back."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """Return what can be shown now and was not shown before."""
        self._tokens.append(token)
        text: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        # U+FFFD: the bytes so far end inside a character.
        return "" if text.endswith("\ufffd") else self._new(text)

    def rest(self) -> str:
        """Return what was held back."""
        return self._new(self._tokenizer.decode(self._tokens, skip_special_tokens=True))

    def _new(self, text: str) -> str:
        shown, self._shown = self._shown, text
        return text[len(shown) :]


if __name__ == "__main__":
    raise SystemExit(main())
