"""The middleware: every request passes here, then goes to the API, the login or the pages.

Gives each request an id, bounds its body, lets nobody at the pages without login where one is
needed, logs one line, counts it. Plain ASGI, so that an upload streams through untouched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any, cast
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request

from analyzer.errors import Unreachable
from analyzer.server.auth.policy import OPEN
from analyzer.server.http import login, messages, timeouts
from analyzer.server.http.access import in_thread
from analyzer.server.service import Service

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

# Others are counted as one: what clients make up must not become a label of a metric.
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_API = ("/api", "/healthz", "/readyz", "/metrics")
# The app's own scripts and icon: the same for everybody, asked for before anybody has logged in.
_PUBLIC = ("/static/", "/favicon", "/_stcore/health")
_REQUEST_ID = re.compile(r"[\w.:-]{8,64}", re.ASCII)
_FILES = "/_stcore/upload_file/"
_WHOLE_PATH = "hostbound.path"
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
]
# Of what is no request of the API, only these are worth a line.
_LOGGED = (401, 403, 408, 413, 429)
_TOO_SLOW = "the rest of the request did not come in time; send it again."
PAGE_UPLOAD_BYTES = 200 << 20
_DRAINED_BYTES = 4 << 20
_DRAINED_S = 2.0


class _Refused(Exception):
    def __init__(self, status: int, detail: str, closes: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.closes = closes  # the connection


class Middleware:
    """The application that the server runs.

    Args:
        pages: The web app; None without it.
        base_path: What stands before every path, as /hostbound; "" is nothing.
    """

    def __init__(
        self, service: Service, api: Asgi, pages: Asgi | None, base_path: str = ""
    ) -> None:
        self._service = service
        self._api = api
        self._pages = pages
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        # Within, paths are without what stands before them; the pages take theirs whole.
        scope = {**scope, _WHOLE_PATH: scope["path"], "root_path": self._base_path}
        if self._base_path:
            below = scope["path"].removeprefix(self._base_path)
            scope["path"] = below if below != scope["path"] and below[:1] in ("", "/") else None
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["path"] is None:
            await _answer(send, 404, f"this server's paths begin with {self._base_path}.")
        else:
            await self._http({**scope, "path": scope["path"] or "/"}, receive, send)

    # -- start and end

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await receive()
            try:
                for part in (self._api, self._pages):
                    if part is not None:
                        await stack.enter_async_context(_started(part, scope))
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    # -- requests

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        given = Headers(scope=scope).get("x-request-id", "")  # of a proxy, whose log has it too
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        known: dict[str, Any] = {"id": request_id}
        scope["hostbound"] = known
        status: int = 0
        path: str = scope["path"]
        is_api = path.startswith(_API)
        body = timeouts.TimedBody(receive, self._service.limits.slow_seconds)
        closes_after = False

        async def receiving() -> Message:
            nonlocal closes_after
            try:
                return await body.receive()
            except timeouts.TooSlow:
                closes_after = True
                if is_api:  # an upload keeps what has come, as of a client that has gone
                    return {"type": "http.disconnect"}
                raise _Refused(408, _TOO_SLOW) from None

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", []))
                headers += [(b"x-request-id", request_id.encode()), *_HEADERS]
                if status == 413 and not body.is_whole:
                    await _drain(receiving)  # and whoever goes on sending is not listened to
                    headers.append((b"connection", b"close"))
                if closes_after:
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        try:
            _check_headers(scope, self._service.limits.header_bytes)
            if is_api:
                await self._to_api(scope, receiving, sending)
            elif path in (login.LOGIN, login.LOGOUT):
                form = await _whole_body(scope, receiving, self._service.limits.body_bytes)
                answer = await login.answer(self._service, Request(scope, form))
                await answer(scope, form, sending)
            else:
                await self._to_pages(scope, receiving, sending)
        except _Refused as refused:
            closes_after = closes_after or refused.closes
            if status == 0:
                await _answer(sending, refused.status, refused.detail)
        except Unreachable as error:
            if status == 0:
                await _answer(sending, 503, str(error))
        except Exception as error:  # the API has answered and logged it already
            if status == 0:
                self._service.log("request failed", id=request_id, error=repr(error))
                await _answer(sending, 500, f"the server failed; see its log under {request_id}.")
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", None) or ("other" if is_api else "pages")
            metrics = self._service.metrics
            method = scope["method"] if scope["method"] in _METHODS else "other"
            metrics.requests.labels(method, route, status).inc()
            metrics.request_seconds.labels(route).observe(seconds)
            if is_api or _is_logged(status):
                self._service.log(
                    "request",
                    id=request_id,
                    method=scope["method"][:20],
                    path=path[:300],
                    status=status,
                    ms=round(seconds * 1e3, 1),
                    team=known.get("team"),
                    client=(scope.get("client") or ["?"])[0],
                )

    async def _to_api(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "PATCH":  # an upload's bytes are bounded where they are written
            receive = await _whole_body(scope, receive, self._service.limits.body_bytes)
        await self._api(scope, receive, send)

    async def _to_pages(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._pages is None:
            raise _Refused(404, "this server has no pages; the API is under /api/v1.")
        may = "upload" if _is_file(scope) else "read"
        if not scope["path"].startswith(_PUBLIC) and not await self._may_see_pages(scope, may):
            if scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", ""):
                wanted = quote(scope[_WHOLE_PATH])
                query: str = scope.get("query_string", b"").decode("latin-1")
                target = quote(f"{wanted}?{query}" if query else wanted, safe="")
                await _redirect(send, f"{self._base_path}{login.LOGIN}?next={target}")
                return
            raise _Refused(401, f"log in first, with the scope {may}.")
        most = PAGE_UPLOAD_BYTES + (1 << 20)
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            raise _Refused(413, f"a page takes files of up to {PAGE_UPLOAD_BYTES} bytes.")
        await self._pages(_whole(scope), _bounded(receive, most), send)

    async def _may_see_pages(self, scope: Scope, may: str = "read") -> bool:
        service = self._service
        headers = Headers(scope=scope)
        if service.policy.oidc is not None:
            # The pages themselves send to the identity provider. Files they take into memory before
            # that, so these are for sessions of people who have been let in.
            path: str = scope["path"]
            return not path.startswith(_FILES) or path.split("/")[3] in service.admitted
        if not await in_thread(service.needs_login):
            return service.policy.admits_without_login(headers)
        cookies = Request({**scope, "type": "http"}).cookies
        found = await in_thread(service.policy.identify, service.tokens, Headers({}), cookies, True)
        return found is not None and found is not OPEN and found.may("read") and found.may(may)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin", "")
        same = origin.partition("://")[2] in ("", host)
        try:
            admitted = (
                self._pages is not None
                and same
                and scope["path"] is not None
                and await self._may_see_pages(scope)
            )
        except Unreachable:
            admitted = False
        if self._pages is None or not admitted:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._pages(_whole(scope), receive, send)


def _whole(scope: Scope) -> Scope:
    """The request as the pages take it: with the path as it was asked for."""
    return {**scope, "path": scope[_WHOLE_PATH], "root_path": ""}


def _is_file(scope: Scope) -> bool:
    """Whether a file is sent to a page."""
    path: str = scope["path"]
    return path.startswith(_FILES) and scope["method"] not in ("GET", "HEAD", "OPTIONS")


@contextlib.asynccontextmanager
async def _started(pages: Asgi, scope: Scope) -> AsyncGenerator[None, None]:
    """The web app's own lifespan, between start and end of ours."""
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    outbox: asyncio.Queue[Message] = asyncio.Queue()
    task = asyncio.ensure_future(
        cast("Any", pages)(
            {"type": "lifespan", "asgi": scope.get("asgi", {})}, inbox.get, outbox.put
        )
    )
    await inbox.put({"type": "lifespan.startup"})
    answer = await outbox.get()
    if answer["type"] != "lifespan.startup.complete":
        raise RuntimeError(f"the web app did not start: {answer.get('message')}")
    try:
        yield
    finally:
        await inbox.put({"type": "lifespan.shutdown"})
        await outbox.get()
        await task


async def _whole_body(scope: Scope, receive: Receive, most: int) -> Receive:
    """Read a body of at most so many bytes; returns what hands it on."""
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdigit() or int(length) > most:
        raise _Refused(413, f"a request's body may have {most} bytes here.")
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Refused(408, _TOO_SLOW)
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            raise _Refused(413, f"a request's body may have {most} bytes here.")
    handed = False

    async def again() -> Message:
        nonlocal handed
        if handed:
            return await receive()
        handed = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    return again


def _check_headers(scope: Scope, most: int) -> None:
    given = sum(len(name) + len(value) for name, value in scope["headers"])
    if given + len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > most:
        raise _Refused(431, f"a request's headers may have {most} bytes here.")
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        # A proxy may have read it by the one, this server by the other: the next request of the
        # connection could be somebody else's.
        raise _Refused(400, "give Content-Length or Transfer-Encoding, not both.", closes=True)


async def _drain(receive: Receive) -> None:
    """Take a little more of a body that is too large: a client that stops soon reads its answer,
    which it would not on a connection that is closed while it sends.
    """
    left = _DRAINED_BYTES
    with contextlib.suppress(asyncio.TimeoutError, TimeoutError, _Refused):
        while left > 0:
            message = await asyncio.wait_for(receive(), _DRAINED_S)
            left -= len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return


def _is_logged(status: int) -> bool:
    return status >= 500 or status in _LOGGED


def _bounded(receive: Receive, most: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise _Refused(413, f"a page takes files of up to {PAGE_UPLOAD_BYTES} bytes.")
        return message

    return counted


async def _answer(send: Send, status: int, detail: str) -> None:
    headers = [(b"content-type", messages.PROBLEM.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    body = json.dumps(messages.problem(status, detail)).encode()
    await send({"type": "http.response.body", "body": body})


async def _redirect(send: Send, target: str) -> None:
    headers = [(b"location", target.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
