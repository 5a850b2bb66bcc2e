"""Traces of Ascend NPUs."""
