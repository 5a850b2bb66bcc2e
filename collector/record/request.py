"""What to record, and the variants of it that one command asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from collector import environment
from collector.errors import CollectorError
from collector.workloads.base import MODES


@dataclass(frozen=True)
class Request:
    """What to record.

    Attributes:
        model: Built-in name, or path of a checkpoint folder.
        mode: One of `workloads.base.MODES`.
        warmup, latency_runs, trace_runs: Requests of each pass.
        replay_runs: Samples of each op call; None leaves kernel replay out, not the launch floor.
        replay_budget_s: Seconds that the replay may take; fewer samples if it would take longer.
        floor_runs: Samples of the launch floor where there is no kernel replay.
        stacks: Record Python frames too.
        prompt: Text; None draws `prompt_len` ids from the seed.
        all_logits: Logits of every position of the prompt, not of its last one only.
        tensor_parallel: Ranks over which the model is split.
    """

    model: str
    mode: str = "eager"
    batch_size: int = 1
    prompt_len: int = 512
    new_tokens: int = 10
    attention: str = "sdpa"
    experts: str | None = None
    dtype: str = "bf16"
    device: str = "cuda:0"
    warmup: int = 10
    latency_runs: int = 50
    trace_runs: int = 3
    replay_runs: int | None = 150
    replay_budget_s: float | None = None
    floor_runs: int = 150
    stacks: bool = False
    prompt: str | None = None
    seed: int = 0
    all_logits: bool = False
    tensor_parallel: int = 1

    @property
    def has_gpu(self) -> bool:
        """Whether kernels can be seen: on a CPU there are none, no floor and no replay."""
        return self.device.startswith("cuda")

    def check(self) -> None:
        """Raise CollectorError for values that cannot be run."""
        for name in ("batch_size", "prompt_len", "new_tokens", "trace_runs", "latency_runs"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise CollectorError(f"{option} is {getattr(self, name)}; it must be 1 or more.")
        if self.mode not in MODES:
            raise CollectorError(f"mode {self.mode!r} is not known; there are: {', '.join(MODES)}.")
        if self.all_logits and self.mode not in ("eager", "compile"):
            raise CollectorError("--all-logits is for the modes eager and compile.")
        if self.tensor_parallel > 1 and self.mode not in ("eager", "graph"):
            raise CollectorError("--tp is for the modes eager and graph.")
        environment.check_device(self.device)

    def name(self) -> str:
        """Return the default name of its run."""
        parts = [Path(self.model).name, self.mode, f"bs{self.batch_size}"]
        parts += [f"s{self.prompt_len}", f"m{self.new_tokens}"]
        if self.experts:
            parts.append(self.experts)
        if self.tensor_parallel > 1:
            parts.append(f"tp{self.tensor_parallel}")
        return "-".join(parts)


@dataclass(frozen=True)
class Variant:
    """A request with the name of its run, and the run directory to make."""

    request: Request
    name: str
    target: Path


def variants(
    base: Request,
    modes: Sequence[str],
    batch_sizes: Sequence[int],
    name: str | None,
    out: Path | None,
) -> list[Variant]:
    """Return every mode with every batch size, in the order given.

    One variant is called `name` and lies at `out`. Of several, each is called `name` and what tells
    it from the others, and lies in the folder `out` under its name; the same one again gets a
    number.

    Raises:
        CollectorError: The variants cannot be recorded in one process.
    """
    requests = [
        replace(base, mode=mode, batch_size=size) for mode, size in product(modes, batch_sizes)
    ]
    if len(requests) == 1:
        called = name or requests[0].name()
        return [Variant(requests[0], called, out or Path("runs") / called)]
    if "compile" in modes and len(set(batch_sizes)) > 1:
        raise CollectorError(
            "--mode compile with several --batch-size: the compiler would make the second one's "
            "kernels for every size, unlike in a process of its own; record them one by one."
        )
    folder, seen, found = out or Path("runs"), Counter[str](), list[Variant]()
    for request in requests:
        called = request.name()
        if name is not None:
            parts = [request.mode] * (len(modes) > 1)
            parts += [f"bs{request.batch_size}"] * (len(batch_sizes) > 1)
            called = "-".join([name, *parts])
        seen[called] += 1
        called += f"-{seen[called]}" if seen[called] > 1 else ""
        found.append(Variant(request, called, folder / called))
    return found
