"""Admits a request to a route: whose it is, whether it may, how often."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, HTTPException, Request

from analyzer.server.auth.principal import Principal
from analyzer.server.service import Service

T = TypeVar("T")


# Threads that say who somebody is, and how the server is: no work of a request holds them.
_DOORS = CapacityLimiter(8)


async def in_thread(ask: Callable[..., T], *arguments: Any) -> T:
    """Ask something short in a thread that no long work holds."""
    return await to_thread.run_sync(partial(ask, *arguments), limiter=_DOORS)


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
        found = await in_thread(
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
        _check_query(request)
        return found

    return admit


def _check_query(request: Request) -> None:
    """A parameter that is misspelt must not be as good as none.

    Raises:
        HTTPException: 422, the route has no such parameter.
    """
    route: Any = request.scope.get("route")
    if not request.query_params or not hasattr(route, "dependant"):
        return
    known = _query_names(route.dependant)
    for name in request.query_params:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none"
            raise HTTPException(422, f"{name[:80]!r} is no query parameter here; {there}.")


def _query_names(dependant: Any) -> list[str]:
    """Query parameters of a route and of what it depends on."""
    own = [str(field.alias) for field in dependant.query_params]
    return own + [name for part in dependant.dependencies for name in _query_names(part)]


def long(scope: str) -> Any:
    """A dependency as `needs`, of a route that may hold its thread for long: it takes a place among
    those of its team first.
    """

    async def admitted(
        request: Request,
        who: Principal = Depends(needs(scope)),  # noqa: B008  (an annotation does not see `scope`)
    ) -> AsyncGenerator[Principal, None]:
        async with request.app.state.shares.place(who.team):
            yield who

    # Ends before the answer is sent: who reads slowly holds no place.
    return Depends(admitted, scope="function")
