# ruff: noqa: E501  (paragraphs of a page, as long as they are)
"""Writes docs/study.md from the study's result file; every number in it comes from there.

The hybrid runtime's TTFT table comes from `benchmarks/results/hybrid-*.json`, that of batches in
turns from `benchmarks/results/collector-batches-*.json`. The text around the tables takes its
numbers from the same rows, so that a new recording changes both.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import study_tables as t
from analyzer.reports import prediction
from result_file import RESULTS, ROOT
from study_tables import MS, US, Book, number

PAGE = ROOT / "docs" / "study.md"
IMAGES = ROOT / "docs" / "images"
PAPER_FLOOR_NS = 4_503
WIDTH = 120
HYBRID = RESULTS / "hybrid-nvidia-h200-2026-11-30.json"
BATCHES = RESULTS / "collector-batches-h200-2026-11-30.json"


class Others(NamedTuple):
    """Contents of the result files that are not the study's own."""

    hybrid: dict[str, Any]
    batches: dict[str, Any]


def others() -> Others:
    """Read them."""
    return Others(*(json.loads(path.read_text(encoding="utf-8")) for path in (HYBRID, BATCHES)))


def page(content: dict[str, Any], beside: Others) -> str:
    """The whole of docs/study.md."""
    book = Book(content)
    parts = (
        _head, _floor, _gpt2, _experts, _families, _attention, _slow, _hybrid, _predictions,
        _validity, _end,
    )  # fmt: skip
    made = [part(book, beside) for part in parts]
    return "\n\n".join(wrapped("\n\n".join(made).split("\n\n"))) + "\n"


def wrapped(blocks: list[str]) -> list[str]:
    """Prose and lists filled to the width of the other pages; tables, headings, code as they are."""
    made: list[str] = []
    for block in blocks:
        lines = block.split("\n")
        if lines[0].startswith("- "):
            items = "\n".join(lines).split("\n- ")
            text = [item.removeprefix("- ") for item in items]
            made.append("\n".join(_fill(item, "- ", "  ") for item in text))
        elif lines[0].startswith(("|", "#", "!", "<", "```")):
            made.append(block)
        else:
            made.append(_fill(block, "", ""))
    return made


def _fill(text: str, first: str, later: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def write(source: Path, target: Path = PAGE) -> Path:
    """Write the page; returns its path."""
    content = json.loads(source.read_text(encoding="utf-8"))
    target.write_text(page(content, others()), encoding="utf-8")
    return target


def _batch(book: Book, logits: str = "all") -> str:
    found = t.crossover(book, logits)
    return "-" if found is None else f"{found:.1f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{number(value / MS)} ms"


def claims(book: Book) -> list[str]:
    """What to conclude, a line each; README has the same lines."""
    errors = t.errors(book)
    loop, grouped = (t.experts_name("olmoe-1b-7b", 4, how) for how in ("eager", "grouped_mm"))
    tokens = [t.per_token(book, name) or 0.0 for name in (loop, grouped)]
    steps = [book.p50("step_unprofiled", name=n, phase="decode") or 0.0 for n in (loop, grouped)]
    still = book.p50("hdbi", name=grouped, phase="decode")
    sdpa = [
        book.p50("step_unprofiled", name=n, phase="prefill") or 0.0 for n in t.ATTENTION.values()
    ]
    index = [book.p50("hdbi", name=n, phase="prefill") for n in t.ATTENTION.values()]
    hybrid = [
        [book.p50(metric, name=n, phase="decode") for n in t.HYBRID.values()]
        for metric in ("step_unprofiled", "orchestration", "device_busy")
    ]
    slow = [
        [
            book.p50("step_unprofiled", name=f"gpt2-slow-{load}-{mode}", phase="decode") or 0.0
            for load in ("pinned", "nice0")
        ]
        for mode in ("eager", "graph")
    ]
    return [
        f"- A step's time as one CUDA graph is foretold from an eager run alone: over {len(errors)} "
        f"measured cases (GPT-2, Llama-3.2-1B, OLMoE) the median error is {100 * median(errors):.1f} %, "
        f"the largest {100 * max(errors):.1f} %, and {t.within(book)} of {len(errors)} lie within the bounds.",
        f"- GPT-2 (prompt 512) turns from host-bound to device-bound at batch "
        f"{_batch(book)} (paper: near 8); with the last position's logits only, which is what "
        f"serving needs, at {_batch(book, 'last')}.",
        f"- A mixture of experts as a host loop makes {number(tokens[0])} launches a token (OLMoE, batch "
        f"4); as grouped products {number(tokens[1])}, and a decode step takes {_ms(steps[1])}, not "
        f"{_ms(steps[0])}. HDBI is {number(still)} even then: decode stays host-bound.",
        f"- SDPA makes a prefill of Llama-3.2-1B {sdpa[0] / sdpa[1]:.1f} times as fast while HDBI falls "
        f"from {number(index[0])} to {number(index[1])}: HDBI says where to look, it is no goal.",
        f"- Graphs with fused kernels (the hybrid runtime) take LLaMA-2-7B's decode step from "
        f"{_ms(hybrid[0][0])} to {_ms(hybrid[0][1])}: T_Orchestration goes from {_ms(hybrid[1][0])} to "
        f"{_ms(hybrid[1][1])}, device busy time from {_ms(hybrid[2][0])} to {_ms(hybrid[2][1])}.",
        f"- With half of a core the eager decode step of GPT-2 takes {slow[0][1] / slow[0][0]:.1f} times "
        f"as long, as graphs {slow[1][1] / slow[1][0]:.2f} times.",
    ]


def _head(book: Book, _beside: Others) -> str:
    about = book.content["environment"]
    versions = about["versions"]
    listed = "\n".join(claims(book))
    return f"""# The papers' tables on an NVIDIA H200, and predictions beside measurements

<!-- Written by `benchmarks/study.py render`; change that, not this page. -->

"The paper" is TaxBreak (arXiv:2603.12465); the hybrid runtime is held against arXiv:2604.23467. Ours: one
{about["gpu"]}, driver {about["driver"]}, host "{about["cpu"]}" with {about["cpu_count"]} cores (a virtual machine),
torch {versions["torch"]}, transformers {versions["transformers"]}, random weights of real sizes, bf16. Recorded in two
sessions by `benchmarks/study.py record` (commits {book.content["commit"]}). A cell is a median with its spread (p5 to
p95; of fewer than ten samples the least and the largest) and the number of samples: steps, launches or requests.
Step times are un-profiled; T_DeviceActive, T_Orchestration and HDBI are of profiled steps. All rows with their samples:
`benchmarks/results/study-nvidia-h200.json`. Definitions: [measurement.md](measurement.md).

What to conclude:

{listed}

What not to conclude: absolute host times of this virtual machine are not those of another host. They come in two
speeds here (see [9](#9-validity)), the device's do not."""


def _floor(book: Book, _beside: Others) -> str:
    of = {"item": 1, "launch_api": "cudaLaunchKernel"}
    start, end, cost = (
        (book.p50("launch_floor", definition=d, **of) or 0.0) / US
        for d in (
            "api_start_to_kernel_start",
            "api_end_to_kernel_start",
            "unsynchronised_host_cost",
        )
    )
    return f"""## 1. Launch floor

An empty kernel, by launch API. The paper: 4.503 and 4.452 us on an H200 NVL.

{t.floors(book)}

Ours is larger by the call itself. From the end of the call to the kernel the device needs {number(end)} us; before that
the call takes {number(start - end)} us under the profiler. Without it, one call in a row of them costs the host
{number(cost)} us (through `ctypes`, whose own cost is in it). So the device's part is not what separates us from the
paper; the host's is: a virtual machine against the paper's host, and how warm the call's code is (9: in tight loops the
floor is lower). How much is due to which cannot be told on one host: open. The definition decides as much as the
machine does: between the first and the third lies a factor of {number((book.p50("launch_floor", definition="annotation_to_kernel_start", **of) or 0) / US / end)}."""


def _gpt2(book: Book, beside: Others) -> str:
    low, high = t.flat(book)
    turns = Book(beside.batches)
    spread = turns.p50("orchestration_max_to_min", phase="prefill")
    passes = t.half(turns, [t.turns_name(n) for n in t.BATCHES])
    traces = {row["n"] for row in turns.all("hdbi", phase="prefill")}
    one = {"name": t.gpt2_name(1), "phase": "prefill"}
    launches = book.p50("launches", **one) or 0.0
    each = (book.p50("launch_path", **one) or 0.0) / max(launches, 1) - PAPER_FLOOR_NS
    extra = launches * each
    device = [
        (book.p50("device_active", name=t.gpt2_name(n), phase="prefill") or 0.0)
        / MS
        / float(paper[0])
        for n, paper in t.PAPER_GPT2.items()
    ]
    return f"""## 2. GPT-2, prompt 512: from host-bound to device-bound

![HDBI by batch, ours and the paper's ends](images/study-gpt2.png)

Logits of every position, as in the paper's forward:

{t.gpt2(book)}

Logits of the last position only:

{t.gpt2(book, "last")}

HDBI passes 0.5 at batch {_batch(book)} (paper: near 8); with the last position's logits only at
{_batch(book, "last")}. The shape is the paper's: T_DeviceActive grows with the batch, T_Orchestration does not follow it.
Ours lies between {number(low)} and {number(high)} ms, above the paper's 5.04 to 5.52. The launch floor makes up
{number(extra / MS)} ms of the difference ({number(launches)} launches, {number(each / US)} us each above the paper's
floor); the highest values are of small batches recorded while the host was in its slower mode (9), which has nothing to
do with the batch. T_DeviceActive is {number(device[0])} (batch 1) and {number(device[1])} (batch 16) of the paper's: GPU,
library and driver differ.

All batches again, logits of every position, this time
[in turns](collector.md#in-turns): {" or ".join(map(str, sorted(traces)))} traces each, trace by trace on one CPU, so that all met the same speeds of the host
(`benchmarks/collector.py --part batches`, commit {beside.batches["commit"]}). The largest median T_Orchestration is
{number(spread)} times the least; HDBI passes 0.5 at batch {"-" if passes is None else f"{passes:.1f}"}.

{t.gpt2_in_turns(turns)}"""


def _experts(book: Book, _beside: Others) -> str:
    dense = [
        (t.per_token(book, t.experts_name(m, 4, None)) or 0.0) / paper
        for m, paper in (("llama-3.2-1b", 847.5), ("llama-3.2-3b", 1536.9))
    ]
    fewer = [
        (t.per_token(book, t.experts_name(m, 4, "eager")) or 0.0)
        / (t.per_token(book, t.experts_name(m, 4, "grouped_mm")) or 1.0)
        for m in ("olmoe-1b-7b", "qwen1.5-moe-a2.7b")
    ]
    decode = [
        value
        for row in book.all("hdbi", item=3, phase="decode")
        if row["parameters"].get("experts") == "eager"
        for value in row["samples"]
    ]
    return f"""## 3. Dense models and mixtures of experts

Prompt 2,048. Launches for each of ten output tokens: a prefill and nine decode steps over ten (a prefill and two decode
steps were recorded; the host loop's decode steps differ by their routing).

{t.experts(book)}

- Dense: {number(dense[0])} and {number(dense[1])} of the paper's launches, the same share for both models: this
  transformers launches fewer kernels a layer.
- Experts as a host loop: the paper's order of magnitude, and its HDBI for decode ({number(min(decode))} to
  {number(max(decode))}; paper 0.10 to 0.15). Launches grow with the batch there, because each expert that is hit is
  launched alone; a random router hits more of them than a trained one. Qwen's 60 experts lie above the paper, OLMoE's 64
  below: which experts are hit is the router's, and ours is random. Open until trained weights are measured.
- Grouped products (this transformers' default) make {number(fewer[0])} (OLMoE) and {number(fewer[1])} (Qwen) times fewer
  launches, and their number no longer depends on the batch. This is what the newer library changed; the paper's
  conclusion that a mixture makes 8 to 11 times the launches of a dense model holds for the host loop only."""


def _families(book: Book, _beside: Others) -> str:
    return f"""## 4. Launch cost above the floor, by kernel family

A sample is one kernel identity: the median of its replay less the floor of its launch API, in us.

{t.families(book)}

The order scan, elementwise, reduce, nvjet GEMM is the paper's, and so is the size of elementwise and GEMM. What is not:
the paper's dearest family, GEMMs of cuBLAS outside nvjet (1.88 us). On this library nearly every GEMM is an nvjet kernel;
what remains (`splitKreduce`, one CUTLASS kernel) is no comparable set. Values below zero are kernels that start sooner
than the empty one: both are medians of blocks among all others', each with one unsampled call before it, and the
floor moves by more than that with the way of sampling alone (9). Neighbours in the order change places between
recordings ([decision 5](decisions/0005-replay-in-warm-blocks.md)); its ends do not."""


def _attention(book: Book, _beside: Others) -> str:
    return f"""## 5. Better in everything, and HDBI falls: eager attention against SDPA

{t.attention(book)}

Less device time, less orchestration, fewer launches, a shorter step; HDBI falls in both phases, because the device's
work shrank more than the host's. A lower HDBI is no regression: it says that the next gain lies with the host. Compare
times; read HDBI to decide where to look. (One trace each, of two sessions.)"""


def _slow(book: Book, _beside: Others) -> str:
    return f"""## 6. The CPU's effect, the same GPU

GPT-2, batch 1, prompt 512. The launching thread is pinned to one core and shares it with busy processes.

{t.slow_host(book)}

Foretold from the run alone on the core, by `cpu-faster:SHARE`; the share is what the scheduler's weights leave. The
scheduler gives turns of some milliseconds, so the mean is what to compare:

{t.slow_predictions(book)}

The paper: a host with faster single-thread performance takes 10 to 29 % less time. What that would be here, foretold
from each eager run:

{t.faster_host(book)}

What can be shown on one host: orchestration and step time grow with the time that the launching core is taken away, in
proportion where the step is host-bound; a step of graphs does not care. What cannot: another CPU is not a slower
clock. Caches, memory and the path to the GPU change with it, and a competing process takes turns, where a slower core
is slow throughout. The paper's numbers are of two hosts; ours are a model of one, and say so."""


def _hybrid(book: Book, beside: Others) -> str:
    hybrid = beside.hybrid
    launches, busy = (
        [book.p50(metric, name=name, phase="decode") for name in t.HYBRID.values()]
        for metric in ("launches", "device_busy")
    )
    union = book.p50("hdbi_busy", name=t.HYBRID["hybrid"], phase="decode")
    eager = Book(hybrid).one(
        "itl_ms", system="transformers", model="llama-2-7b", mode="eager", capture="quiet"
    )
    gaps = eager["n"] if eager else 0
    return f"""## 7. The hybrid runtime: which account the graphs removed

![Decode steps by account: mixtures of experts and the hybrid runtime](images/study-accounts.png)

{t.hybrid_accounts(book)}

`framework`, `library` and `launch` are gone; one graph launch stands for {number(launches[0])} launches. What is left in
`python` is the thread polling for the token while the device works: hidden, as the exposed column says. The device is
busy for {_ms(busy[1])}, not {_ms(busy[0])}: fused kernels read the same weights with fewer gaps and passes. Its
T_DeviceActive, a sum over kernels, is larger than that and than the step itself, because a kernel may begin while the one
before it drains (programmatic dependent launch); HDBI by the union of device time is {number(union)}. The eager step's
T_Orchestration exceeds its un-profiled time: it is a sum of costs taken under the profiler (9).

TTFT by prompt length and gaps between tokens, LLaMA-2-7B, batch 1, without profiler (`benchmarks/hybrid.py`, commit
{hybrid["commit"]}). The paper, on an H100: TTFT up to -66 %, P99 per token -43.5 %, both against eager.

{t.hybrid_ttft(hybrid)}

{t.hybrid_ttft_tail(hybrid)}

Of so few requests the P99 is the largest or nearly so. The gain in TTFT is largest for short prompts, where the host is all there is, and smallest for 500 tokens, where the
device has work of its own. Eager's p99 is that of {gaps} gaps and has outliers of the host in it. The p99 of a token
was measured at one prompt length (256), not at each."""


def _predictions(book: Book, _beside: Others) -> str:
    errors = t.errors(book)
    assumed = prediction.GAPS["NVIDIA H200"].mean_ns
    phases = [100 * median(t.errors(book, phase)) for phase in ("prefill", "decode")]
    gaps = [row["p50"] for row in book.all("graph_gap", of="mean")]
    decode = [100 * (ratio - 1) for ratio in t.busy_ratio(book, "decode")]
    tiny = {row["parameters"]["nodes"]: row["p50"] for row in book.all("graph_replay")}
    each = (tiny[1000] - tiny[100]) / 900 if {100, 1000} <= set(tiny) else 0.0
    replay = [abs(v) for row in book.all("replay_error") for v in row["samples"]]
    same = book.all("events_that_differ")
    events = sum(row["parameters"]["events"] for row in same)
    differ = sum(row["p50"] for row in same)
    compiled = [book.p50(f"compile_{key}") for key in ("low", "high", "measured")]
    fit = [abs(v) for row in book.all("fit_error") for v in row["samples"]]
    return f"""## 8. Predictions that come true

`analyzer predict RUN --what graphs` on the eager run alone; then the same model with each step captured as a CUDA graph
(`collector record --mode graph`), timed without the profiler. The kernels are the same: of {number(events)} device events
of the steps compared, {number(differ)} differ in name.

![Predicted and measured step times as graphs](images/study-predictions.png)

{t.predictions(book)}

Median error {100 * median(errors):.1f} % (prefill {phases[0]:.1f} %, decode {phases[1]:.1f} %), largest
{100 * max(errors):.1f} %; {t.within(book)} of {len(errors)} within the bounds. The gap between nodes was fixed
before: {number(assumed)} ns, from one older trace of GPT-2. With nothing changed the schedule gives the recorded steps
back within {_percent(max(replay))}; with the host scaled, the un-profiled steps within {_percent(max(fit))} (one
number is fitted there, so that proves nothing by itself).

What limits it:

{t.nodes(book)}

- The gap of these graphs is {number(min(gaps))} to {number(max(gaps))} ns in the mean, not {number(assumed)}: prefill is foretold too
  long by about the difference. A run with graph replays of its own uses its own gap.
- In a decode graph the same kernels are busy {min(decode):.1f} to {max(decode):.1f} % longer than in the eager run, where
  the device rests between them; that and the gap cancel in part, so decode is foretold better than it deserves.
- A node that does next to nothing costs {number(each)} ns in a graph, kernel and gap together (below), so the number of
  nodes matters even without a host.

{t.graph_launch(book)}

`cpu-faster` is held against measurements in 6. `compile` gives bounds only: {_ms(compiled[0])} to {_ms(compiled[1])} for
GPT-2's prefill (the package's sample, all logits, profiled); compiled it took {_ms(compiled[2])}. That holds, and says
little. `fuse` was not measured: no claim is made for it."""


def _percent(value: float) -> str:
    """A small share; below a hundredth of a per cent it says only that."""
    return f"{100 * value:.2f} %" if value >= 1e-4 else "0.01 %"


def _validity(book: Book, _beside: Others) -> str:
    worst, steps = t.ledger_difference(book)
    found = [value for _, _, value in t.inflation(book)]
    ratios = t.orchestration_ratios(book)
    python = [
        book.p50("account", name=f"gpt2-fresh-{n}", phase="decode", account="python") or 0.0
        for n in (1, 2, 3)
    ]
    slower = max(python) / max(min(python), 1)
    bare = book.one("step_unprofiled", name="gpt2-bs1-s512-eager", phase="decode")
    low, high = t.spread(bare) if bare else (0.0, 0.0)
    return f"""## 9. Validity

**The ledger adds up.** Over {steps} steps of all runs the accounts differ from the step's wall time by {worst} ns at
most.

**The profiler** makes a step take {min(found):.1f} to {max(found):.1f} times as long (median {median(found):.1f}, {len(found)}
phases of runs). T_Orchestration is taken under it. Beside the un-profiled time of decode steps, in which the host works
nearly all the time, it is between
{number(min(ratios))} and {number(max(ratios))} times that time:

{t.orchestration_against_host(book)}

**Three fresh processes.** Device times repeat within a per cent and un-profiled steps within {_range(book)} %.
T_Orchestration does not: in one process of three every account of the profiled steps, Python's own too, took
{number(slower)} times as long. A few recordings of other runs show the same (GPT-2, batch 1 and 2): it begins with a
recording and ends within it, and un-profiled steps have it too (GPT-2, batch 1: {_ms(low)} to {_ms(high)}). So it is the
host, not the profiler: each CPU of the virtual machine changes its speed by a factor of two, on its own, as was found since
([decision 7](decisions/0007-traces-at-one-speed-of-the-host.md)). Recordings in turns on one CPU agree closely (there); others
need a look at their spread.

{t.repeatability(book)}

**How samples are taken.** The kernel replay of GPT-2's op calls, fifty samples each, in random order one by one, in
blocks of five, and in tight loops. Interleaving finds code and caches cold, a tight loop warm; a real step lies between,
and the floor moves along.

{t.blocks(book)}

**Clocks** at the end of each recording: {t.clocks(book)}. The GPU's clock did not move, so differences between sessions
are the host's."""


def _range(book: Book) -> str:
    found: list[float] = []
    for phase in ("prefill", "decode"):
        of = [
            book.p50("step_unprofiled", name=f"gpt2-fresh-{n}", phase=phase) or 0.0
            for n in (1, 2, 3)
        ]
        found.append(100 * (max(of) - min(of)) / median(of) if median(of) else 0.0)
    return f"{max(found):.0f}"


def _end(book: Book, _beside: Others) -> str:
    failed = book.content["not_recorded"]
    listed = "\n".join(f"- `{f['name']}`: {f['reason']}" for f in failed)
    lacking = (
        f"Not recorded:\n\n{listed}" if failed else "Everything that was planned was recorded."
    )
    return f"""## To do it again

```
python benchmarks/study.py record --out runs --budget 500     # a GPU host; goes on where it stopped
python benchmarks/study.py analyse runs                       # anywhere
python benchmarks/study.py render
```

{lacking} Four of the runs are in `benchmarks/runs`; the test of this page regenerates it from the result file."""


# Plots ------------------------------------------------------------------------------------------


def plots(content: dict[str, Any], folder: Path = IMAGES) -> list[Path]:
    """Draw the page's figures; returns their paths."""
    book = Book(content)
    made: list[Path] = []
    for name, chart in (
        ("study-gpt2", gpt2_chart(book)),
        ("study-predictions", prediction_chart(book)),
        ("study-accounts", account_chart(book)),
    ):
        path = folder / f"{name}.png"
        chart.save(str(path), scale_factor=2)
        made.append(path)
    return made


def gpt2_chart(book: Book) -> Any:
    """HDBI by batch: both kinds of logits, and the paper's two ends."""
    import altair as alt  # only where figures are drawn

    shown = {"all": "all logits", "last": "last logits only"}
    rows = [
        {"batch": batch, "HDBI": value, "run": shown[kind]}
        for kind in shown
        for batch in t.BATCHES
        if (value := book.p50("hdbi", name=t.gpt2_name(batch, kind), phase="prefill")) is not None
    ]
    rows += [
        {"batch": batch, "HDBI": float(values[2]), "run": "the paper"}
        for batch, values in t.PAPER_GPT2.items()
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("batch:Q", scale=alt.Scale(type="log", base=2), title="batch (prompt 512)"),
        y=alt.Y("HDBI:Q", scale=alt.Scale(domain=[0, 1]), title="HDBI: 0 host, 1 device"),
        color=alt.Color(
            "run:N",
            title=None,
            scale=alt.Scale(
                domain=[*shown.values(), "the paper"], range=["#0072B2", "#E69F00", "#666C75"]
            ),
        ),
    )
    half = alt.Chart(alt.Data(values=[{"y": 0.5}])).mark_rule(strokeDash=[4, 4]).encode(y="y:Q")
    # Of the paper only the two ends are known: no line between them.
    ours = base.transform_filter("datum.run != 'the paper'").mark_line()
    return (half + ours + base.mark_point(size=60, filled=True)).properties(
        width=520, height=260, background="white"
    )


SHOWN = {
    "OLMoE, host loop (2,048)": "olmoe-1b-7b-bs1-s2048-eager",
    "OLMoE, grouped products (2,048)": "olmoe-1b-7b-bs1-s2048-grouped_mm",
    "OLMoE, grouped, as graphs (512)": "olmoe-bs1-s512-grouped_mm-graph",
    "LLaMA-2-7B, eager (100)": t.HYBRID["eager"],
    "LLaMA-2-7B, hybrid (100)": t.HYBRID["hybrid"],
}


def account_chart(book: Book) -> Any:
    """Where the launching thread is in a decode step, by account; exposed in full colour."""
    import altair as alt  # only where figures are drawn

    from webapp import theme

    rows: list[dict[str, Any]] = []
    for label, name in SHOWN.items():
        for order, account in enumerate(theme.ACCOUNTS):
            of = {"name": name, "phase": "decode", "account": account}
            whole, bare = book.p50("account", **of), book.p50("exposed", **of)
            if whole is None or bare is None:
                continue
            for part, value in (("exposed", bare), ("hidden", whole - bare)):
                rows.append(
                    {"run": label, "account": account, "ms": value / MS, "part": part}
                    | {"order": 2 * order + (part == "hidden")}
                )
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(size=22)
        .encode(
            x=alt.X(
                "ms:Q",
                title="a decode step, batch 1 (prompt), ms, profiled; pale: the GPU was busy",
            ),
            y=alt.Y("run:N", sort=list(SHOWN), title=None, axis=alt.Axis(labelLimit=260)),
            color=alt.Color(
                "account:N",
                title="the host is in",
                scale=alt.Scale(domain=list(theme.ACCOUNTS), range=list(theme.ACCOUNTS.values())),
            ),
            opacity=alt.Opacity(
                "part:N",
                legend=None,
                scale=alt.Scale(domain=["exposed", "hidden"], range=[1, theme.HIDDEN]),
            ),
            order="order:Q",
        )
        .properties(width=560, height=150, background="white")
    )


def prediction_chart(book: Book) -> Any:
    """Predicted with bounds beside measured, and the eager step that it was foretold from."""
    import altair as alt  # only where figures are drawn

    rows: list[dict[str, Any]] = []
    for p in t.predicted_graphs(book):
        label = f"{p['name'].removesuffix('-eager')}, {p['phase']}"
        values = {"measured as graphs": p["measured"]["p50"], "predicted": p["predicted"]}
        values["eager step"] = p["base"]
        rows += [{"run": label, "what": k, "ms": v / MS} for k, v in values.items()]
        rows[-2] |= {"low": p["low"] / MS, "high": p["high"] / MS}
    data = alt.Chart(alt.Data(values=rows))
    known = [value for row in rows for value in (row["ms"], row.get("low")) if value]
    scale = alt.Scale(
        type="log", nice=False, domain=[min(known, default=1) * 0.8, max(known, default=10) * 1.25]
    )
    y = alt.Y("run:N", sort=None, title=None, axis=alt.Axis(labelLimit=260))
    x = alt.X("ms:Q", scale=scale, title="step, ms")
    colour = alt.Color(
        "what:N",
        title=None,
        scale=alt.Scale(
            domain=["predicted", "measured as graphs", "eager step"],
            range=["#0072B2", "#D55E00", "#8C8C8C"],
        ),
    )
    bounds = (
        data.transform_filter("datum.what == 'predicted'")
        .mark_rule(strokeWidth=3, opacity=0.35, color="#0072B2")
        .encode(y=y, x=alt.X("low:Q", scale=scale, title="step, ms"), x2="high:Q")
    )
    points = data.mark_point(size=55, filled=True).encode(y=y, x=x, color=colour)
    return (bounds + points).properties(
        width=520, height=22 * max(len(rows) // 3, 1), background="white"
    )
