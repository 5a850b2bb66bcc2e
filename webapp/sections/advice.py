"""What dominates a run's cost and what to try, with the numbers behind it."""

from __future__ import annotations

from analyzer.queries.costs import StepTotals
from analyzer.reports.bands import reading
from webapp import format

# A run of fewer launches has little to win by a graph.
MANY_LAUNCHES = 50


def advice(part: StepTotals, floor_ns: int | None) -> list[str]:
    """What dominates and what the method suggests, with the numbers behind it."""
    if reading(part.hdbi) == "device-bound":
        return [
            f"**Device work dominates**: {format.duration(part.device_active_ns)} of kernels "
            f"against {format.duration(part.orchestration_ns)} of orchestration. Faster "
            "kernels, smaller types or fewer bytes pay; host-side work is mostly hidden."
        ]
    if part.orchestration_ns is None or not known_costs(part):
        return ["Without a launch floor the shares of the host's cost are unknown."]
    found = (
        largest_cost(part, part.orchestration_ns, floor_ns),
        missing_graph(part),
        most_exposed(part),
    )
    return [line for line in found if line]


def known_costs(part: StepTotals) -> dict[str, int]:
    """The parts of T_Orchestration that are known."""
    costs = {"ft_ns": part.ft_ns, "ct_ns": part.ct_ns, "kt_ns": part.kt_ns}
    return {name: ns for name, ns in costs.items() if ns is not None}


def largest_cost(part: StepTotals, orchestration_ns: int, floor_ns: int | None) -> str:
    """The largest part of T_Orchestration."""
    each = (
        f"{format.count(part.launches)} launches, "
        f"{format.duration(orchestration_ns / max(part.launches, 1))} each"
    )
    costs = known_costs(part)
    worst = max(costs, key=lambda key: costs[key])
    cost = format.duration(costs[worst])
    share = format.share(costs[worst] / orchestration_ns) if orchestration_ns else format.UNKNOWN
    if worst == "ft_ns":
        return (
            f"**The software stack dominates**: dFT is {cost}, {share} of T_Orchestration "
            f"({each}). Try torch.compile, CUDA graphs, or a runtime with less Python and dispatch "
            "between launches; a faster CPU core helps in proportion."
        )
    if worst == "ct_ns":
        return (
            f"**Library translation dominates**: dCT is {cost}, {share} of T_Orchestration "
            f"({each}). Fewer and larger library calls, kernels chosen ahead of time, or CUDA "
            "graphs avoid it."
        )
    return (
        f"**The launch count dominates**: dKT is {cost}, {share} of T_Orchestration ({each}). Fuse "
        "kernels or replay a CUDA graph: each launch costs at least the floor of "
        f"{format.duration(floor_ns)}."
    )


def missing_graph(part: StepTotals) -> str | None:
    """That many launches could be one; None where there are few, or graphs already."""
    launches, kernels = part.launches, part.kernels
    if not kernels or part.graph_launches or launches <= MANY_LAUNCHES:
        return None
    return (
        f"No CUDA graph was replayed: {format.count(kernels)} kernels came from "
        f"{format.count(launches)} launches. A graph makes one launch of many."
    )


def most_exposed(part: StepTotals) -> str | None:
    """The account whose exposed time bounds what a change there can win."""
    exposed = {name: entry.exposed_ns or 0 for name, entry in part.ledger.items()}
    if not sum(exposed.values()):
        return None
    account = max(exposed, key=lambda name: exposed[name])
    return (
        f"The most that a change in **{format.plain(account)}** can win is its exposed time, "
        f"{format.duration(exposed[account])} of {format.duration(part.wall_ns)} host time."
    )
