"""What crosses a file or a package boundary: the run directory, its way to a server, the store's
tables."""

from schemas.errors import HostboundError, RunDirectoryError
from schemas.manifest import RUN_SCHEMA_VERSION, Environment, Manifest, TraceFile

__all__ = [
    "RUN_SCHEMA_VERSION",
    "Environment",
    "HostboundError",
    "Manifest",
    "RunDirectoryError",
    "TraceFile",
]
