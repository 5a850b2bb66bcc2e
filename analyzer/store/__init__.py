"""Where runs are kept: a DuckDB file, or a lake of many writers, behind one protocol."""

from pathlib import Path

from analyzer.store.file import FileStore
from analyzer.store.lake import LakeStore
from analyzer.store.lake_file import SUFFIX
from analyzer.store.store import DEFAULT_STORE, Connection, Store

__all__ = ["DEFAULT_STORE", "Connection", "Store", "open_store"]


def open_store(place: Store | Path | str = DEFAULT_STORE) -> Store:
    """The store that a path names, there or not: a lake if it ends in .toml, else a DuckDB file."""
    if not isinstance(place, (str, Path)):
        return place
    path = Path(place)
    return LakeStore(path) if path.suffix == SUFFIX else FileStore(path)
