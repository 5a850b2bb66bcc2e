"""Errors of the analyzer that a user can mend; a command prints them as one line and answers 2."""

from schemas.errors import HostboundError


class AnalyzerError(HostboundError):
    """Something about the input, the store or a request; the message says what to do."""


class Unreachable(AnalyzerError):
    """PostgreSQL or a lake's data did not answer, or a commit lost against others: try again."""
