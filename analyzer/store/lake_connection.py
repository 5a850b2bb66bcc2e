"""Connections to a lake: DuckLake, its extensions, its keys, an attachment that a process keeps."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import duckdb

from analyzer.errors import AnalyzerError
from analyzer.store.lake_file import LakeFile, read_lake_file
from analyzer.store.sql_policy import quoted
from analyzer.store.store import Connection

EXTENSIONS_VARIABLE = "HOSTBOUND_DUCKDB_EXTENSIONS"
EXTENSIONS = ("ducklake", "postgres_scanner", "httpfs")
# Inserts up to so many rows stay in PostgreSQL until `maintain` writes them to Parquet.
INLINED_ROWS = 100
COMMIT_ATTEMPTS = 100

_readers: dict[tuple[str, int, int], Connection] = {}
_readers_lock = threading.Lock()


class NoCatalog(AnalyzerError):
    """Nothing was ever stored in this lake."""


def environment() -> dict[str, str]:
    """Variables of this process that another one needs to open a lake: keys, not more."""
    prefixes = ("AWS_", "PG", "HOME", EXTENSIONS_VARIABLE)
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def connect(
    db: Path,
    *,
    read_only: bool,
    create: bool = False,
    config: Mapping[str, str] | None = None,
    session: str = "hostbound",
) -> Connection:
    """Attach a lake and make it the default database.

    Args:
        create: Make the catalog if it is not there; one process at a time may (see `claim`).
        config: Settings of DuckDB, made when all is loaded and attached.
        session: Name of the PostgreSQL session (application_name).

    Raises:
        NoCatalog: There is none, and `create` was not asked for.
        AnalyzerError: The file is no lake file, an extension is missing.
        duckdb.Error: The catalog or the data cannot be reached.
    """
    lake = read_lake_file(db)
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    try:
        load_extensions(connection, (*EXTENSIONS,) if lake.in_s3 else EXTENSIONS[:2])
        if lake.in_s3:
            _use_keys(connection, lake, db)
        elif not read_only:
            _make_folder(Path(lake.data), db)
        catalog = quoted(f"ducklake:postgres:{lake.catalog} application_name='{session}'")
        options = [f"METADATA_SCHEMA {quoted(lake.schema)}", f"DATA_PATH {quoted(lake.data)}"]
        options += [f"CREATE_IF_NOT_EXISTS {str(create).lower()}"]
        if read_only:
            options += ["READ_ONLY"]
        else:
            options += [f"DATA_INLINING_ROW_LIMIT {INLINED_ROWS}"]
            connection.execute(f"SET ducklake_max_retry_count = {COMMIT_ATTEMPTS}")
        try:
            connection.execute(f"ATTACH {catalog} AS lake ({', '.join(options)})")
        except duckdb.InvalidInputException as error:
            if "does not exist" in str(error):
                raise NoCatalog(f"{db} names a lake that has no tables yet") from error
            raise
        connection.execute("USE lake")
        if config and config.get("enable_external_access") == "false":
            connection.execute(f"SET allowed_directories = [{quoted(lake.data)}]")
        # Last, as it forbids to set the others.
        for name, value in sorted(
            (config or {}).items(), key=lambda c: c[0] == "lock_configuration"
        ):
            connection.execute(f"SET {name} = {quoted(value)}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def reader(db: Path) -> Generator[Connection, None, None]:
    """A read-only connection of its own over an attachment that this process keeps.

    To attach takes a quarter of a second, a web page asks many questions. An attachment that lost
    its PostgreSQL is made anew.
    """
    key = (str(db.resolve()), db.stat().st_mtime_ns, os.getpid())
    try:
        cursor = _fresh_cursor(db, key)
    except duckdb.Error:
        with _readers_lock:
            _readers.pop(key, None)
        cursor = _fresh_cursor(db, key)
    with closing(cursor):
        yield cursor


def _fresh_cursor(db: Path, key: tuple[str, int, int]) -> Connection:
    with _readers_lock:
        if key not in _readers:
            _readers[key] = connect(db, read_only=True)
        cursor = _readers[key].cursor()
    cursor.execute("USE lake")
    snapshot(cursor)  # fails if PostgreSQL was restarted
    return cursor


def load_extensions(connection: Connection, names: tuple[str, ...] = EXTENSIONS) -> None:
    """Load DuckDB's extensions from a folder that is named, a package, or what is installed.

    Raises:
        AnalyzerError: One is nowhere; the message says where it may be had.
    """
    for name in names:
        file = _extension_file(name)
        try:
            connection.execute(f"LOAD {quoted(str(file))}" if file else f"LOAD {name}")
            continue
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
        if file is None:
            with suppress(duckdb.Error):
                connection.execute(f"INSTALL {name}")
                connection.execute(f"LOAD {name}")
                continue
        raise AnalyzerError(
            f"a lake needs DuckDB's extension {name}, which DuckDB {duckdb.__version__} here lacks "
            f"({reason}); pip install 'hostbound[fleet]', or name a folder that holds "
            f"{name}.duckdb_extension of this version in {EXTENSIONS_VARIABLE}."
        )


def _extension_file(name: str) -> Path | None:
    file = f"{name}.duckdb_extension"
    if folder := os.environ.get(EXTENSIONS_VARIABLE):
        return next(iter(sorted(Path(folder).rglob(file))), Path(folder) / file)
    package = importlib.util.find_spec(f"duckdb_extension_{name}")
    for place in (package.submodule_search_locations or []) if package else []:
        found = Path(place) / "extensions" / f"v{duckdb.__version__}" / file
        if found.is_file():  # a package of another version would be refused
            return found
    return None


def _use_keys(connection: Connection, lake: LakeFile, db: Path) -> None:
    key, secret = (os.environ.get(f"AWS_{n}") for n in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    if not key or not secret:
        raise AnalyzerError(
            f"{db} keeps its data in {lake.data}, but AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "are not set; export them."
        )
    options = {"KEY_ID": key, "SECRET": secret, "REGION": lake.s3.region, "SCOPE": lake.data}
    options |= {"ENDPOINT": lake.s3.endpoint, "URL_STYLE": lake.s3.url_style}
    if token := os.environ.get("AWS_SESSION_TOKEN"):
        options["SESSION_TOKEN"] = token
    listed = ", ".join(f"{name} {quoted(value)}" for name, value in options.items())
    connection.execute(f"CREATE SECRET (TYPE s3, {listed}, USE_SSL {str(lake.s3.use_ssl).lower()})")


def _make_folder(folder: Path, db: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AnalyzerError(
            f"{folder}, where {db} keeps its data, cannot be made: {error.strerror}."
        ) from error


def snapshot(connection: Connection) -> int:
    """Number of the last commit."""
    return connection.execute("SELECT id FROM ducklake_current_snapshot('lake')").fetchall()[0][0]
