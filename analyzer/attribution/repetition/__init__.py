"""Steps of a trace that nothing marks: where the launches of the launching thread repeat.

The sequence is made of launches and synchronising calls, told apart by the names of kernel and op,
never by sizes: a cache that grows leaves it as it is. All work grows with the launches (times their
logarithm), not with their square.
"""

from analyzer.attribution.repetition.found import Found, find_repetition

__all__ = ["Found", "find_repetition"]
