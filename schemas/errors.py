"""Errors that a user can mend: one line that says what was found, where, and what to do."""


class HostboundError(Exception):
    """Base of every error that a command prints as one line and answers with exit code 2."""


class RunDirectoryError(HostboundError):
    """A folder is not a run directory, is incomplete, or is of a version that is not known."""


class UploadError(HostboundError):
    """A server's address or token cannot be used, or a run cannot be sent to it."""
