"""The login of the pages where tokens are the only key: a form that trades a token for a cookie.

The token goes in a request's body, never in an address; the cookie holds a random session that no
script can read, and ends with the token.
"""

from __future__ import annotations

import html
import math
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from analyzer.server.auth.principal import SESSION_COOKIE
from analyzer.server.auth.tokens import SESSION_SECONDS
from analyzer.server.http.access import in_thread
from analyzer.server.service import Service

LOGIN = "/login"
LOGOUT = "/logout"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Hostbound: log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 12vh auto 0; max-width: 26rem; }}
label {{ display: block; margin-bottom: .3rem; }}
input, button {{ font: inherit; padding: .5rem .7rem; width: 100%; box-sizing: border-box; }}
button {{ margin-top: .8rem; cursor: pointer; }}
.error {{ border-left: 4px solid #c0392b; padding-left: .7rem; }}
</style></head><body><main><h1>Hostbound</h1>
{error}<form method="post" action="{action}">
<label for="token">Token with the scope read</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="next" value="{next}">
<button type="submit">Log in</button></form>
<p>An admin of your team makes one: <code>analyzer token create</code>.</p>
</main></body></html>
"""
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
)


def _page(base: str, target: str, error: str = "", status: int = 200) -> Response:
    shown = f'<p class="error" role="alert">{html.escape(error)}</p>' if error else ""
    text = _PAGE.format(
        error=shown, next=html.escape(target, quote=True), action=html.escape(base + LOGIN)
    )
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
    return HTMLResponse(text, status, headers=headers)


def _local(base: str, target: str) -> str:
    """A path of this server; anything else is the first page."""
    parts = urlsplit(target)
    fine = target.startswith("/") and not target.startswith(("//", "/\\")) and not parts.netloc
    return target if fine and target.isprintable() and target.startswith(base) else f"{base}/"


def _is_own_form(request: Request) -> bool:
    """Whether a form was sent by a page of this server, or by no browser: those name where the form
    was, and say "null" where a foreign page hides it.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        return False
    return site in (None, "same-origin", "none")


async def answer(service: Service, request: Request) -> Response:
    """The answer to a request for the login or the logout."""
    base: str = request.scope.get("root_path", "")
    if request.scope["path"] == LOGOUT:
        return await _logout(service, request)
    if request.method == "GET":
        return _page(base, _local(base, request.query_params.get("next", "")))
    if request.method != "POST":
        return Response(status_code=405, headers={"Allow": "GET, POST"})
    if not _is_own_form(request):
        return _page(base, f"{base}/", "That form was not of this server.", 403)
    body = (await request.body()).decode("utf-8", "replace")
    fields = {key: values[0] for key, values in parse_qs(body).items()}
    target = _local(base, fields.get("next", ""))
    client = request.client.host if request.client else "unknown"
    wait = service.rate_limit.take(f"login {client}")
    if wait > 0:
        return _page(base, target, f"Too many tries; wait {math.ceil(wait)} s.", 429)
    found = await in_thread(service.tokens.find, fields.get("token", "").strip())
    if found is None or not found.may("read"):
        service.log("login refused", client=client)
        return _page(base, target, "That is no valid token with the scope read.", 401)
    session = await in_thread(service.tokens.begin_session, found)
    service.log("login", team=found.team, token=found.token_id, client=client)
    response = RedirectResponse(target, 303, headers={"Cache-Control": "no-store"})
    secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    response.set_cookie(
        SESSION_COOKIE,
        session,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        secure=secure,
        samesite="lax",
    )
    return response


async def _logout(service: Service, request: Request) -> Response:
    if session := request.cookies.get(SESSION_COOKIE):
        await in_thread(service.tokens.end_session, session)
    base: str = request.scope.get("root_path", "")
    response = RedirectResponse(base + LOGIN, 303, headers={"Cache-Control": "no-store"})
    response.delete_cookie(SESSION_COOKIE)
    return response
