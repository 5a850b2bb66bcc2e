"""From files to the rows of a store."""

from analyzer.ingest.ingested import Ingested
from analyzer.ingest.load import already_stored, ingest, write

__all__ = ["Ingested", "already_stored", "ingest", "write"]
