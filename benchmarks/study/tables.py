"""The tables of docs/study.md: each function returns the rows below a head in docs/study.md.in.

Every cell comes from rows of the result files. Times there are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from benchmarks.study.results import (
    MS,
    US,
    Recorded,
    Results,
    Row,
    cell,
    number,
    percent,
)  # fmt: skip

Rows = list[list[str]]
PHASES = ("prefill", "decode")

APIS = ("cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernel", "cudaLaunchKernelExC")
DEFINITIONS = {
    "annotation_to_kernel_start": "annotation start to kernel start",
    "api_start_to_kernel_start": "call start to kernel start",
    "api_end_to_kernel_start": "call end to kernel start",
    "unsynchronised_host_cost": "host cost of a call, no profiler",
}
BATCHES = (1, 2, 4, 8, 16)
PAPER_GPT2 = {1: ("1.66", "5.04 to 5.52", "0.25"), 16: ("15.43", "5.04 to 5.52", "0.74")}
NO_PAPER = ("", "5.04 to 5.52", "")
GPT2 = (("device_active", MS), ("orchestration", MS), ("hdbi", 1.0), ("step_unprofiled", MS))
EXPERTS = (
    ("llama-3.2-1b", None, "847.5"),
    ("llama-3.2-3b", None, "1,536.9"),
    ("olmoe-1b-7b", "eager", "9,305.3"),
    ("olmoe-1b-7b", "grouped_mm", ""),
    ("qwen1.5-moe-a2.7b", "eager", "6,695.1"),
    ("qwen1.5-moe-a2.7b", "grouped_mm", ""),
)
EXPERTS_SHOWN = {None: "", "eager": ", host loop", "grouped_mm": ", grouped products"}
PAPER_FAMILIES = {
    "scan": "0.32",
    "elementwise": "0.36 to 0.56",
    "reduce": "0.55",
    "gemm, nvjet": "1.18",
    "gemm, other": "1.88",
}
REPLAYED = tuple(f"{m}-bs1-s512-replayed" for m in ("llama-3.2-1b", "olmoe", "gpt2"))
ATTENTION = [f"llama-3.2-1b-bs8-s2048-{kind}" for kind in ("eager", "sdpa")]
FIGURES = (
    ("step_unprofiled", "un-profiled step, ms", MS),
    ("device_active", "T_DeviceActive, ms", MS),
    ("orchestration", "T_Orchestration, ms", MS),
    ("launches", "launches", 1.0),
    ("hdbi", "HDBI", 1.0),
)
LOADS = {
    "pinned": "one core, alone",
    "nice5": "one core, beside a process of nice 5",
    "nice0": "one core, beside one process",
    "two": "one core, beside two processes",
}
LLAMA2 = [f"llama-2-7b-bs1-s100-{mode}" for mode in ("eager", "hybrid")]
LENGTHS = (10, 100, 200, 350, 500)
SYSTEMS = {
    "transformers, eager": ("transformers", "eager"),
    "hybrid, jit": ("hostbound", "jit"),
    "hybrid, piecewise": ("hostbound", "piecewise"),
    "hybrid, full": ("hostbound", "full"),
}


def gpt2_name(batch: int, logits: str = "all") -> str:
    """Name the run; `logits` of all positions, as in the paper's forward, or of the last."""
    return f"gpt2-bs{batch}-s512-{'all' if logits == 'all' else 'eager'}"


def experts_name(model: str, batch: int, how: str | None) -> str:
    return "-".join([f"{model}-bs{batch}-s2048", *([how] if how else [])])


def _cells(
    study: Results, columns: Iterable[tuple[str, float]], name: str, phase: str
) -> Iterator[str]:
    """Yield a cell a column, each a metric and the unit of its numbers, of one run's phase."""
    for metric, unit in columns:
        yield study.cell(metric, unit, name=name, phase=phase)


def launch_floors(study: Results) -> Rows:
    found = [
        (shown, api, study.one("launch_floor", item=1, launch_api=api, definition=definition))
        for definition, shown in DEFINITIONS.items()
        for api in APIS
    ]
    return [
        [shown, f"`{api}`", str(row["n"])]
        + [number(row[key] / US) for key in ("p5", "p50", "mean", "p95")]
        for shown, api, row in found
        if row
    ]


def gpt2_last(study: Results) -> Rows:
    return [[str(n), *_cells(study, GPT2, gpt2_name(n, "last"), "prefill")] for n in BATCHES]


def gpt2_all(study: Results) -> Rows:
    """The paper's figures stand behind ours, but for the un-profiled step, which it lacks."""
    rows: Rows = []
    for batch in BATCHES:
        *ours, step = _cells(study, GPT2, gpt2_name(batch), "prefill")
        pairs = zip(ours, PAPER_GPT2.get(batch, NO_PAPER), strict=True)
        rows.append([str(batch), *(value for pair in pairs for value in pair), step])
    return rows


def gpt2_interleaved(batches: Results) -> Rows:
    """Ratios are medians of pairs of traces, to batch 1."""
    rows: Rows = []
    for batch in BATCHES:
        run = {"workload": f"batches-{batch}", "phase": "prefill"}
        pair = {"phase": "prefill", "recordings": f"batches-1, batches-{batch}"}
        ratio = batches.p50("orchestration_paired_ratio", **pair)
        low, high = (
            number(batches.p50("orchestration_paired_interval", median_at_90_percent=end, **pair))
            for end in ("least", "largest")
        )
        rows.append(
            [
                str(batch),
                batches.cell("device_active", MS, **run),
                batches.cell("orchestration", MS, **run),
                "" if ratio is None else f"{ratio:.3f} ({low} to {high})",
                batches.cell("hdbi", **run),
                batches.cell("step_unprofiled_beside", MS, **run),
            ]
        )
    return rows


def launches_per_token(study: Results, name: str, tokens: int = 10) -> float | None:
    """Return launches for each of `tokens` output tokens: a prefill, the rest mean decode steps."""
    first, rest = (study.one("launches", name=name, phase=phase) for phase in PHASES)
    if first is None or rest is None:
        return None
    return (first["mean"] + (tokens - 1) * rest["mean"]) / tokens


def experts(study: Results) -> Rows:
    rows: Rows = []
    for model, how, paper in EXPERTS:
        for batch in (4, 1):
            name = experts_name(model, batch, how)
            rows.append(
                [
                    f"{model}{EXPERTS_SHOWN[how]}",
                    str(batch),
                    number(launches_per_token(study, name)),
                    paper if batch == 4 else "",
                    study.cell("launches", name=name, phase="decode"),
                    *(study.cell("hdbi", name=name, phase=phase) for phase in PHASES),
                    *(
                        study.cell("step_unprofiled", MS, name=name, phase=phase)
                        for phase in PHASES
                    ),
                ]
            )
    return rows


def families(study: Results) -> Rows:
    found = {row["parameters"]["family"] for row in study.all("above_floor")}
    order = [f for f in PAPER_FAMILIES if f in found] + sorted(found - set(PAPER_FAMILIES))
    return [
        [family, PAPER_FAMILIES.get(family, "")]
        + [study.cell("above_floor", US, name=run, family=family) for run in REPLAYED]
        for family in order
    ]


def attention(study: Results) -> Rows:
    rows: Rows = []
    for phase in PHASES:
        for metric, shown, unit in FIGURES:
            a, b = (study.one(metric, name=name, phase=phase) for name in ATTENTION)
            change = percent(b["p50"] / a["p50"] - 1) if a and b and a["p50"] else "-"
            rows.append([f"{phase}: {shown}", cell(a, unit), cell(b, unit), change])
    return rows


def slow_host(study: Results) -> Rows:
    rows: Rows = []
    alone = study.p50("step_unprofiled", name="gpt2-slow-pinned-eager", phase="decode")
    for load, shown in LOADS.items():
        eager = {"name": f"gpt2-slow-{load}-eager", "phase": "decode"}
        step = study.one("step_unprofiled", **eager)
        growth = [number(step[key] / alone if step and alone else None) for key in ("p50", "mean")]
        rows.append(
            [
                shown,
                cell(step, MS),
                *growth,
                study.cell("orchestration", MS, **eager),
                study.cell("step_unprofiled", MS, name=f"gpt2-slow-{load}-graph", phase="decode"),
            ]
        )
    return rows


def slow_predictions(study: Results) -> Rows:
    rows: Rows = []
    for load, shown in LOADS.items():
        for phase in PHASES:
            case = {"item": 6, "load": load, "phase": phase}
            measured, predicted = study.one("measured", **case), study.p50("predicted", **case)
            if measured is None or predicted is None:
                continue
            low, high = (number((study.p50(end, **case) or 0) / MS) for end in ("low", "high"))
            rows.append(
                [
                    f"{shown}, {phase}",
                    number(measured["parameters"]["share"]),
                    number(predicted / MS),
                    f"{low} to {high}",
                    number(measured["mean"] / MS),
                    percent(predicted / measured["mean"] - 1),
                ]
            )
    return rows


def faster_host(study: Results) -> Rows:
    """Step time predicted for a host that takes 10 and 29 % less time, by batch."""
    rows: Rows = []
    for batch in BATCHES:
        for phase in PHASES:
            case = {"item": 8, "name": gpt2_name(batch, "last"), "phase": phase}
            base = study.p50("base", change="cpu-faster:1.11", **case)
            if base is None:
                continue
            times = [study.p50("predicted", change=f"cpu-faster:{x}", **case) for x in (1.11, 1.41)]
            hdbi = study.p50("hdbi", name=case["name"], phase=phase)
            changes = [percent(time / base - 1) if time else "-" for time in times]
            rows.append([f"batch {batch}, {phase}", number(hdbi), number(base / MS), *changes])
    return rows


def hybrid_accounts(study: Results) -> Rows:
    """The accounts of a decode step in us; below them the step's figures."""
    runs = [{"name": name, "phase": "decode"} for name in LLAMA2]
    accounts = dict.fromkeys(
        row["parameters"]["account"] for run in runs for row in study.all("account", **run)
    )
    rows = [
        [f"`{account}`"]
        + [
            study.cell(m, US, account=account, **run)
            for m in ("account", "exposed")
            for run in runs
        ]
        for account in accounts
    ]
    more = (("device_busy", "device busy, ms", MS), ("kernels", "kernels", 1.0))
    return rows + [
        [shown, *(study.cell(metric, unit, **run) for run in runs), "", ""]
        for metric, shown, unit in (*FIGURES, *more)
    ]


def _length_warm(system: str, mode: str) -> dict[str, Any]:
    return {
        "system": system, "mode": mode, "model": "llama-2-7b", "state": "length-warm",
        "ablation": None,
    }  # fmt: skip


def ttft(hybrid: Results) -> Rows:
    rows: Rows = []
    medians: dict[str, list[float | None]] = {}
    for shown, (system, mode) in SYSTEMS.items():
        run = _length_warm(system, mode)
        found = [hybrid.one("ttft_ms", prompt_len=n, **run) for n in LENGTHS]
        medians[mode] = [row["p50"] if row else None for row in found]
        gaps = hybrid.one("itl_ms", **{**run, "state": None}, capture="quiet")
        ends = [number(gaps[key]) if gaps else "-" for key in ("p50", "p99")]
        rows.append([shown, *map(cell, found), *ends])
    changes = [
        percent(full / eager - 1) if full and eager else "-"
        for full, eager in zip(medians["full"], medians["eager"], strict=True)
    ]
    return [*rows, ["full against eager", *changes, "", ""]]


def ttft_p99(hybrid: Results) -> Rows:
    """P99 of the time to the first token by prompt length; of few samples the largest."""
    rows: Rows = []
    for shown, (system, mode) in SYSTEMS.items():
        run = _length_warm(system, mode)
        found = [hybrid.one("ttft_ms", prompt_len=n, **run) for n in LENGTHS]
        count = next((str(row["n"]) for row in found if row), "-")
        rows.append([shown, *(number(row["p99"]) if row else "-" for row in found), count])
    return rows


def predicted_graphs(study: Results) -> Iterator[Row]:
    """Yield each run and phase for which there are a prediction and a measurement."""
    for row in study.all("measured", item=8, change="graphs"):
        case = {key: row["parameters"][key] for key in ("name", "phase", "change")}
        found = {k: study.p50(k, item=8, **case) for k in ("predicted", "low", "high", "base")}
        if found["predicted"] is None:
            continue
        error = found["predicted"] / row["p50"] - 1
        yield {"measured": row, **found, "error": error, **row["parameters"]}


def predictions(study: Results) -> Rows:
    return [
        [
            f"`{p['name'].removesuffix('-eager')}`, {p['phase']}",
            number(p["base"] / MS),
            number(p["predicted"] / MS),
            f"{number(p['low'] / MS)} to {number(p['high'] / MS)}",
            cell(p["measured"], MS),
            percent(p["error"]),
            "yes" if is_within_bounds(p) else "no",
        ]
        for p in predicted_graphs(study)
    ]


def is_within_bounds(prediction: Row) -> bool:
    return prediction["low"] <= prediction["measured"]["p50"] <= prediction["high"]


def graph_nodes(study: Results) -> Rows:
    rows: Rows = []
    for row in study.all("graph_gap", of="mean"):
        name = row["parameters"]["name"]
        low, high = (number(study.p50("graph_gap", name=name, of=key)) for key in ("p5", "p95"))
        shown = name.removesuffix("-eager")
        busy = [
            study.cell("device_busy", MS, name=f"{shown}-{mode}", phase=phase)
            for phase in PHASES
            for mode in ("eager", "graph")
        ]
        gaps = f"{row['parameters']['gaps']:,}"
        rows.append([f"`{shown}`", low, number(row["p50"]), high, gaps, *busy])
    return rows


def graph_launch(study: Results) -> Rows:
    rows = sorted(study.all("graph_replay"), key=lambda row: row["parameters"]["nodes"])
    return [[str(row["parameters"]["nodes"]), cell(row, US)] for row in rows]


def host_bound_decode(study: Results) -> Iterator[tuple[str, Row, Row]]:
    """Yield the eager decode steps of tables 2 and 8: name, T_Orchestration, un-profiled step.

    The device is idle most of the time there, so the un-profiled time is the host's.
    """
    for row in study.all("orchestration", phase="decode"):
        run = row["parameters"]
        step = study.one("step_unprofiled", name=run["name"], phase="decode")
        if step and run["name"].endswith("-eager") and run["item"] in (2, 8):
            yield run["name"], row, step


def orchestration(study: Results) -> Rows:
    rows: Rows = []
    for name, row, step in host_bound_decode(study):
        busy = study.p50("device_busy", name=name, phase="decode")
        if busy is not None:
            share = percent(busy / step["p50"], sign=False)
            ratio = number(row["p50"] / step["p50"])
            rows.append([f"`{name}`", cell(row, MS), cell(step, MS), ratio, share])
    return rows


def fresh_processes(study: Results) -> Rows:
    rows: Rows = []
    for phase in PHASES:
        for metric, shown, unit in FIGURES[:3]:
            found = [study.one(metric, name=f"gpt2-fresh-{n}", phase=phase) for n in (1, 2, 3)]
            known = [row["p50"] for row in found if row]
            apart = (max(known) - min(known)) / median(known) if known and median(known) else None
            cells = [cell(row, unit) for row in found]
            rows.append([f"{phase}: {shown}", *cells, percent(apart, sign=False)])
    return rows


def replay_blocks(study: Results) -> Rows:
    sizes = {1: "interleaved, one by one", 5: "blocks of 5 (the collector's)", 50: "tight loops"}
    rows: Rows = []
    for size, shown in sizes.items():
        floors = (
            study.cell("launch_floor", US, block=size, launch_api=api)
            for api in ("cudaLaunchKernel", "cuLaunchKernelEx")
        )
        rows.append([shown, study.cell("replay_launch", US, block=size), *floors])
    return rows


BY_STUDY = (
    launch_floors, gpt2_all, gpt2_last, experts, families, attention, slow_host, slow_predictions,
    faster_host, hybrid_accounts, predictions, graph_nodes, graph_launch, orchestration,
    fresh_processes, replay_blocks,
)  # fmt: skip


def tables(recorded: Recorded) -> dict[str, Rows]:
    """Return every table by the name that the template has for it."""
    made = {f"table_{table.__name__}": table(recorded.study) for table in BY_STUDY}
    made |= {f"table_{table.__name__}": table(recorded.hybrid) for table in (ttft, ttft_p99)}
    return made | {"table_gpt2_interleaved": gpt2_interleaved(recorded.batches)}
