"""The tables of docs/study.md, each from rows of the study's result file and nothing else.

A cell is a median with its spread and number of samples: `5.41 (5.38 to 5.60; 100)`. The spread is
p5 to p95, of fewer than ten samples the least and the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

Row = dict[str, Any]
MS, US = 1e6, 1e3
PAPER = "TaxBreak"


class Book:
    """The rows of a result file, asked by metric and parameters."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.rows: list[Row] = [row for row in content["results"] if row["n"]]

    def all(self, metric: str, **wanted: Any) -> list[Row]:
        return [
            row
            for row in self.rows
            if row["metric"] == metric
            and all(row["parameters"].get(key) == value for key, value in wanted.items())
        ]

    def one(self, metric: str, **wanted: Any) -> Row | None:
        """The row, or None where it was not recorded."""
        found = self.all(metric, **wanted)
        if len(found) > 1:
            raise ValueError(f"{len(found)} rows of {metric} for {wanted}")
        return found[0] if found else None

    def p50(self, metric: str, **wanted: Any) -> float | None:
        row = self.one(metric, **wanted)
        return None if row is None else row["p50"]


def number(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.0f}"


def cell(row: Row | None, unit: float = 1.0) -> str:
    """Median, spread, n; of one sample the sample."""
    if row is None:
        return "-"
    if row["n"] == 1:
        return number(row["p50"] / unit)
    low, high = spread(row)
    return (
        f"{number(row['p50'] / unit)} ({number(low / unit)} to {number(high / unit)}; {row['n']})"
    )


def spread(row: Row) -> tuple[float, float]:
    if row["n"] < 10:
        return min(row["samples"]), max(row["samples"])
    return row["p5"], row["p95"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column to the left, numbers to the right."""
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("| --- |" + " ---: |" * (len(head) - 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def percent(value: float | None, sign: bool = True) -> str:
    return "-" if value is None else f"{100 * value:{'+' if sign else ''}.1f} %"


# 1 ----------------------------------------------------------------------------------------------

APIS = ("cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernel", "cudaLaunchKernelExC")
DEFINITIONS = (
    ("annotation_to_kernel_start", "annotation start to kernel start"),
    ("api_start_to_kernel_start", "call start to kernel start"),
    ("api_end_to_kernel_start", "call end to kernel start"),
    ("unsynchronised_host_cost", "host cost of a call, no profiler"),
)


def floors(book: Book) -> str:
    rows: list[list[str]] = []
    for definition, shown in DEFINITIONS:
        for api in APIS:
            row = book.one("launch_floor", item=1, launch_api=api, definition=definition)
            if row:
                figures = [number(row[key] / US) for key in ("p5", "p50", "mean", "p95")]
                rows.append([shown, f"`{api}`", str(row["n"]), *figures])
    return table(["definition, us", "launch API", "n", "p5", "p50", "mean", "p95"], rows)


# 2 ----------------------------------------------------------------------------------------------

PAPER_GPT2 = {1: ("1.66", "5.04 to 5.52", "0.25"), 16: ("15.43", "5.04 to 5.52", "0.74")}
NO_PAPER = ("", "5.04 to 5.52", "")
BATCHES = (1, 2, 4, 8, 16)


def gpt2_name(batch: int, logits: str = "all") -> str:
    return f"gpt2-bs{batch}-s512-{'all' if logits == 'all' else 'eager'}"


def gpt2(book: Book, logits: str = "all") -> str:
    """`logits`: of all positions, as the paper's forward computes them, or of the last."""
    rows: list[list[str]] = []
    for batch in BATCHES:
        of = {"name": gpt2_name(batch, logits), "phase": "prefill"}
        figures = [
            cell(book.one("device_active", **of), MS),
            cell(book.one("orchestration", **of), MS),
            cell(book.one("hdbi", **of)),
            cell(book.one("step_unprofiled", **of), MS),
        ]
        if logits == "all":
            for place, paper in zip((1, 3, 5), PAPER_GPT2.get(batch, NO_PAPER), strict=True):
                figures.insert(place, paper)
        rows.append([str(batch), *figures])
    paper = ["paper"] if logits == "all" else []
    head = ["batch", "T_DeviceActive, ms", *paper, "T_Orchestration, ms", *paper, "HDBI", *paper]
    return table([*head, "un-profiled step, ms"], rows)


def flat(book: Book) -> tuple[float, float]:
    """The least and the largest median T_Orchestration over the batches, all logits, in ms."""
    found = [
        value / MS
        for batch in BATCHES
        if (value := book.p50("orchestration", name=gpt2_name(batch), phase="prefill"))
    ]
    return min(found), max(found)


def crossover(book: Book, logits: str = "all") -> float | None:
    """The batch at which HDBI passes 0.5."""
    return half(book, [{"name": gpt2_name(batch, logits)} for batch in BATCHES])


def half(book: Book, runs: Sequence[Row]) -> float | None:
    """Where HDBI of the runs of BATCHES passes 0.5, between the two measured by interpolation."""
    points = [
        (batch, value)
        for batch, run in zip(BATCHES, runs, strict=True)
        if (value := book.p50("hdbi", phase="prefill", **run)) is not None
    ]
    for (a, low), (b, high) in pairwise(points):
        if low < 0.5 <= high:
            return a + (b - a) * (0.5 - low) / (high - low)
    return None


def turns_name(batch: int) -> Row:
    """Of a run of `collector.py --part batches`, what its rows have."""
    return {"workload": f"batches-{batch}"}


def gpt2_in_turns(turns: Book) -> str:
    """Batches that were recorded in turns; ratios are medians of pairs of traces, to batch 1."""
    rows: list[list[str]] = []
    for batch in BATCHES:
        of = {**turns_name(batch), "phase": "prefill"}
        pair = {"phase": "prefill", "recordings": f"batches-1, batches-{batch}"}
        ratio = turns.p50("orchestration_paired_ratio", **pair)
        least, largest = (
            turns.p50("orchestration_paired_interval", median_at_90_percent=bound, **pair)
            for bound in ("least", "largest")
        )
        rows.append(
            [
                str(batch),
                cell(turns.one("device_active", **of), MS),
                cell(turns.one("orchestration", **of), MS),
                "" if ratio is None else f"{ratio:.3f} ({number(least)} to {number(largest)})",
                cell(turns.one("hdbi", **of)),
                cell(turns.one("step_unprofiled_beside", **of), MS),
            ]
        )
    head = ["batch", "T_DeviceActive, ms", "T_Orchestration, ms", "to batch 1, pair by pair (90 %)"]
    return table([*head, "HDBI", "un-profiled step beside, ms"], rows)


# 3 ----------------------------------------------------------------------------------------------

EXPERTS = (
    ("llama-3.2-1b", None, "847.5"),
    ("llama-3.2-3b", None, "1,536.9"),
    ("olmoe-1b-7b", "eager", "9,305.3"),
    ("olmoe-1b-7b", "grouped_mm", ""),
    ("qwen1.5-moe-a2.7b", "eager", "6,695.1"),
    ("qwen1.5-moe-a2.7b", "grouped_mm", ""),
)


def experts_name(model: str, batch: int, how: str | None) -> str:
    return "-".join([f"{model}-bs{batch}-s2048", *([how] if how else [])])


def per_token(book: Book, name: str, tokens: int = 10) -> float | None:
    """Launches for each of `tokens` output tokens: one prefill and the mean decode step's rest."""
    first = book.one("launches", name=name, phase="prefill")
    rest = book.one("launches", name=name, phase="decode")
    if first is None or rest is None:
        return None
    return (first["mean"] + (tokens - 1) * rest["mean"]) / tokens


def experts(book: Book) -> str:
    rows: list[list[str]] = []
    shown = {None: "", "eager": ", host loop", "grouped_mm": ", grouped products"}
    for model, how, paper in EXPERTS:
        for batch in (4, 1):
            name = experts_name(model, batch, how)
            both = [
                cell(book.one("hdbi", name=name, phase=phase)) for phase in ("prefill", "decode")
            ]
            steps = [
                cell(book.one("step_unprofiled", name=name, phase=phase), MS)
                for phase in ("prefill", "decode")
            ]
            rows.append(
                [
                    f"{model}{shown[how]}",
                    str(batch),
                    number(per_token(book, name)),
                    paper if batch == 4 else "",
                    cell(book.one("launches", name=name, phase="decode")),
                    *both,
                    *steps,
                ]
            )
    return table(
        ["model", "batch", "launches a token", "paper", "a decode step", "HDBI prefill",
         "HDBI decode", "prefill, ms", "decode, ms"],
        rows,
    )  # fmt: skip


# 4 ----------------------------------------------------------------------------------------------

PAPER_FAMILIES = {
    "scan": "0.32",
    "elementwise": "0.36 to 0.56",
    "reduce": "0.55",
    "gemm, nvjet": "1.18",
    "gemm, other": "1.88",
}


def families(book: Book) -> str:
    names = [row["parameters"]["name"] for row in book.all("above_floor")]
    runs = list(dict.fromkeys(names))
    found = sorted({row["parameters"]["family"] for row in book.all("above_floor")})
    order = [f for f in PAPER_FAMILIES if f in found] + [
        f for f in found if f not in PAPER_FAMILIES
    ]
    rows = [
        [
            family,
            PAPER_FAMILIES.get(family, ""),
            *(cell(book.one("above_floor", name=run, family=family), US) for run in runs),
        ]
        for family in order
    ]
    return table(["family, us above the floor", "paper", *(f"`{run}`" for run in runs)], rows)


# 5 ----------------------------------------------------------------------------------------------

ATTENTION = {kind: f"llama-3.2-1b-bs8-s2048-{kind}" for kind in ("eager", "sdpa")}
FIGURES = (
    ("step_unprofiled", "un-profiled step, ms", MS),
    ("device_active", "T_DeviceActive, ms", MS),
    ("orchestration", "T_Orchestration, ms", MS),
    ("launches", "launches", 1.0),
    ("hdbi", "HDBI", 1.0),
)


def attention(book: Book) -> str:
    rows: list[list[str]] = []
    for phase in ("prefill", "decode"):
        for metric, shown, unit in FIGURES:
            two = [book.one(metric, name=ATTENTION[k], phase=phase) for k in ("eager", "sdpa")]
            a, b = two
            change = percent(b["p50"] / a["p50"] - 1) if a and b and a["p50"] else "-"
            rows.append([f"{phase}: {shown}", cell(a, unit), cell(b, unit), change])
    return table(["Llama-3.2-1B, batch 8, prompt 2,048", "eager", "SDPA", "change"], rows)


# 6 ----------------------------------------------------------------------------------------------

LOADS = {
    "pinned": "one core, alone",
    "nice5": "one core, beside a process of nice 5",
    "nice0": "one core, beside one process",
    "two": "one core, beside two processes",
}


def slow_host(book: Book) -> str:
    rows: list[list[str]] = []
    base = book.p50("step_unprofiled", name="gpt2-slow-pinned-eager", phase="decode")
    for load, shown in LOADS.items():
        eager = {"name": f"gpt2-slow-{load}-eager", "phase": "decode"}
        graph = {"name": f"gpt2-slow-{load}-graph", "phase": "decode"}
        bare = book.one("step_unprofiled", **eager)
        growth = bare["p50"] / base if bare and base else None
        mean = bare["mean"] / base if bare and base else None
        rows.append(
            [
                shown,
                cell(bare, MS),
                number(growth),
                number(mean),
                cell(book.one("orchestration", **eager), MS),
                cell(book.one("step_unprofiled", **graph), MS),
            ]
        )
    return table(
        ["host", "eager decode step, ms", "p50 against alone", "mean against alone",
         "T_Orchestration, ms", "the same as graphs, ms"],
        rows,
    )  # fmt: skip


def faster_host(book: Book) -> str:
    """End-to-end change foretold for a host that takes 10 and 29 % less time, by batch."""
    rows: list[list[str]] = []
    for batch in BATCHES:
        for phase in ("prefill", "decode"):
            of = {"item": 8, "name": gpt2_name(batch, "last"), "phase": phase}
            base = book.p50("base", change="cpu-faster:1.11", **of)
            if base is None:
                continue
            found = [book.p50("predicted", change=f"cpu-faster:{x}", **of) for x in (1.11, 1.41)]
            hdbi = book.p50("hdbi", name=of["name"], phase=phase)
            changes = [percent(f / base - 1) if f else "-" for f in found]
            rows.append([f"batch {batch}, {phase}", number(hdbi), number(base / MS), *changes])
    return table(
        ["GPT-2", "HDBI", "step, ms", "host time -10 %", "host time -29 %"],
        rows,
    )


def slow_predictions(book: Book) -> str:
    rows: list[list[str]] = []
    for load, shown in LOADS.items():
        for phase in ("prefill", "decode"):
            measured = book.one("measured", item=6, load=load, phase=phase)
            predicted = book.p50("predicted", item=6, load=load, phase=phase)
            if measured is None or predicted is None:
                continue
            low, high = (book.p50(k, item=6, load=load, phase=phase) for k in ("low", "high"))
            rows.append(
                [
                    f"{shown}, {phase}",
                    number(measured["parameters"]["share"]),
                    number(predicted / MS),
                    f"{number((low or 0) / MS)} to {number((high or 0) / MS)}",
                    number(measured["mean"] / MS),
                    percent(predicted / measured["mean"] - 1),
                ]
            )
    return table(
        ["host", "share of the core", "predicted, ms", "bounds", "measured mean, ms", "error"], rows
    )


# 7 ----------------------------------------------------------------------------------------------

HYBRID = {mode: f"llama-2-7b-bs1-s100-{mode}" for mode in ("eager", "hybrid")}


def hybrid_accounts(book: Book) -> str:
    rows: list[list[str]] = []
    accounts = dict.fromkeys(
        row["parameters"]["account"]
        for mode in HYBRID.values()
        for row in book.all("account", name=mode, phase="decode")
    )
    for account in accounts:
        two = [
            book.one("account", name=n, phase="decode", account=account) for n in HYBRID.values()
        ]
        bare = [
            book.one("exposed", name=n, phase="decode", account=account) for n in HYBRID.values()
        ]
        rows.append([f"`{account}`", *(cell(r, US) for r in two), *(cell(r, US) for r in bare)])
    more = (("device_busy", "device busy, ms", MS), ("kernels", "kernels", 1.0))
    for metric, shown, unit in (*FIGURES, *more):
        of = [book.one(metric, name=n, phase="decode") for n in HYBRID.values()]
        rows.append([shown, *(cell(row, unit) for row in of), "", ""])
    return table(
        ["a decode step, LLaMA-2-7B, us", "eager", "hybrid", "eager, exposed", "hybrid, exposed"],
        rows,
    )


HYBRID_LENGTHS = (10, 100, 200, 350, 500)
HYBRID_SYSTEMS = (
    ("transformers", "eager", "transformers, eager"),
    ("hostbound", "jit", "hybrid, jit"),
    ("hostbound", "piecewise", "hybrid, piecewise"),
    ("hostbound", "full", "hybrid, full"),
)


def _warm(system: str, mode: str) -> dict[str, Any]:
    return {
        "system": system, "mode": mode, "model": "llama-2-7b", "state": "length-warm",
        "ablation": None,
    }  # fmt: skip


def hybrid_ttft_tail(hybrid: dict[str, Any]) -> str:
    """P99 of the time to the first token by prompt length; of few samples the largest."""
    book = Book(hybrid)
    rows: list[list[str]] = []
    for system, mode, shown in HYBRID_SYSTEMS:
        found = [book.one("ttft_ms", prompt_len=n, **_warm(system, mode)) for n in HYBRID_LENGTHS]
        count = next((str(row["n"]) for row in found if row), "-")
        rows.append([shown, *(number(row["p99"]) if row else "-" for row in found), count])
    head = [f"{n} tokens" for n in HYBRID_LENGTHS]
    return table(["P99 of TTFT, ms", *head, "requests"], rows)


def hybrid_ttft(hybrid: dict[str, Any]) -> str:
    book = Book(hybrid)
    lengths = HYBRID_LENGTHS
    rows: list[list[str]] = []
    eager: dict[int, float | None] = {}
    for system, mode, shown in HYBRID_SYSTEMS:
        of = _warm(system, mode)
        found = {n: book.one("ttft_ms", prompt_len=n, **of) for n in lengths}
        if system == "transformers":
            eager = {n: row["p50"] if row else None for n, row in found.items()}
        tokens = book.one("itl_ms", **{**of, "state": None}, capture="quiet")
        rows.append(
            [
                shown,
                *(cell(row) for row in found.values()),
                number(tokens["p50"]) if tokens else "-",
                number(tokens["p99"]) if tokens else "-",
            ]
        )
        if mode == "full":
            rows.append(
                [
                    "full against eager",
                    *(
                        percent(row["p50"] / eager[n] - 1) if row and eager.get(n) else "-"
                        for n, row in found.items()
                    ),
                    "",
                    "",
                ]
            )
    head = [f"{n} tokens" for n in lengths]
    return table(["TTFT, ms", *head, "token p50, ms", "token p99, ms"], rows)


# 8 ----------------------------------------------------------------------------------------------


def predicted_graphs(book: Book) -> Iterator[dict[str, Any]]:
    """Each configuration and phase for which there is a prediction and a measurement."""
    for row in book.all("measured", item=8, change="graphs"):
        of = row["parameters"]
        wanted = {key: of[key] for key in ("name", "phase", "change")}
        found = {k: book.p50(k, item=8, **wanted) for k in ("predicted", "low", "high", "base")}
        if found["predicted"] is None:
            continue
        error = found["predicted"] / row["p50"] - 1
        yield {"measured": row, **found, "error": error, **of}


def predictions(book: Book) -> str:
    rows = [
        [
            f"`{p['name'].removesuffix('-eager')}`, {p['phase']}",
            number(p["base"] / MS),
            number(p["predicted"] / MS),
            f"{number(p['low'] / MS)} to {number(p['high'] / MS)}",
            cell(p["measured"], MS),
            percent(p["error"]),
            "yes" if p["low"] <= p["measured"]["p50"] <= p["high"] else "no",
        ]
        for p in predicted_graphs(book)
    ]
    return table(
        ["run", "eager step, ms", "predicted, ms", "bounds", "measured as graphs, ms", "error",
         "within bounds"],
        rows,
    )  # fmt: skip


def errors(book: Book, phase: str | None = None) -> list[float]:
    """Sizes of the relative errors, of one phase if named."""
    return [abs(p["error"]) for p in predicted_graphs(book) if phase in (None, p["phase"])]


def within(book: Book) -> int:
    """How many measurements lie within the bounds."""
    return sum(p["low"] <= p["measured"]["p50"] <= p["high"] for p in predicted_graphs(book))


def busy_ratio(book: Book, phase: str) -> list[float]:
    """Device busy time of the graph's step over the eager one's."""
    found: list[float] = []
    for p in predicted_graphs(book):
        if p["phase"] == phase:
            eager = book.p50("device_busy", name=p["name"], phase=phase)
            name = p["name"].removesuffix("-eager") + "-graph"
            graph = book.p50("device_busy", name=name, phase=phase)
            if eager and graph:
                found.append(graph / eager)
    return found


def nodes(book: Book) -> str:
    rows: list[list[str]] = []
    for row in book.all("graph_gap", of="mean"):
        name = row["parameters"]["name"]
        low, high = (book.p50("graph_gap", name=name, of=k) for k in ("p5", "p95"))
        shown = name.removesuffix("-eager")
        busy = [
            cell(book.one("device_busy", name=f"{shown}-{mode}", phase=phase), MS)
            for phase in ("prefill", "decode")
            for mode in ("eager", "graph")
        ]
        count = f"{row['parameters']['gaps']:,}"
        rows.append([f"`{shown}`", number(low), number(row["p50"]), number(high), count, *busy])
    return table(
        ["run", "gap p5, ns", "mean", "p95", "n", "busy prefill eager, ms", "graph",
         "busy decode eager, ms", "graph"],
        rows,
    )  # fmt: skip


def graph_launch(book: Book) -> str:
    rows = [
        [str(row["parameters"]["nodes"]), cell(row, US)]
        for row in sorted(book.all("graph_replay"), key=lambda r: r["parameters"]["nodes"])
    ]
    return table(["nodes that do next to nothing", "replay and wait, us"], rows)


# 9 ----------------------------------------------------------------------------------------------


def ledger_difference(book: Book) -> tuple[int, int]:
    """The largest difference between a step's ledger and its wall time, and over how many steps."""
    samples = [value for row in book.all("ledger_less_wall") for value in row["samples"]]
    return max((abs(round(v)) for v in samples), default=0), len(samples)


def inflation(book: Book) -> list[tuple[str, str, float]]:
    found: list[tuple[str, str, float]] = []
    for row in book.all("step_unprofiled"):
        of = row["parameters"]
        profiled = book.one("step_profiled", name=of["name"], phase=of["phase"])
        if profiled and of["name"].endswith("-eager") and of["item"] in (2, 8):
            found.append((of["name"], of["phase"], profiled["p50"] / row["p50"]))
    return found


def orchestration_ratios(book: Book) -> list[float]:
    """T_Orchestration over the un-profiled decode step, of each run of the table below."""
    found: list[float] = []
    for row in book.all("orchestration", phase="decode"):
        of = row["parameters"]
        bare = book.p50("step_unprofiled", name=of["name"], phase="decode")
        if bare and of["name"].endswith("-eager") and of["item"] in (2, 8):
            found.append(row["p50"] / bare)
    return found


def orchestration_against_host(book: Book) -> str:
    """Where the device is idle most of the time, a step's un-profiled time is the host's."""
    rows: list[list[str]] = []
    for row in book.all("orchestration", phase="decode"):
        of = row["parameters"]
        if not of["name"].endswith("-eager") or of["item"] not in (2, 8):
            continue
        bare = book.one("step_unprofiled", name=of["name"], phase="decode")
        busy = book.one("device_busy", name=of["name"], phase="decode")
        if bare is None or busy is None:
            continue
        rows.append(
            [
                f"`{of['name']}`",
                cell(row, MS),
                cell(bare, MS),
                number(row["p50"] / bare["p50"]),
                percent(busy["p50"] / bare["p50"], sign=False),
            ]
        )
    return table(
        ["decode step", "T_Orchestration (profiled), ms", "un-profiled step, ms", "ratio",
         "device busy"],
        rows,
    )  # fmt: skip


def repeatability(book: Book) -> str:
    rows: list[list[str]] = []
    for phase in ("prefill", "decode"):
        for metric, shown, unit in FIGURES[:3]:
            found = [book.one(metric, name=f"gpt2-fresh-{n}", phase=phase) for n in (1, 2, 3)]
            known = [row["p50"] for row in found if row]
            difference = (
                (max(known) - min(known)) / median(known) if known and median(known) else None
            )
            rows.append(
                [
                    f"{phase}: {shown}",
                    *(cell(row, unit) for row in found),
                    percent(difference, sign=False),
                ]
            )
    return table(
        ["GPT-2, batch 1, prompt 512", "process 1", "process 2", "process 3", "range"], rows
    )


def blocks(book: Book) -> str:
    rows: list[list[str]] = []
    for size in (1, 5, 50):
        kernels = book.one("replay_launch", block=size)
        api = [
            book.one("launch_floor", block=size, launch_api=a)
            for a in ("cudaLaunchKernel", APIS[1])
        ]
        shown = {
            1: "interleaved, one by one",
            5: "blocks of 5 (the collector's)",
            50: "tight loops",
        }
        rows.append([shown[size], cell(kernels, US), *(cell(row, US) for row in api)])
    return table(
        ["samples are taken", "launch cost of GPT-2's kernels, us", "floor `cudaLaunchKernel`, us",
         "floor `cuLaunchKernelEx`, us"],
        rows,
    )  # fmt: skip


def clocks(book: Book) -> str:
    found: list[str] = []
    for metric in ("gpu_sm_mhz", "gpu_memory_mhz", "gpu_temperature_c"):
        values = [row["p50"] for row in book.all(metric)]
        if values:
            found.append(f"{metric} {number(min(values))} to {number(max(values))}")
    return ", ".join(found)
