"""The named values of docs/study.md.in: each function returns those of one section, as text.

Every value comes from rows of the result files, so that a new recording changes text and tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from analyzer.reports import prediction
from benchmarks.study import tables as t
from benchmarks.study.results import (
    MS,
    US,
    Recorded,
    Results,
    Row,
    milliseconds,
    number,
    spread,
)  # fmt: skip

Values = dict[str, str]
PAPER_FLOOR_NS = 4_503


def values(recorded: Recorded) -> Values:
    """Return every named value of the template."""
    study = recorded.study
    return {
        **environment(study),
        **conclusions(study),
        **launch_floor(study),
        **gpt2(study, recorded.batches),
        **experts(study),
        **hybrid(study, recorded.hybrid),
        **predictions(study),
        **validity(study),
    }


def environment(study: Results) -> Values:
    about = study.content["environment"]
    failed = study.content["not_recorded"]
    listed = "; ".join(f"`{one['name']}`: {one['reason']}" for one in failed)
    return {
        **{key: str(about[key]) for key in ("gpu", "driver", "cpu", "cpu_count")},
        **{library: about["versions"][library] for library in ("torch", "transformers")},
        "study_commits": str(study.content["commit"]),
        "not_recorded": f"Not recorded: {listed}."
        if failed
        else "Everything that was planned was recorded.",
    }


def conclusions(study: Results) -> Values:
    errors = prediction_errors(study)
    loop, grouped = (t.experts_name("olmoe-1b-7b", 4, how) for how in ("eager", "grouped_mm"))
    sdpa, sdpa_hdbi = (
        [study.p50(metric, name=name, phase="prefill") or 0.0 for name in t.ATTENTION]
        for metric in ("step_unprofiled", "hdbi")
    )
    slow = {
        mode: [
            study.p50("step_unprofiled", name=f"gpt2-slow-{load}-{mode}", phase="decode") or 0.0
            for load in ("pinned", "nice0")
        ]
        for mode in ("eager", "graph")
    }
    found = {
        "cases": str(len(errors)),
        "error_median": f"{100 * median(errors):.1f}",
        "error_largest": f"{100 * max(errors):.1f}",
        "within": str(sum(p["is_within_bounds"] for p in t.predicted_graphs(study))),
        "batch_all": one_decimal(crossover(study, "all")),
        "batch_last": one_decimal(crossover(study, "last")),
        "grouped_hdbi": number(study.p50("hdbi", name=grouped, phase="decode")),
        "sdpa_factor": f"{sdpa[0] / sdpa[1]:.1f}",
        "hdbi_eager": number(sdpa_hdbi[0]),
        "hdbi_sdpa": number(sdpa_hdbi[1]),
    }
    for key, name in {"loop": loop, "grouped": grouped}.items():
        found[f"{key}_launches"] = number(t.launches_per_token(study, name) or 0.0)
        found[f"{key}_step"] = milliseconds(study.p50("step_unprofiled", name=name, phase="decode"))
    for key, (alone, shared) in slow.items():
        found[f"slow_{key}"] = f"{shared / alone:.{1 if key == 'eager' else 2}f}"
    for mode, name in zip(("eager", "hybrid"), t.LLAMA2, strict=True):
        run = {"name": name, "phase": "decode"}
        found[f"llama_{mode}_step"] = milliseconds(study.p50("step_unprofiled", **run))
        found[f"llama_{mode}_orchestration"] = milliseconds(study.p50("orchestration", **run))
        found[f"llama_{mode}_busy"] = milliseconds(study.p50("device_busy", **run))
    return found


def one_decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def crossover(study: Results, logits: str = "all") -> float | None:
    """Return the batch at which HDBI passes 0.5."""
    return balanced_batch(study, [{"name": t.gpt2_name(batch, logits)} for batch in t.BATCHES])


def balanced_batch(results: Results, runs: Sequence[Row]) -> float | None:
    """Return where HDBI of the runs of BATCHES passes 0.5, interpolated between two of them."""
    points = [
        (batch, value)
        for batch, run in zip(t.BATCHES, runs, strict=True)
        if (value := results.p50("hdbi", phase="prefill", **run)) is not None
    ]
    for (a, low), (b, high) in pairwise(points):
        if low < 0.5 <= high:
            return a + (b - a) * (0.5 - low) / (high - low)
    return None


def launch_floor(study: Results) -> Values:
    annotation, start, end, cost = (
        (study.p50("launch_floor", item=1, launch_api="cudaLaunchKernel", definition=d) or 0.0) / US
        for d in (
            "annotation_to_kernel_start",
            "api_start_to_kernel_start",
            "api_end_to_kernel_start",
            "unsynchronised_host_cost",
        )
    )
    return {
        "floor_end": number(end),
        "floor_call": number(start - end),
        "floor_cost": number(cost),
        "floor_factor": number(annotation / end),
    }


def gpt2(study: Results, batches: Results) -> Values:
    medians = [
        value / MS
        for batch in t.BATCHES
        if (value := study.p50("orchestration", name=t.gpt2_name(batch), phase="prefill"))
    ]
    one = {"name": t.gpt2_name(1), "phase": "prefill"}
    launches = study.p50("launches", **one) or 0.0
    above = (study.p50("launch_path", **one) or 0.0) / max(launches, 1) - PAPER_FLOOR_NS
    device = [
        (study.p50("device_active", name=t.gpt2_name(batch), phase="prefill") or 0.0) / paper_ns
        for batch, paper_ns in ((1, 1.66 * MS), (16, 15.43 * MS))
    ]
    names = [{"workload": f"batches-{batch}"} for batch in t.BATCHES]
    traces = sorted({row["n"] for row in batches.all("hdbi", phase="prefill")})
    return {
        "orchestration_least": number(min(medians)),
        "orchestration_most": number(max(medians)),
        "above_floor": number(launches * above / MS),
        "above_floor_launches": number(launches),
        "above_floor_each": number(above / US),
        "device_share_1": number(device[0]),
        "device_share_16": number(device[1]),
        "batches_traces": " or ".join(map(str, traces)),
        "batches_commit": batches.content["commit"],
        "batches_ratio": number(batches.p50("orchestration_max_to_min", phase="prefill")),
        "batch_interleaved": one_decimal(balanced_batch(batches, names)),
    }


def experts(study: Results) -> Values:
    def launches(model: str, how: str | None) -> float:
        return t.launches_per_token(study, t.experts_name(model, 4, how)) or 0.0

    hdbi = [
        value
        for row in study.all("hdbi", item=3, phase="decode", experts="eager")
        for value in row["samples"]
    ]
    fewer = [
        launches(model, "eager") / (launches(model, "grouped_mm") or 1.0)
        for model in ("olmoe-1b-7b", "qwen1.5-moe-a2.7b")
    ]
    return {
        "dense_1b": number(launches("llama-3.2-1b", None) / 847.5),
        "dense_3b": number(launches("llama-3.2-3b", None) / 1536.9),
        "loop_hdbi_least": number(min(hdbi)),
        "loop_hdbi_most": number(max(hdbi)),
        "fewer_olmoe": number(fewer[0]),
        "fewer_qwen": number(fewer[1]),
    }


def hybrid(study: Results, measured: Results) -> Values:
    eager = measured.one(
        "itl_ms", system="transformers", model="llama-2-7b", mode="eager", capture="quiet"
    )
    return {
        "eager_launches": number(study.p50("launches", name=t.LLAMA2[0], phase="decode")),
        "union_hdbi": number(study.p50("hdbi_busy", name=t.LLAMA2[1], phase="decode")),
        "hybrid_commit": measured.content["commit"],
        "eager_gaps": str(eager["n"] if eager else 0),
    }


def prediction_errors(study: Results, phase: str | None = None) -> list[float]:
    """Return the sizes of the relative errors, of one phase if named."""
    return [abs(p["error"]) for p in t.predicted_graphs(study) if phase in (None, p["phase"])]


def decode_busy_ratios(study: Results) -> Iterator[float]:
    """Yield device busy time of each graph's decode step over the eager one's."""
    for p in t.predicted_graphs(study):
        if p["phase"] == "decode":
            names = p["name"], p["name"].removesuffix("-eager") + "-graph"
            eager, graph = (study.p50("device_busy", name=name, phase="decode") for name in names)
            if eager and graph:
                yield graph / eager


def predictions(study: Results) -> Values:
    gaps = [row["p50"] for row in study.all("graph_gap", of="mean")]
    longer = [100 * (ratio - 1) for ratio in decode_busy_ratios(study)]
    tiny = {row["parameters"]["nodes"]: row["p50"] for row in study.all("graph_replay")}
    same = study.all("events_that_differ")
    errors = {phase: f"{100 * median(prediction_errors(study, phase)):.1f}" for phase in t.PHASES}
    return {
        "events": number(sum(row["parameters"]["events"] for row in same)),
        "events_that_differ": number(sum(row["p50"] for row in same)),
        "error_prefill": errors["prefill"],
        "error_decode": errors["decode"],
        "gap_assumed": number(prediction.GAPS["NVIDIA H200"].mean_ns),
        "gap_least": number(min(gaps)),
        "gap_most": number(max(gaps)),
        "replay_error": largest_share(study, "replay_error"),
        "fit_error": largest_share(study, "fit_error"),
        "busy_least": f"{min(longer):.1f}",
        "busy_most": f"{max(longer):.1f}",
        "node_ns": number((tiny[1000] - tiny[100]) / 900),
        **{
            f"compile_{key}": milliseconds(study.p50(f"compile_{key}"))
            for key in ("low", "high", "measured")
        },
    }


def largest_share(study: Results, metric: str) -> str:
    """Return the largest sample in per cent; below a hundredth of one it says only that."""
    share = max(abs(value) for row in study.all(metric) for value in row["samples"])
    return f"{100 * share:.2f} %" if share >= 1e-4 else "0.01 %"


def validity(study: Results) -> Values:
    ledger = [value for row in study.all("ledger_less_wall") for value in row["samples"]]
    longer: list[float] = []
    for row in study.all("step_unprofiled"):
        run = row["parameters"]
        profiled = study.p50("step_profiled", name=run["name"], phase=run["phase"])
        if profiled and run["name"].endswith("-eager") and run["item"] in (2, 8):
            longer.append(profiled / row["p50"])
    ratios = [row["p50"] / step["p50"] for _, row, step in t.decode_steps(study)]
    python = [
        study.p50("account", name=name, phase="decode", account="python") or 0.0 for name in t.FRESH
    ]
    apart = [t.fresh_range(study, "step_unprofiled", phase) or 0.0 for phase in t.PHASES]
    step = study.one("step_unprofiled", name="gpt2-bs1-s512-eager", phase="decode")
    low, high = spread(step) if step else (None, None)
    return {
        "ledger_steps": str(len(ledger)),
        "ledger_worst": str(max((abs(round(value)) for value in ledger), default=0)),
        "profiler_least": f"{min(longer):.1f}",
        "profiler_most": f"{max(longer):.1f}",
        "profiler_median": f"{median(longer):.1f}",
        "profiler_phases": str(len(longer)),
        "ratio_least": number(min(ratios)),
        "ratio_most": number(max(ratios)),
        "fresh_apart": f"{100 * max(apart):.0f}",
        "fresh_slower": number(max(python) / max(min(python), 1)),
        "slow_mode_low": milliseconds(low),
        "slow_mode_high": milliseconds(high),
        "clocks": clocks(study),
    }


def clocks(study: Results) -> str:
    found: list[str] = []
    for metric in ("gpu_sm_mhz", "gpu_memory_mhz", "gpu_temperature_c"):
        medians = [row["p50"] for row in study.all(metric)]
        if medians:
            found.append(f"{metric} {number(min(medians))} to {number(max(medians))}")
    return ", ".join(found)
