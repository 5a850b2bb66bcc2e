"""`analyzer serve`: checks what was asked, then API, pages and workers in one go until SIGTERM.

Refuses to listen where others reach it without a way to log in, to share a data folder with another
server, and what it cannot serve; a refused start leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import resource
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
from analyzer.server import logs
from analyzer.server.auth import oidc
from analyzer.server.auth.policy import AccessPolicy, is_loopback
from analyzer.server.hosting import ServiceHosting
from analyzer.server.http import app, timeouts
from analyzer.server.http.middleware import PAGE_UPLOAD_BYTES, Asgi, Middleware
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.pages import ENTRY_POINTS, MakeApp
from analyzer.server.service import Service, build
from analyzer.store import discovery, open_store
from schemas.endpoint import is_base_path

_MOST_FILES = 65_536
_MOST_WAITING, _TAKEN_AT_ONCE = 2048, 16
_OWN_FILES = 100  # of the server itself: its database, its children, its log


@dataclass(frozen=True)
class ServeOptions:
    """What the command line asks for; `db` without `data` serves one store on this machine, `db`
    with `data` is a lake that several servers share, each with a folder of its own.
    """

    data: Path | None
    db: Path | None
    host: str = "127.0.0.1"
    port: int = 8501
    base_path: str = ""  # before every path, as "/hostbound"
    workers: int = 2
    local: bool = False
    no_login: bool = False
    oidc: Path | None = None
    pages: bool = True
    grace_seconds: float = 30.0
    limits: Limits = field(default_factory=Limits)


def serve(options: ServeOptions) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        AnalyzerError: The address, the data folder or the identity provider is not as it must be.
    """
    if not is_base_path(options.base_path):
        raise AnalyzerError(f"{options.base_path!r} is no path; write it as /hostbound.")
    layout = _layout(options)
    layout.check_store()
    # One of several servers leaves no note: commands go to the lake themselves.
    noted = layout.db if options.data is None else None
    secret = discovery.new_secret() if noted is not None else None
    policy = AccessPolicy(
        options.local and is_loopback(options.host),
        options.no_login,
        secret,
        oidc.read(options.oidc) if options.oidc else None,
    )
    with ExitStack() as stack:
        bound = stack.enter_context(_bound(options.host, options.port))
        shown = f"[{options.host}]" if ":" in options.host else options.host
        port = bound.getsockname()[1]
        with ExitStack() as undo, _folder_errors(layout.data):
            absent = [p for p in (layout.data, *layout.data.parents) if not p.exists()]
            is_new = bool(absent) or (layout.data.is_dir() and not any(layout.data.iterdir()))
            layout.make()
            stack.enter_context(_only_server(layout))
            if is_new:
                undo.callback(_remove, layout.data, absent)
            service = build(layout, options.limits, policy, options.workers, logs.to_stderr)
            _check_login(options, service)
            pages = _pages(service, options) if options.pages else None
            application = Middleware(
                service, cast("Asgi", app.build(service)), pages, options.base_path
            )
            service.start()
            undo.callback(service.close, 0.0)
            if noted is not None and secret is not None:
                here = "127.0.0.1" if options.host in ("0.0.0.0", "::") else shown
                discovery.leave_note(noted, f"http://{here}:{port}{options.base_path}", secret)
            undo.pop_all()
        stack.callback(service.log, "stopped")
        if noted is not None:
            stack.callback(discovery.take_note_away, noted)
        stack.callback(service.close, options.grace_seconds)
        service.log(
            "serving",
            url=f"http://{shown}:{port}{options.base_path}",
            data=str(layout.data),
            login="needed" if service.needs_login() else "not needed",
            pages=pages is not None,
            workers=options.workers,
        )
        _run(application, bound, options)


def _layout(options: ServeOptions) -> Layout:
    if options.db is None:
        if options.data is None:
            raise AnalyzerError("there is nothing to serve; name a store with --db.")
        return Layout(options.data)
    if options.data is None:
        return Layout.of_store(options.db)
    if not open_store(options.db).has_many_writers:
        raise AnalyzerError(
            f"--db {options.db} with --data is for a lake (*.toml), which several servers share; "
            "leave one of the two out."
        )
    return Layout(options.data, options.db)


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


def _check_login(options: ServeOptions, service: Service) -> None:
    policy = service.policy
    for team in policy.oidc.hostbound.teams.values() if policy.oidc else ():
        service.layout.check_team(team)
    if policy.is_local or policy.open_by_order or policy.oidc is not None or service.tokens.any():
        return
    lake_file = service.layout.lake
    where = f"--db {lake_file}" if lake_file else f"--data {service.layout.data}"
    reached = f"{options.host} can be reached by others"
    way = "--no-login-i-know"
    if is_loopback(options.host):
        reached = f"{options.host} may be where a proxy passes requests of others on to"
        way = "--local if none does"
    raise AnalyzerError(
        f"{reached} and nobody could log in yet: make a token first, "
        f"`analyzer token create {where} --team default --scope admin`, or "
        f"name an identity provider with --oidc, or say {way}."
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


class _Listening(socket.socket):
    """A socket whose clients wait in the system's queue, and not each in a file of this process:
    asyncio takes as many at once as it was told to let wait.
    """

    def listen(self, backlog: int = 0, /) -> None:
        super().listen(_MOST_WAITING)


@contextmanager
def _bound(host: str, port: int) -> Generator[socket.socket, None, None]:
    if not 0 <= port <= 65535:
        raise AnalyzerError(f"{port} is no port; give one from 1 to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, so that asyncio sees that it is TCP: else no connection gets TCP_NODELAY.
    bound = _Listening(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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


def _most_connections() -> int:
    """Connections that leave room for the files that requests open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(8, (most - _OWN_FILES) // 2)


def _run(application: Middleware, bound: socket.socket, options: ServeOptions) -> None:
    import uvicorn

    config = uvicorn.Config(
        cast("Any", application),
        http=timeouts.protocol(options.limits.slow_seconds, _most_connections()),
        ws="websockets-sansio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=options.limits.header_bytes,
        timeout_keep_alive=30,
        backlog=_TAKEN_AT_ONCE,
        timeout_graceful_shutdown=max(1, int(options.grace_seconds)),
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


def _pages(service: Service, options: ServeOptions) -> Asgi | None:
    """The web app as part of this process; None if it is not installed.

    It is found by its entry point: the analyzer imports neither it nor its library.
    """
    found = entry_points(group=ENTRY_POINTS)
    if not found or importlib.util.find_spec("streamlit") is None:
        return None
    provider = service.policy.oidc
    make = cast("MakeApp", next(iter(found)).load())
    pages = make(
        ServiceHosting(service),
        options.host,
        options.port,
        options.base_path,
        PAGE_UPLOAD_BYTES,
        provider.auth if provider else None,
    )
    return cast("Asgi", pages)
