"""Admits a request to a route: whose it is, whether it may, how often."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool

from analyzer.server.auth.principal import Principal
from analyzer.server.service import Service


def service_of(request: Request) -> Service:
    """The server that a request came to."""
    return request.app.state.service


def needs(scope: str) -> Callable[[Request], Awaitable[Principal]]:
    """A dependency: the principal of a request, which has a scope (or one of several, "a|b").

    Raises:
        HTTPException: 401 not let in, 403 the scope is not granted, 429 too many requests.
    """

    async def admit(request: Request) -> Principal:
        service = service_of(request)
        reading = request.method in ("GET", "HEAD")
        found = await run_in_threadpool(
            service.policy.identify, service.tokens, request.headers, request.cookies, reading
        )
        state: dict[str, Any] = request.scope.setdefault("hostbound", {})
        client = request.client.host if request.client else "unknown"
        wait = service.rate_limit.take(found.token_id or found.name if found else f"? {client}")
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

    return admit
