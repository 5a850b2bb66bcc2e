"""Runs against a base: a verdict, what changed, whether it is shown, and a gate for CI."""

from analyzer.reports.comparison.compare import compare, compared_run, rests_on_touched

__all__ = ["compare", "compared_run", "rests_on_touched"]
