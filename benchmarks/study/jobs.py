"""What the study records: one job a run directory or file of samples, most valuable first."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Job:
    """One recording. `kind` "record" makes a run directory, the others a JSON file.

    Attributes:
        item: The study's table that it is for.
        load: Competing processes on the launching core, and their niceness; None: not pinned.
    """

    name: str
    item: int
    kind: str = "record"
    model: str = "gpt2"
    mode: str = "eager"
    batch_size: int = 1
    prompt_len: int = 512
    new_tokens: int = 5
    attention: str = "sdpa"
    experts: str | None = None
    warmup: int = 5
    latency_runs: int = 20
    trace_runs: int = 1
    replay: bool = False
    replay_runs: int = 60
    load: tuple[int, int] | None = None
    all_logits: bool = False


def planned() -> list[Job]:
    """Return all jobs, most valuable first."""
    return [
        *_prediction(),
        *_gpt2(),
        *_floors(),
        *_validity(),
        *_attention(),
        *_experts(),
        *_hybrid(),
        *_slow_host(),
        *_families(),
    ]


def _both(job: Job) -> list[Job]:
    """Eager and captured."""
    return [
        replace(job, name=f"{job.name}-eager", mode="eager", trace_runs=3),
        replace(job, name=f"{job.name}-graph", mode="graph", trace_runs=2),
    ]


def _prediction() -> list[Job]:
    gpt2 = [Job(f"gpt2-bs{n}-s512", 8, batch_size=n) for n in (1, 4, 16)]
    llama = [
        Job("llama-3.2-1b-bs1-s512", 8, model="llama-3.2-1b"),
        Job("llama-3.2-1b-bs4-s512", 8, model="llama-3.2-1b", batch_size=4),
        Job("llama-3.2-1b-bs1-s64", 8, model="llama-3.2-1b", prompt_len=64),
    ]
    olmoe = [
        Job(
            f"olmoe-bs{n}-s512-grouped_mm", 8, model="olmoe-1b-7b", experts="grouped_mm",
            batch_size=n, latency_runs=10, new_tokens=4,
        )
        for n in (1, 4)
    ]  # fmt: skip
    return [one for job in (*gpt2, *llama, *olmoe) for one in _both(job)]


def _gpt2() -> list[Job]:
    last = [Job(f"gpt2-bs{n}-s512-eager", 2, batch_size=n, trace_runs=3) for n in (2, 8)]
    whole = Job("", 2, trace_runs=3, new_tokens=2, all_logits=True)  # as the paper's forward
    return [
        *(replace(whole, name=f"gpt2-bs{n}-s512-all", batch_size=n) for n in (1, 2, 4, 8, 16)),
        *last,
    ]


def _floors() -> list[Job]:
    return [
        Job("floor", 1, kind="floor", replay_runs=500),
        Job("graph-nodes", 8, kind="graph-nodes"),
    ]


def _validity() -> list[Job]:
    return [
        *(Job(f"gpt2-fresh-{n}", 9, kind="fresh", latency_runs=15) for n in (1, 2, 3)),
        *(Job(f"blocks-{n}", 9, kind=f"blocks:{n}", replay_runs=50) for n in (1, 5, 50)),
    ]


def _attention() -> list[Job]:
    common = Job(
        "", 5, model="llama-3.2-1b", batch_size=8, prompt_len=2048, new_tokens=3, warmup=2,
        latency_runs=8,
    )  # fmt: skip
    return [
        replace(common, name=f"llama-3.2-1b-bs8-s2048-{kind}", attention=kind)
        for kind in ("eager", "sdpa")
    ]


def _experts() -> list[Job]:
    made: list[Job] = []
    for model in ("llama-3.2-1b", "llama-3.2-3b", "olmoe-1b-7b", "qwen1.5-moe-a2.7b"):
        kinds = (None,) if model.startswith("llama") else ("grouped_mm", "eager")
        for experts in kinds:
            for batch in (4, 1):
                made.append(
                    Job(
                        "-".join([f"{model}-bs{batch}-s2048", *([experts] if experts else [])]),
                        3, model=model, batch_size=batch, prompt_len=2048, new_tokens=3,
                        experts=experts, warmup=1, latency_runs=4, replay_runs=40,
                    )
                )  # fmt: skip
    return made


def _hybrid() -> list[Job]:
    return [
        Job(f"llama-2-7b-bs1-s100-{mode}", 7, model="llama-2-7b", mode=mode, prompt_len=100)
        for mode in ("eager", "hybrid")
    ]


def _slow_host() -> list[Job]:
    loads = {"pinned": (0, 0), "nice5": (1, 5), "nice0": (1, 0), "two": (2, 0)}
    return [
        Job(f"gpt2-slow-{label}-{mode}", 6, mode=mode, load=load, latency_runs=30, replay_runs=30)
        for label, load in loads.items()
        for mode in ("eager", "graph")
    ]


def _families() -> list[Job]:
    return [
        Job("gpt2-bs1-s512-replayed", 4, replay=True, replay_runs=100),
        Job("llama-3.2-1b-bs1-s512-replayed", 4, model="llama-3.2-1b", replay=True),
        Job(
            "olmoe-bs1-s512-replayed", 4, model="olmoe-1b-7b", experts="eager", new_tokens=2,
            replay=True, replay_runs=40, latency_runs=4, warmup=2,
        ),
    ]  # fmt: skip


def rehearsed(job: Job) -> Job:
    """The same job at a size that a CPU runs in a moment."""
    short = min(job.prompt_len // 64, 16)
    return replace(job, prompt_len=max(short, 4), new_tokens=3, warmup=1, latency_runs=2)
