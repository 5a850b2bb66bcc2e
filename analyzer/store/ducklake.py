"""A store for a fleet: DuckLake, a catalog in PostgreSQL with Parquet files on disk or in S3.

A lake is named by a small TOML file. The tables, views and questions are those of a file store; any
number of processes may write at once, each its own run. `store/database.py` is the door to both.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from analyzer.errors import AnalyzerError
from analyzer.store import sql_tree

SUFFIX = ".toml"
EXTENSIONS_VARIABLE = "HOSTBOUND_DUCKDB_EXTENSIONS"
EXTENSIONS = ("ducklake", "postgres_scanner", "httpfs")
# Big tables: a file a run, so that one run is read without the others and goes with its file. The
# others are small: their files hold many runs once `maintain` has merged them.
PARTITIONED = ("ops", "calls", "device_events", "launches", "python_functions")
# Inserts up to so many rows stay in PostgreSQL until `maintain` writes them to Parquet.
INLINED_ROWS = 100
COMMIT_ATTEMPTS = 100
# How long a writer waits for another one of the same run.
CLAIM_PATIENCE_S = 120.0
# What a query of a person may read: nothing that reaches PostgreSQL or a file.
_CATALOGS = frozenset(("", "lake", "system", "temp"))

Connection = duckdb.DuckDBPyConnection


_readers: dict[tuple[str, int, int], Connection] = {}
_readers_lock = threading.Lock()


class NoCatalog(AnalyzerError):
    """Nothing was ever stored in this lake."""


class ObjectStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An S3-compatible store other than Amazon's own; keys come from AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY.
    """

    endpoint: str = "s3.amazonaws.com"  # host or host:port
    region: str = "us-east-1"
    url_style: str = "path"  # path | vhost
    use_ssl: bool = True


class Lake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a lake file says.

    Attributes:
        catalog: PostgreSQL connection string ("host=... dbname=... user=..."), without password.
        data: A folder that all processes see (relative to the lake file), or s3://bucket/prefix.
        schema: Schema of the catalog's tables in PostgreSQL.
    """

    catalog: str
    data: str
    schema: str = "hostbound"
    s3: ObjectStore = msgspec.field(default_factory=ObjectStore)

    @property
    def in_s3(self) -> bool:
        return self.data.startswith("s3://")


def environment() -> dict[str, str]:
    """Variables of this process that another one needs to open a lake: keys, not more."""
    prefixes = ("AWS_", "PG", "HOME", EXTENSIONS_VARIABLE)
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def is_lake(db: Path) -> bool:
    """Does the name of a store mean a lake?"""
    return db.suffix == SUFFIX


def read(db: Path) -> Lake:
    """Read a lake file.

    Raises:
        AnalyzerError: It is not there, cannot be read, or says something that no lake has.
    """
    try:
        found = msgspec.toml.decode(db.read_bytes(), type=Lake)
    except OSError as error:
        raise AnalyzerError(
            f"{db} cannot be read: {error.strerror}; docs/operations.md shows a lake file."
        ) from error
    except ImportError as error:  # Python 3.10 reads TOML with a package
        raise AnalyzerError(f"{db} cannot be read: pip install 'hostbound[fleet]'.") from error
    except msgspec.DecodeError as error:
        raise AnalyzerError(
            f"{db} is no lake file: {error}; docs/operations.md shows one."
        ) from error
    if "password" in found.catalog:
        raise AnalyzerError(
            f"{db} holds a password, which every SQL query could read; put it into ~/.pgpass or "
            "PGPASSWORD."
        )
    if not found.data.strip() or ("://" in found.data and not found.in_s3):
        raise AnalyzerError(f"{db}: data is {found.data!r}; give a folder or s3://bucket/prefix.")
    data = found.data.rstrip("/") if found.in_s3 else (db.parent / found.data).resolve()
    return msgspec.structs.replace(found, data=f"{data}/")


# -- connections


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
    lake = read(db)
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    try:
        load_extensions(connection, (*EXTENSIONS,) if lake.in_s3 else EXTENSIONS[:2])
        if lake.in_s3:
            _use_keys(connection, lake, db)
        elif not read_only:
            _make_folder(Path(lake.data), db)
        catalog = _quoted(f"ducklake:postgres:{lake.catalog} application_name='{session}'")
        options = [f"METADATA_SCHEMA {_quoted(lake.schema)}", f"DATA_PATH {_quoted(lake.data)}"]
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
            connection.execute(f"SET allowed_directories = [{_quoted(lake.data)}]")
        # Last, as it forbids to set the others.
        for name, value in sorted(
            (config or {}).items(), key=lambda c: c[0] == "lock_configuration"
        ):
            connection.execute(f"SET {name} = {_quoted(value)}")
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
            connection.execute(f"LOAD {_quoted(str(file))}" if file else f"LOAD {name}")
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


def _use_keys(connection: Connection, lake: Lake, db: Path) -> None:
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
    listed = ", ".join(f"{name} {_quoted(value)}" for name, value in options.items())
    connection.execute(f"CREATE SECRET (TYPE s3, {listed}, USE_SSL {str(lake.s3.use_ssl).lower()})")


def _make_folder(folder: Path, db: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AnalyzerError(
            f"{folder}, where {db} keeps its data, cannot be made: {error.strerror}."
        ) from error


# -- one at a time


@contextmanager
def claim(db: Path, what: str, patience_s: float = CLAIM_PATIENCE_S) -> Generator[str, None, None]:
    """Wait until no other process does `what` in this lake; yields a session name for doing it.

    A lake has no unique keys: two writers of one run would both insert it. So a writer holds a lock
    of PostgreSQL, which a process that dies gives back. A commit that the dead process had sent may
    still be under way then: it is waited for by the name of its session.

    Raises:
        AnalyzerError: Another process still does it after `patience_s`.
        duckdb.Error: The catalog cannot be reached.
    """
    lake = read(db)
    deadline = time.monotonic() + patience_s
    busy = AnalyzerError(
        f"another process writes {what} to {db} and did so for {patience_s:.0f} s; if none does, "
        "its host is gone and PostgreSQL has not noticed yet (tcp_keepalives_idle): try later."
    )
    session = f"hostbound {what}"
    with closing(duckdb.connect(config={"autoinstall_known_extensions": "false"})) as connection:
        load_extensions(connection, ("postgres_scanner",))
        catalog = f"{lake.catalog} application_name='hostbound claim'"
        connection.execute(f"ATTACH {_quoted(catalog)} AS claims (TYPE postgres)")

        def ask(sql: str) -> Any:
            return connection.execute(
                f"SELECT * FROM postgres_query('claims', {_quoted(sql)})"
            ).fetchall()[0][0]

        connection.execute("BEGIN")
        key = _quoted(f"{lake.schema} {what}")
        ask(f"SELECT set_config('lock_timeout', '{patience_s:.3f}s', true) AS set")
        try:
            ask(f"SELECT pg_advisory_xact_lock(hashtextextended({key}, 0))::text AS locked")
        except duckdb.Error as error:
            if "lock timeout" in str(error):
                raise busy from error
            raise
        while ask(
            "SELECT count(*) FROM pg_stat_clear_snapshot(), pg_stat_activity "
            f"WHERE application_name = {_quoted(session)} AND state <> 'idle'"
        ):
            if time.monotonic() > deadline:
                raise busy
            time.sleep(0.05)
        try:
            yield session
        finally:
            with suppress(duckdb.Error):  # a lost connection has given the lock back
                connection.execute("ROLLBACK")


def create(db: Path, tables: str, views: str, version: int) -> None:
    """Make the tables of an empty lake; one process does, others wait and find them there."""
    with (
        claim(db, "schema") as session,
        closing(connect(db, read_only=False, create=True, session=session)) as connection,
    ):
        if has_tables(connection):
            return
        connection.execute("CALL lake.set_option('parquet_compression', 'zstd')")
        connection.execute("BEGIN")
        connection.execute(tables)
        for table in PARTITIONED:
            connection.execute(f"ALTER TABLE {table} SET PARTITIONED BY (run_id)")
        connection.execute(views)
        connection.execute(
            "INSERT INTO store_info VALUES (?, ?, ?)",
            [version, datetime.now(timezone.utc).isoformat(), "hostbound analyzer"],
        )
        connection.execute("COMMIT")


def has_tables(connection: Connection) -> bool:
    """Is this lake a store already?"""
    return bool(
        connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE database_name = 'lake' "
            "AND table_name = 'store_info'"
        ).fetchall()
    )


def snapshot(connection: Connection) -> int:
    """Number of the last commit."""
    return connection.execute("SELECT id FROM ducklake_current_snapshot('lake')").fetchall()[0][0]


# -- SQL that a person typed


def refused_in_sql(connection: Connection, sql: str) -> str | None:
    """What in a SELECT reaches beyond the tables of the lake; None if nothing does.

    The extensions bring functions that reach PostgreSQL, and settings cannot take them away.

    Raises:
        AnalyzerError: It is no SELECT.
    """
    return next(filter(None, map(_beyond, sql_tree.parts(connection, sql))), None)


def _beyond(part: sql_tree.Part) -> str | None:
    if part.get("type") == "TABLE_FUNCTION":
        name = str(part["function"]["function_name"]).lower()
        if name not in sql_tree.MAKING_ROWS:
            return f"the table function {name}"
    if part.get("type") == "BASE_TABLE":
        catalog = str(part.get("catalog_name", "")).lower()
        table = str(part.get("table_name", ""))
        if catalog not in _CATALOGS or str(part.get("schema_name", "")).lower().startswith("__"):
            return f"the database {catalog or part['schema_name']}"
        if "/" in table or "." in table:
            return f"the file {table}"
    return None


# -- upkeep


def maintain(db: Path, keep_days: float) -> dict[str, int]:
    """Merge small files, forget old commits, delete files that nothing needs any more.

    Args:
        keep_days: Commits younger than this can still be read as they were.

    Returns:
        What was done: counts.
    """
    older = f"now() - INTERVAL '{keep_days * 86400:.0f} seconds'"
    done: dict[str, int] = {}
    with (
        claim(db, "upkeep") as session,
        closing(connect(db, read_only=False, session=session)) as connection,
    ):

        def call(key: str, sql: str) -> None:
            done[key] = len(connection.execute(f"SELECT 1 FROM {sql}").fetchall())

        call("tables flushed from the catalog", "ducklake_flush_inlined_data('lake')")
        call("files merged", "ducklake_merge_adjacent_files('lake')")
        call("files rewritten", "ducklake_rewrite_data_files('lake')")
        call("commits forgotten", f"ducklake_expire_snapshots('lake', older_than => {older})")
        call("files deleted", f"ducklake_cleanup_old_files('lake', older_than => {older})")
        # What killed writers left. A day: no writer that lives takes longer.
        call(
            "orphans deleted",
            "ducklake_delete_orphaned_files('lake', older_than => now() - INTERVAL '1 day')",
        )
    return done


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
