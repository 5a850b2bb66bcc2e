"""Kernel replay: the op calls of a run made again alone, and the empty kernel."""
