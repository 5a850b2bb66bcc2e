"""Errors of the analyzer that a user can mend; a command prints them as one line and answers 2."""

from schemas.errors import HostboundError


class AnalyzerError(HostboundError):
    """Something about the input, the store or a request; the message says what to do."""


class Unreachable(AnalyzerError):
    """PostgreSQL or a lake's data did not answer, or a commit lost against others: try again."""


def first_line(error: BaseException) -> str:
    """What an error of a library or of the system says, as one sentence of one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if line.endswith(".") else line + "."
