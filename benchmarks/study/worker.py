"""The process on the GPU that does jobs in order and keeps the last model on the device.

Times of the host are `perf_counter_ns`, integer nanoseconds.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.study import jobs
from benchmarks.study.index import note, say
from benchmarks.study.jobs import Job

HANG_S = 110.0  # a job that says nothing for so long is stopped
TINY = "tiny"


def work(out: Path, names: list[str], seconds: float, rehearse: bool) -> int:
    """Do the named jobs; 3 after a failure, so that the parent begins a fresh process."""
    end = time.monotonic() + seconds
    by_name = {job.name: job for job in jobs.planned()}
    bench = _Bench(out, rehearse)
    for name in names:
        job = by_name[name]
        if time.monotonic() > end:
            say(f"no time for {name} and what follows")
            return 0
        print(f"BEGIN {name}", flush=True)
        began = time.monotonic()
        try:
            bench.run(jobs.rehearsed(job) if rehearse else job)
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
