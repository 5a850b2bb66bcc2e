"""What a trace can prove: findings about its events, and checks with a verdict each."""

from analyzer.attribution.evidence.check import Check
from analyzer.attribution.evidence.checks import check_trace
from analyzer.attribution.evidence.findings import check_events, check_links, check_times, found
from analyzer.attribution.evidence.material import Material

__all__ = [
    "Check",
    "Material",
    "check_events",
    "check_links",
    "check_times",
    "check_trace",
    "found",
]
