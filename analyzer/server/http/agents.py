"""The tools for agents under /api/v1/mcp: streamable HTTP, behind the tokens of the API."""

from __future__ import annotations

from contextvars import ContextVar

from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from analyzer.agents.mcp_server import build
from analyzer.agents.tools import Tools
from analyzer.server.http.access import needs
from analyzer.server.service import Service
from analyzer.store import Store, open_store

_TEAM: ContextVar[str] = ContextVar("team whose store is asked")


class AgentTools:
    """An ASGI application that answers as `analyzer mcp` does, each token from its team's store."""

    def __init__(self, service: Service) -> None:
        self._service = service
        server = build(Tools(self._store))
        # Host and Origin are this server's policy already; no state is kept between requests.
        self._app = server.streamable_http_app(
            streamable_http_path="/",
            stateless_http=True,
            json_response=True,
            max_request_body_size=service.limits.body_bytes,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        self.running = server.session_manager.run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = await needs("read")(Request(scope, receive))
        turn = _TEAM.set(who.team)
        try:
            async with scope["app"].state.shares.place(who.team):
                await self._app(scope, receive, send)
        finally:
            _TEAM.reset(turn)

    def _store(self) -> Store:
        return open_store(self._service.store(_TEAM.get()))
