"""The study's GPU part: records run directories and raw samples, most valuable first.

The parent hands jobs to a worker process and watches it: a job that fails, hangs or takes the CUDA
context down costs itself only, and a new worker goes on. A job whose name is in `index.jsonl` is
done and skipped. Times of the host are `perf_counter_ns`, integer nanoseconds.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import queue
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

INDEX = "index.jsonl"
HANG_S = 110.0  # a job that says nothing for so long is stopped
MOST_IN_A_ROW = 4
OVERTIME_S = 60.0  # and so is one that is not done so long after the budget's end
TINY = "tiny"


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


def jobs() -> list[Job]:
    """All of them, most valuable first."""
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


# The parent -------------------------------------------------------------------------------------


def record(out: Path, budget_s: float, only: list[int], rehearse: bool) -> int:
    """Run what is not done yet, until the budget is over; returns how many jobs failed."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + budget_s
    done = {entry["name"] for entry in read_index(out) if entry["state"] == "done"}
    left = [job for job in jobs() if job.name not in done and (not only or job.item in only)]
    failed = in_a_row = 0
    while left:
        if in_a_row == MOST_IN_A_ROW:
            say(f"{in_a_row} workers in a row got nothing done; giving up")
            break
        if time.monotonic() > end:
            say(f"time is over; {len(left)} not begun: {', '.join(job.name for job in left)}")
            break
        worker = _Worker(out, left, end, rehearse)
        new = worker.watch()
        failed += new
        in_a_row = in_a_row + 1 if new and worker.finished == new else 0
        left = left[worker.finished :]
    return failed


class _Worker:
    """A process that does jobs in order; `finished` counts those that are over, well or not."""

    def __init__(self, out: Path, left: list[Job], end: float, rehearse: bool) -> None:
        self.out, self.end, self.left = out, end, left
        self.finished = 0
        command = [sys.executable, str(Path(__file__).with_name("study.py")), "work"]
        command += ["--out", str(out), "--seconds", f"{max(end - time.monotonic(), 0):.0f}"]
        command += ["--jobs", *[job.name for job in left], *(["--rehearse"] if rehearse else [])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def watch(self) -> int:
        """Until the worker ends or is stopped; returns how many of its jobs failed."""
        failed, began = 0, time.monotonic()
        while True:
            try:
                wait = min(HANG_S, self.end + OVERTIME_S - time.monotonic())
                line = self.lines.get(timeout=max(wait, 1.0))
            except queue.Empty:
                self.process.kill()
                say(f"{self._current()} hangs and is stopped")
                self.process.wait()
                self._give_up("took too long and was stopped", began)
                return failed + 1
            if line is None:
                break
            if line.startswith("BEGIN "):
                began = time.monotonic()
            elif line.startswith("END "):
                failed += "failed" in line
                self.finished += 1
        if self.process.wait() not in (0, 3):  # 3: it stopped after a failure, all written down
            self._give_up(f"the worker ended with {self.process.returncode}", began)
            failed += 1
        elif not self.process.returncode:
            self.finished = len(self.left)  # the rest did not fit into the time
        return failed

    def _current(self) -> str:
        return self.left[min(self.finished, len(self.left) - 1)].name

    def _give_up(self, reason: str, began: float) -> None:
        note(self.out, self._current(), "failed", time.monotonic() - began, reason)
        self.finished += 1


def read_index(out: Path) -> list[dict[str, Any]]:
    """What was done, and how it went."""
    path = out / INDEX
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def note(out: Path, name: str, state: str, seconds: float, reason: str | None = None) -> None:
    job = next((asdict(job) for job in jobs() if job.name == name), {"name": name})
    line = {**job, "state": state, "seconds": round(seconds, 2), "reason": reason}
    line["commit"] = os.environ.get("HOSTBOUND_COMMIT")
    with (out / INDEX).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def say(text: str) -> None:
    sys.stderr.write(f"study: {text}\n")
    sys.stderr.flush()


# The worker -------------------------------------------------------------------------------------


def work(out: Path, names: list[str], seconds: float, rehearse: bool) -> int:
    """Do the named jobs; 3 after a failure, so that the parent begins a fresh process."""
    end = time.monotonic() + seconds
    by_name = {job.name: job for job in jobs()}
    bench = _Bench(out, rehearse)
    for name in names:
        job = by_name[name]
        if time.monotonic() > end:
            say(f"no time for {name} and what follows")
            return 0
        print(f"BEGIN {name}", flush=True)
        began = time.monotonic()
        try:
            bench.run(rehearsed(job) if rehearse else job)
        except Exception as error:  # whatever it was must not cost the other jobs their GPU time
            lines = str(error).strip().splitlines()
            reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
            note(out, name, "failed", time.monotonic() - began, reason[:400])
            say(f"{name} failed: {reason[:400]}")
            print(f"END {name} failed", flush=True)
            return 3
        took = time.monotonic() - began
        note(out, name, "done", took)
        say(f"{name} took {took:.1f} s")
        print(f"END {name} done", flush=True)
    return 0


class _Bench:
    """Keeps the last model on the device, as jobs of one model follow each other."""

    def __init__(self, out: Path, rehearse: bool) -> None:
        self.out, self.rehearse = out, rehearse
        self.device = "cpu" if rehearse else "cuda:0"
        self.key: tuple[str, ...] = ()
        self.model: Any = None

    def run(self, job: Job) -> None:
        kind, _, number = job.kind.partition(":")
        done: Callable[[], None] = {
            "record": lambda: self.record(job),
            "floor": lambda: self.floor(job),
            "fresh": lambda: self.fresh(job),
            "blocks": lambda: self.blocks(job, int(number or 0)),
            "graph-nodes": lambda: self.graph_nodes(job),
        }[kind]
        with slowed(job.load):
            done()

    def record(self, job: Job) -> None:
        """A run directory by `collector record`'s own function, on a model that may be here yet."""
        from collector.record.request import Request, Variant
        from collector.record.session import record

        shutil.rmtree(self.out / job.name, ignore_errors=True)
        request = Request(
            model=self.source(job.model),
            mode=job.mode,
            batch_size=job.batch_size,
            prompt_len=job.prompt_len,
            new_tokens=job.new_tokens,
            attention=job.attention,
            experts=job.experts,
            device=self.device,
            warmup=job.warmup,
            latency_runs=job.latency_runs,
            trace_runs=job.trace_runs,
            replay_runs=job.replay_runs if job.replay else None,
            floor_runs=job.replay_runs,
            all_logits=job.all_logits,
        )
        variant = Variant(request, job.name, self.out / job.name)
        record([variant], self.loaded(job, request))

    def loaded(self, job: Job, request: Any) -> Any:
        """The job's model; the hybrid runtime changes the one it is given: not kept."""
        import torch

        from collector.workloads import models

        key = (job.model, job.attention)
        gc.collect()
        if key != self.key:
            self.model, self.key = None, ()
            gc.collect()
            if self.device != "cpu":
                torch.cuda.empty_cache()
            self.model = models.load(request.model, request.dtype, self.device, 0, job.attention)
            self.model = replace(self.model, name=job.model)
        if job.experts:
            self.model.module.set_experts_implementation(job.experts)
        self.key = () if job.mode == "hybrid" else key
        return self.model

    def source(self, model: str) -> str:
        return str(tiny(model, self.out / TINY)) if self.rehearse else model

    def floor(self, job: Job) -> None:
        """As `collector floor --json`."""
        from collector.replay import kernel_replay

        if not self.rehearse:
            self.write(job, asdict(kernel_replay.floor(self.device, job.replay_runs)))

    def fresh(self, job: Job) -> None:
        """A whole process of `collector record`."""
        shutil.rmtree(self.out / job.name, ignore_errors=True)
        options = {
            "model": self.source(job.model), "prompt-len": job.prompt_len,
            "new-tokens": job.new_tokens, "warmup": job.warmup, "latency-runs": job.latency_runs,
            "trace-runs": job.trace_runs, "replay": "off", "device": self.device,
            "out": self.out / job.name, "name": job.name,
        }  # fmt: skip
        command = [sys.executable, "-m", "collector.cli", "record"]
        command += [text for key, value in options.items() for text in (f"--{key}", str(value))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=HANG_S - 10)

    def blocks(self, job: Job, size: int) -> None:
        """The kernel replay of GPT-2's op calls in blocks of another size: 1 is interleaved."""
        if self.rehearse:
            return
        import torch

        from collector.record import trace_pass
        from collector.record.request import Request
        from collector.replay import kernel_replay, op_calls
        from collector.workloads import make

        model = self.loaded(job, Request("gpt2"))
        with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
            ids = make.prompt_ids(model, 1, job.prompt_len, 0, None)
            workload, _ = make.make(model, "eager", ids, 2, self.device)
            trace, nodes = Path(folder) / "trace.json", Path(folder) / "nodes.json"
            trace_pass.record(workload, 2, self.device, trace)
            trace_pass.record_execution_trace(workload, 2, self.device, nodes)
            events = op_calls.load_trace(trace)
            calls = op_calls.from_run([events], op_calls.load_execution_trace(nodes))
            before = kernel_replay.BLOCK
            kernel_replay.BLOCK = size
            try:
                replayed, floors = kernel_replay.replay(calls, self.device, job.replay_runs, None)
            finally:
                kernel_replay.BLOCK = before
        found = {"block": size, **asdict(replayed), "floors": asdict(floors)["floors"]}
        self.write(job, found)

    def graph_nodes(self, job: Job) -> None:
        """Un-profiled time of a replay with its wait, by the number of nodes: what a graph launch
        and a node cost when the kernels do next to nothing."""
        if self.rehearse:
            return
        import torch

        found: dict[int, list[int]] = {}
        value = torch.zeros(1, device=self.device)
        for nodes in (1, 10, 100, 300, 1000):
            graph = torch.cuda.CUDAGraph()
            value.add_(1)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                for _ in range(nodes):
                    value.add_(1)
            for _ in range(5):
                graph.replay()
            samples: list[int] = []
            for _ in range(100):
                torch.cuda.synchronize()
                began = time.perf_counter_ns()
                graph.replay()
                torch.cuda.synchronize()
                samples.append(time.perf_counter_ns() - began)
            found[nodes] = samples
        self.write(job, {"definition": self.graph_nodes.__doc__, "samples_ns": found})

    def write(self, job: Job, value: Any) -> None:
        (self.out / f"{job.name}.json").write_text(json.dumps(value), encoding="utf-8")


@contextlib.contextmanager
def slowed(load: tuple[int, int] | None) -> Iterator[None]:
    """Pin this thread to one core, with so many busy processes of that niceness beside it."""
    if load is None:
        yield
        return
    count, nice = load
    everywhere = os.sched_getaffinity(0)
    core = max(everywhere)
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); os.nice({nice})\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)
        for process in busy:
            process.kill()
            process.wait()


def tiny(model: str, folder: Path) -> Path:
    """A checkpoint of the model's family that a CPU runs in a moment; made once."""
    path = folder / model
    if path.is_dir():
        return path
    import transformers

    common: dict[str, Any] = {"vocab_size": 64, "max_position_embeddings": 128}
    sizes = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "eos_token_id": 1, "bos_token_id": 1,
        "pad_token_id": 0,
    }  # fmt: skip
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    if model == "gpt2":
        config: Any = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=128, bos_token_id=1
        )
    elif model.startswith("llama"):
        config = transformers.LlamaConfig(**common, **sizes)
    elif model.startswith("olmoe"):
        config = transformers.OlmoeConfig(**common, **sizes, **experts)
    else:
        more = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
        config = transformers.Qwen2MoeConfig(**common, **sizes, **experts, **more)
    path.parent.mkdir(parents=True, exist_ok=True)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


# Packing ----------------------------------------------------------------------------------------


def pack(out: Path, target: Path, most: int = 8, limit: int = 15 << 20) -> list[Path]:
    """Put what was recorded into at most `most` archives of at most `limit` bytes each.

    What does not fit is left out, the largest first, and said. The index goes first.
    """
    target.mkdir(parents=True, exist_ok=True)
    packed: list[tuple[str, bytes]] = []
    for path in sorted(out.iterdir()):
        if path.name == TINY or path.name.startswith("."):
            continue
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=5) as archive:
            archive.add(path, path.name)
        packed.append((path.name, buffer.getvalue()))
    packed.sort(key=lambda entry: (entry[0] != INDEX, -len(entry[1])))
    bins: list[list[tuple[str, bytes]]] = []
    for name, data in packed:
        if len(data) > limit:
            say(f"{name} is {len(data)} bytes packed and is left out")
            continue
        fitting = [b for b in bins if sum(len(d) for _, d in b) + len(data) + 2048 < limit]
        if fitting:
            fitting[0].append((name, data))
        elif len(bins) < most:
            bins.append([(name, data)])
        else:
            say(f"{name} does not fit into {most} archives and is left out")
    written: list[Path] = []
    for number, entries in enumerate(bins):
        path = target / f"study-{number}.tar"
        with tarfile.open(path, "w") as archive:
            for name, data in entries:
                info = tarfile.TarInfo(f"{name}.tar.gz")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        written.append(path)
    return written


def unpack(source: Path, out: Path) -> int:
    """Undo `pack`: every archive of a folder into `out`; returns how many entries there were."""
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in sorted(source.glob("study-*.tar")):
        with tarfile.open(path) as outer:
            for member in outer:
                stream = outer.extractfile(member)
                if stream is None:
                    continue
                with tarfile.open(fileobj=io.BytesIO(stream.read()), mode="r:gz") as inner:
                    inner.extractall(out, filter="data")
                count += 1
    return count
