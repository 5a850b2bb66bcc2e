"""What told the steps of a run, in words: its marks, or how its launches repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analyzer.attribution.step_dialects import ENGINES
from analyzer.queries.costs import Step
from analyzer.queries.records import Trace

_MARKED_BY = {**ENGINES, "hostbound": "the collector's marks", "profiler": "ProfilerStep"}
_WHOLE = "none, the whole trace is one"


def steps_told(traces: Sequence[Trace], steps: Sequence[Step], step_annotation: str) -> str:
    """How many steps a run has and what told them, e.g. "24, SGLang".

    Args:
        step_annotation: The patterns that were asked for, comma separated.
    """
    by_source: dict[str, list[Trace]] = {}
    for trace in traces:
        if trace.step_source:
            by_source.setdefault(trace.step_source, []).append(trace)
    parts: list[str] = []
    for source, told in by_source.items():
        ids = {trace.trace_id for trace in told}
        own = [step for step in steps if step.trace_id in ids]
        if source == "repetition":
            parts.append(_repetition(told, own))
        elif source == "trace":
            parts.append("none, each trace is one as a whole" if len(told) > 1 else _WHOLE)
        else:
            parts.append(f"{len(own)}, {_MARKED_BY.get(source, step_annotation)}")
    return "; ".join(parts)


def _repetition(traces: Sequence[Trace], steps: Sequence[Step]) -> str:
    phases = Counter(step.phase for step in steps)
    counts = ", ".join(f"{n} {phase}" for phase, n in phases.items())
    covered = [trace.step_coverage for trace in traces if trace.step_coverage is not None]
    coverage = f", {100 * min(covered):.0f} % of launches" if covered else ""
    warm_up = sum(step.is_warm_up for step in steps)
    named = f", {warm_up} of them warm-up" if warm_up else ""
    return f"found by repetition: {counts}{coverage}{named}"
