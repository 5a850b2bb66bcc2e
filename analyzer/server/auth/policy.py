"""Lets a request in: whose it is, what it may do, how often.

A bearer token, this machine's local secret, or (for reading) a browser session. Without any, only a
server that needs no login answers, as the team "default", and only to requests that were really
sent to this machine: a web page elsewhere cannot use a visitor's browser to get in.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from analyzer.server.auth.tokens import SCOPES, SESSION_COOKIE, Principal
from analyzer.server.layout import DEFAULT_TEAM
from analyzer.server.service import Service

OPEN = Principal(DEFAULT_TEAM, frozenset(SCOPES), None, "open")
LOCAL = Principal(DEFAULT_TEAM, frozenset(SCOPES), None, "local", local=True)


def service_of(request: Request) -> Service:
    """The server that a request came to."""
    return request.app.state.service


def is_loopback(host: str) -> bool:
    """Whether an address, or a name of one, is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "localhost.")


def sent_to_here(headers: Headers, service: Service) -> bool:
    """Whether a request without login was meant for this server by the one who sits here.

    A page of another site can make a browser send requests to loopback, directly or by a name that
    it points there; a proxy that serves others would let them all in.
    """
    host = headers.get("host", "")
    name = urlsplit(f"//{host}").hostname if host else None
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return False
    if service.door.open_by_order:
        return True
    forwarded = any(h in headers for h in ("x-forwarded-for", "forwarded", "x-real-ip"))
    return name is not None and is_loopback(name) and not forwarded


def identify(
    service: Service, headers: Headers, cookies: dict[str, str], reading: bool
) -> Principal | None:
    """Whose request this is; None if nobody's that is let in."""
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme:
        if scheme.lower() != "bearer" or not credential:
            return None
        secret = service.door.local_secret
        if secret is not None and hmac.compare_digest(credential.encode(), secret.encode()):
            return LOCAL
        return service.tokens.find(credential.strip())
    if (
        reading
        and SESSION_COOKIE in cookies
        and (found := service.tokens.session(cookies[SESSION_COOKIE]))
    ):
        return found
    if not service.needs_login() and sent_to_here(headers, service):
        return OPEN
    return None


def needs(scope: str) -> Callable[[Request], Awaitable[Principal]]:
    """A dependency: the principal of a request, which has a scope (or one of several, "a|b").

    Raises:
        HTTPException: 401 nobody's, 403 the scope is not granted, 429 too many requests.
    """

    async def principal(request: Request) -> Principal:
        service = service_of(request)
        reading = request.method in ("GET", "HEAD")
        found = await run_in_threadpool(
            identify, service, request.headers, request.cookies, reading
        )
        state: dict[str, Any] = request.scope.setdefault("hostbound", {})
        client = request.client.host if request.client else "unknown"
        wait = service.rates.take(found.token_id or found.name if found else f"? {client}")
        if wait > 0:
            raise HTTPException(
                429,
                f"too many requests; ask again in {math.ceil(wait)} s.",
                headers={"Retry-After": str(math.ceil(wait))},
            )
        if found is None:
            raise HTTPException(
                401,
                "a valid token is needed: `Authorization: Bearer TOKEN`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        state["team"] = found.team
        if not any(found.may(one) for one in scope.split("|")):
            raise HTTPException(
                403,
                f"this token lacks the scope {scope.replace('|', ' or ')}; ask an admin for it.",
            )
        return found

    return principal
