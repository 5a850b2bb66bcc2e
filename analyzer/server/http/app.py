"""The HTTP side: the API under /api/v1, health and metrics, and errors as one line of JSON."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.server.http import admin, jobs, labels, messages, runs
from analyzer.server.http import uploads as upload_routes
from analyzer.server.http.access import in_thread, needs
from analyzer.server.http.shares import Busy, Shares
from analyzer.server.logs import fault
from analyzer.server.service import Service
from analyzer.server.uploads import quotas, uploads
from analyzer.store.file import Damaged
from schemas.errors import HostboundError
from schemas.extras import missing

if TYPE_CHECKING:
    from analyzer.server.http.agents import AgentTools

PREFIX = upload_routes.PREFIX
_STATUS: dict[type[HostboundError], int] = {
    uploads.Busy: 409,
    uploads.WrongOffset: 409,
    uploads.Ended: 409,
    uploads.WrongContent: 422,
    uploads.TooLarge: 413,
    uploads.DiskFull: 507,
    quotas.TooMuchStored: 507,
    quotas.TooManyQueued: 429,
    Unreachable: 503,
    Busy: 503,
}
_DAMAGED = "the team's store is damaged; the server's log says how. Originals are kept."
_FULL = "the server's disk is full; nothing was lost that it acknowledged."


def build(service: Service) -> FastAPI:
    """The application over a server's parts."""
    agents = None if missing("mcp") else _agents(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        if agents is None:
            yield
        else:
            async with agents.running():
                yield

    app = FastAPI(
        title="Hostbound",
        version="1",
        summary="Uploads of profiler traces, and where their host time went",
        openapi_url=f"{PREFIX}/openapi.json",
        # Their scripts come from elsewhere; the pages of this server ask for nothing outside.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.shares = Shares(service.limits.read_patience_seconds)
    for module in (upload_routes, jobs, runs, labels, admin):
        app.include_router(module.router, prefix=PREFIX)
    if agents is not None:
        app.mount(f"{PREFIX}/mcp", agents)
    _add_health(app, service)
    _add_errors(app, service)
    _describe(app)
    return app


def _agents(service: Service) -> AgentTools:
    from analyzer.server.http.agents import AgentTools

    return AgentTools(service)


def _add_health(app: FastAPI, service: Service) -> None:
    async def health() -> dict[str, str]:  # needs no thread: all may be held
        return {"status": "alive"}

    async def ready() -> JSONResponse:
        good = await in_thread(service.is_ready)
        return JSONResponse({"status": "ready" if good else "not ready"}, 200 if good else 503)

    async def metrics(request: Request) -> Response:
        if await in_thread(service.needs_login):
            await needs("read")(request)
        text = await in_thread(service.metrics.text)
        return Response(text, media_type=service.metrics.content_type)

    app.add_api_route("/healthz", health, include_in_schema=False)
    app.add_api_route("/readyz", ready, include_in_schema=False)
    app.add_api_route("/metrics", metrics, include_in_schema=False)


def said(
    status: int, detail: str, request: Request, headers: Mapping[str, str] | None = None
) -> Response:
    """An error."""
    request_id = request.scope.get("hostbound", {}).get("id")
    content = messages.problem(status, detail, request_id)
    return JSONResponse(content, status, headers, media_type=messages.PROBLEM)


def _add_errors(app: FastAPI, service: Service) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HostboundError)
        code = next((c for kind, c in _STATUS.items() if isinstance(error, kind)), 422)
        again = isinstance(error, (uploads.Busy, Unreachable, Busy))
        headers = {"Retry-After": "1"} if again else None
        if isinstance(error, quotas.TooManyQueued):
            headers = {"Retry-After": str(quotas.WAIT_S)}
        return said(code, str(error), request, headers)

    async def damaged(request: Request, error: Exception) -> Response:
        service.log("store is damaged", error=str(error))
        return said(503, _DAMAGED, request)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)
        headers = getattr(error, "headers", None)
        return said(error.status_code, str(error.detail), request, headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first: dict[str, Any] = error.errors()[0]
        place = ".".join(str(part) for part in first.get("loc", ())[1:])
        text = f"{place}: {first.get('msg')}" if place else str(first.get("msg"))
        return said(422, " ".join(text.split())[:300], request)

    async def sqlite(request: Request, error: Exception) -> Response:
        if "full" in str(error):
            return said(507, _FULL, request)
        return await broken(request, error)

    async def os_error(request: Request, error: Exception) -> Response:
        try:
            with uploads.disk_errors():
                raise error
        except uploads.DiskFull:
            return said(507, _FULL, request)
        except OSError:
            return await broken(request, error)

    async def broken(request: Request, error: Exception) -> Response:
        request_id = request.scope.get("hostbound", {}).get("id")
        service.log("request failed", id=request_id, **fault(error))
        text = f"the server failed; its log has the cause under {request_id}."
        return said(500, text, request)

    app.add_exception_handler(HostboundError, refused)
    app.add_exception_handler(AnalyzerError, refused)
    app.add_exception_handler(Damaged, damaged)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(StarletteHTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(sqlite3.Error, sqlite)
    app.add_exception_handler(OSError, os_error)
    app.add_exception_handler(Exception, broken)


def _describe(app: FastAPI) -> None:
    """The description says that a bearer token is asked for, and what every error looks like."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = made()
            parts = schema.setdefault("components", {})
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
            parts.get("schemas", {}).pop("HTTPValidationError", None)
            parts.get("schemas", {}).pop("ValidationError", None)
            error = {"$ref": f"#/components/schemas/{messages.Error.__name__}"}
            for path in schema["paths"].values():
                for operation in path.values():
                    for code, answer in operation["responses"].items():
                        if code >= "400":
                            answer["content"] = {messages.PROBLEM: {"schema": error}}
        return app.openapi_schema or {}

    app.openapi = openapi
