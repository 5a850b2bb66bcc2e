"""Answers about runs: report, comparison, prediction."""
