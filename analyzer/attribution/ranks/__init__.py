"""Traces of the ranks of one job as one run: clocks, collectives, who waited for whom."""

from analyzer.attribution.ranks.joined import JoinedRanks, join_ranks

__all__ = ["JoinedRanks", "join_ranks"]
