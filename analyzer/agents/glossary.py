"""What a word in an answer means, in a sentence or two; `docs/measurement.md` has the whole."""

from __future__ import annotations

from analyzer.attribution.classification import ACCOUNTS
from analyzer.errors import AnalyzerError
from analyzer.reports.verdict import ACCOUNT_MEANS

_TERMS = {
    "HDBI": "Host-Device Balance Index (TaxBreak, arXiv:2603.12465): T_DeviceActive / "
    "(T_DeviceActive + T_Orchestration). 0: all time is the host's; 1: all is the device's.",
    "T_DeviceActive": "Sum of the durations of all kernels of the steps (device_active_ns).",
    "T_Orchestration": "What the host spent to get the kernels launched: dFT + dCT + dKT "
    "(orchestration_ns).",
    "dFT": "Framework translation: Python before the operator and the operator up to the launch "
    "call, less the library's part (ft_ns).",
    "dCT": "CUDA-library translation: host code of cuBLAS, cuDNN and the like before the launch "
    "(ct_ns).",
    "dKT": "Launch path: launches times the launch floor (kt_ns).",
    "launch floor": "From the start of the launch call to the start of an empty kernel, measured "
    "on the same host, or the least of the trace (launch_floor_ns, floor_source).",
    "TKLQT": "Launch and queueing time (SKIP, arXiv:2504.11750): T_launch added up over all "
    "launches (tklqt_ns).",
    "T_launch": "From the start of a launch call to the start of its first kernel.",
    "ledger": "Host time of the launching threads by account; each nanosecond of a step has one "
    "owner. Exposed: the part while the device was idle.",
    "exposed": "Host time while no device was busy: what a faster host could win at most.",
    "device idle": "The step's window less the union of all device events in it (device_idle_ns).",
    "device busy": "Length of the union of all device events, by device, then added up.",
    "kernel identity": "Raw name, grid, block, shared memory, operator and its shapes (kernel_id).",
    "clean launch": "A launch on a stream that was seen idle at the call: its T_launch holds no "
    "queueing.",
    "orphan": "A device event whose launch call is not in the trace.",
    "step": "One prefill or decode pass, as the engine, the recorder or the profiler marked it, "
    "else as the launches repeat, else the whole trace.",
    "warm-up": "A slow first repetition; in no median.",
    "TTFT": "Time to the first token, without the profiler.",
    "TPOT": "Time per output token after the first, without the profiler.",
    "ITL": "Inter-token latency: the time between two output tokens, without the profiler.",
    "match": "How a kernel replayed alone was found in the trace: exact, substring, most_frequent "
    "or unmatched.",
    "judged": "False where a figure rests on evidence that is damaged: lost events, clocks that "
    "disagree, a file that was cut. `checks` names what was found, what it touches and the remedy.",
    "profiled": "Taken under the profiler, which slows the host: never a latency.",
    **{name: f"Account of the ledger: {ACCOUNT_MEANS[name]}." for name in ACCOUNTS},
}


def terms() -> list[str]:
    """Every word that `explain` knows."""
    return list(_TERMS)


def explain(term: str) -> str:
    """What a word means.

    Raises:
        AnalyzerError: It is not known here.
    """
    wanted = _folded(term)
    for name, meaning in _TERMS.items():
        if _folded(name) == wanted:
            return meaning
    raise AnalyzerError(f"{term[:60]!r} is not explained here; known are {', '.join(_TERMS)}.")


def _folded(term: str) -> str:
    return term.casefold().replace("_", " ").replace("-", " ").strip().removesuffix(" ns")
