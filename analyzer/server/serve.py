"""`analyzer serve`: checks what was asked, then API, pages and workers in one go until SIGTERM.

Refuses to listen where others reach it without a way to log in, to share a data folder with another
server, and what it cannot serve; a refused start leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from analyzer.errors import AnalyzerError
from analyzer.server import discovery as owner
from analyzer.server import logs
from analyzer.server.auth import oidc
from analyzer.server.auth.policy import is_loopback
from analyzer.server.hosting import ServiceHosting
from analyzer.server.http import app as api
from analyzer.server.http import timeouts as slow
from analyzer.server.http.middleware import PAGE_UPLOAD_BYTES, Asgi, Front
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.pages import ENTRY_POINTS, MakeApp
from analyzer.server.service import Door, Service, build
from analyzer.store import open_store


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for; `db` without `data` serves one store on this machine, `db`
    with `data` is a lake that several servers share, each with a folder of its own.
    """

    data: Path | None
    db: Path | None
    host: str = "127.0.0.1"
    port: int = 8501
    workers: int = 2
    no_login: bool = False
    oidc: Path | None = None
    pages: bool = True
    grace_seconds: float = 30.0
    limits: Limits = field(default_factory=Limits)


def serve(wanted: Wanted) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        AnalyzerError: The address, the data folder or the identity provider is not as it must be.
    """
    layout = _layout(wanted)
    layout.check_store()
    # One of several servers is nobody's way to the store: commands go to the lake themselves.
    noted = layout.db if wanted.data is None else None
    secret = owner.new_secret() if noted is not None else None
    door = Door(
        is_loopback(wanted.host),
        wanted.no_login,
        secret,
        oidc.read(wanted.oidc) if wanted.oidc else None,
    )
    with ExitStack() as stack:
        bound = stack.enter_context(_bound(wanted.host, wanted.port))
        shown = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
        port = bound.getsockname()[1]
        with ExitStack() as undo, _folder_errors(layout.data):
            absent = [p for p in (layout.data, *layout.data.parents) if not p.exists()]
            is_new = bool(absent) or (layout.data.is_dir() and not any(layout.data.iterdir()))
            layout.make()
            stack.enter_context(_only_server(layout))
            if is_new:
                undo.callback(_remove, layout.data, absent)
            service = build(layout, wanted.limits, door, wanted.workers, logs.to_stderr)
            _check_door(wanted, service)
            pages = _pages(service, wanted) if wanted.pages else None
            front = Front(service, cast("Asgi", api.build(service)), pages)
            service.start()
            undo.callback(service.close, 0.0)
            if noted is not None and secret is not None:
                here = "127.0.0.1" if wanted.host in ("0.0.0.0", "::") else shown
                owner.leave_note(noted, f"http://{here}:{port}", secret)
            undo.pop_all()
        stack.callback(service.log, "stopped")
        if noted is not None:
            stack.callback(owner.take_note_away, noted)
        stack.callback(service.close, wanted.grace_seconds)
        service.log(
            "serving",
            url=f"http://{shown}:{port}",
            data=str(layout.data),
            login="needed" if service.needs_login() else "not needed",
            pages=pages is not None,
            workers=wanted.workers,
        )
        _run(front, bound, wanted)


def _layout(wanted: Wanted) -> Layout:
    if wanted.db is None:
        if wanted.data is None:
            raise AnalyzerError("there is nothing to serve; name a store with --db.")
        return Layout(wanted.data)
    if wanted.data is None:
        return Layout.of_store(wanted.db)
    if not open_store(wanted.db).has_many_writers:
        raise AnalyzerError(
            f"--db {wanted.db} with --data is for a lake (*.toml), which several servers share; "
            "leave one of the two out."
        )
    return Layout(wanted.data, wanted.db)


def _remove(data: Path, absent: list[Path]) -> None:
    """Remove what a refused start has made: a server's files in a folder that was empty, and what
    folders were not there, the innermost first. It holds the folder's lock.
    """
    shutil.rmtree(data / "teams", ignore_errors=True)
    for file in data.glob("server.*"):
        file.unlink(missing_ok=True)
    with suppress(OSError):  # somebody else has put something there meanwhile
        for folder in absent:
            folder.rmdir()


@contextmanager
def _folder_errors(data: Path) -> Generator[None, None, None]:
    """What the disk says about a server's folder, as one line."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        place = getattr(error, "filename", None) or data
        raise AnalyzerError(
            f"{place} cannot be used: {reason}; the server needs {data} to itself, readable, "
            "writable and with free space."
        ) from error


def _check_door(wanted: Wanted, service: Service) -> None:
    door = service.door
    for team in door.oidc.hostbound.teams.values() if door.oidc else ():
        service.layout.check_team(team)
    if door.is_loopback or door.open_by_order or door.oidc is not None or service.tokens.any():
        return
    lake_file = service.layout.lake
    where = f"--db {lake_file}" if lake_file else f"--data {service.layout.data}"
    raise AnalyzerError(
        f"{wanted.host} can be reached by others and nobody could log in yet: make a token first, "
        f"`analyzer token create {where} --team default --scope admin`, or "
        "name an identity provider with --oidc, or say --no-login-i-know."
    )


@contextmanager
def _only_server(layout: Layout) -> Generator[None, None, None]:
    """Hold the data folder; the lock goes with the process, however it ends."""
    handle = os.open(layout.lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnalyzerError(
                f"another server runs on {layout.data}; stop it first, or name another folder."
            ) from None
        yield
    finally:
        os.close(handle)


@contextmanager
def _bound(host: str, port: int) -> Generator[socket.socket, None, None]:
    if not 0 <= port <= 65535:
        raise AnalyzerError(f"{port} is no port; give one from 1 to 65535.")
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
        except (OSError, UnicodeError) as error:
            raise AnalyzerError(
                f"{host}:{port} cannot be listened on: {getattr(error, 'strerror', None) or error};"
                " choose another --port or --host."
            ) from error
        yield bound
    finally:
        bound.close()


def _run(front: Front, bound: socket.socket, wanted: Wanted) -> None:
    import uvicorn

    config = uvicorn.Config(
        cast("Any", front),
        http=slow.protocol(wanted.limits.slow_seconds),
        ws="websockets-sansio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=wanted.limits.header_bytes,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, int(wanted.grace_seconds)),
        ws_max_size=PAGE_UPLOAD_BYTES,
        proxy_headers=False,
    )
    logs.take_over()
    # uvicorn raises the signal again when it has ended: here that must not end the process, which
    # has its note to take away.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ended)
    uvicorn.Server(config).run(sockets=[bound])


def _ended(number: int, frame: object) -> None:
    """The server has ended by this signal already."""


def _pages(service: Service, wanted: Wanted) -> Asgi | None:
    """The web app as part of this process; None if it is not installed.

    It is found by its entry point: the analyzer imports neither it nor its library.
    """
    found = entry_points(group=ENTRY_POINTS)
    if not found or importlib.util.find_spec("streamlit") is None:
        return None
    provider = service.door.oidc
    make = cast("MakeApp", next(iter(found)).load())
    app = make(
        ServiceHosting(service),
        wanted.host,
        wanted.port,
        PAGE_UPLOAD_BYTES,
        provider.auth if provider else None,
    )
    return cast("Asgi", app)
