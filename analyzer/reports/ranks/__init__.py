"""What ranks of one job wait for, and what waiting less would win."""

from analyzer.reports.ranks.waits import RankCharge, RankFigures, RankReport, rank_report, waits_of

__all__ = ["RankCharge", "RankFigures", "RankReport", "rank_report", "waits_of"]
