"""Errors of the collector that a user can mend; a command prints them as one line and answers 2."""

from schemas.errors import HostboundError


class CollectorError(HostboundError):
    """Something about the request, the host or the workload; the message says what to do."""
