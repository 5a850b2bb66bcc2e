"""The access policy: whom a server lets in, and whose request one is.

A bearer token, this machine's local secret, or (for reading) a browser session. Without any, only a
server that needs no login answers, as the team "default", and only to requests that were really
sent to this machine: a web page elsewhere cannot use a visitor's browser to get in.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from analyzer.server.auth.oidc import Provider
from analyzer.server.auth.principal import SCOPES, SESSION_COOKIE, Principal
from analyzer.server.auth.tokens import Tokens
from analyzer.server.layout import DEFAULT_TEAM

OPEN = Principal(DEFAULT_TEAM, frozenset(SCOPES), None, "open")
LOCAL = Principal(DEFAULT_TEAM, frozenset(SCOPES), None, "local", local=True)


@dataclass(frozen=True)
class AccessPolicy:
    """Who is let in. Headers are asked for by names in lower case.

    Attributes:
        is_local: The server listens on this machine only, and whoever started it says that no
            proxy passes requests of others on to it: one that rewrites `Host` cannot be told
            from somebody who sits here.
        open_by_order: `--no-login-i-know`: everybody who reaches it is let in.
        local_secret: What the command line of this machine's owner shows; None without `--db`.
        oidc: The identity provider by which people log in at the pages, if there is one.
    """

    is_local: bool = True
    open_by_order: bool = False
    local_secret: str | None = None
    oidc: Provider | None = None

    def needs_login(self, tokens: Tokens) -> bool:
        """Whether a request without a token is refused. From the first token on, it is."""
        if self.open_by_order:
            return False
        return not self.is_local or self.oidc is not None or tokens.any()

    def admits_without_login(self, headers: Mapping[str, str]) -> bool:
        """Whether a request without login was meant for this server by the one who sits here.

        A page of another site can make a browser send requests to loopback, directly or by a name
        that it points there; a proxy that serves others would let them all in.
        """
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname if host else None
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return False
        if self.open_by_order:
            return True
        forwarded = any(h in headers for h in ("x-forwarded-for", "forwarded", "x-real-ip"))
        return name is not None and is_loopback(name) and not forwarded

    def identify(
        self, tokens: Tokens, headers: Mapping[str, str], cookies: Mapping[str, str], reading: bool
    ) -> Principal | None:
        """Whose request this is; None for one that is not let in."""
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        if scheme:
            if scheme.lower() != "bearer" or not credential:
                return None
            secret = self.local_secret
            if secret is not None and hmac.compare_digest(credential.encode(), secret.encode()):
                return LOCAL
            return tokens.find(credential.strip())
        if (
            reading
            and SESSION_COOKIE in cookies
            and (found := tokens.session(cookies[SESSION_COOKIE]))
        ):
            return found
        if not self.needs_login(tokens) and self.admits_without_login(headers):
            return OPEN
        return None


def is_loopback(host: str) -> bool:
    """Whether an address, or a name of one, is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "localhost.")
