"""The proxy on the way to a server, as the environment names it: HTTPS_PROXY, HTTP_PROXY, NO_PROXY.

To an https server a proxy is asked for a tunnel (CONNECT): it sees the server's name and nothing of
what is sent. To a plain http server it sees all, so a token does not go that way. This host itself
is never asked for by way of a proxy.
"""

from __future__ import annotations

import base64
import ipaddress
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from schemas.errors import UploadError


@dataclass(frozen=True)
class Proxy:
    """Where a proxy listens; `headers` say who asks, if it wants to know, and are never shown."""

    host: str
    port: int
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def find(target: SplitResult) -> Proxy | None:
    """The proxy for an address, None if it is to be reached directly.

    Raises:
        UploadError: What the environment names is no proxy that is spoken to.
    """
    host = target.hostname or ""
    default = 443 if target.scheme == "https" else 80
    if is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{target.port or default}"):
        return None
    proxies = urllib.request.getproxies()
    named = proxies.get(target.scheme) or proxies.get("all")
    return _read(named, target.scheme) if named else None


def is_loopback(host: str) -> bool:
    """Whether a name or address is this host's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(named: str, scheme: str) -> Proxy:
    variable = f"{scheme.upper()}_PROXY"
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        port = parts.port or 80
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise UploadError(
            f"{variable} names a proxy that is not spoken to here; give one as http://HOST:PORT, "
            "or name the server in NO_PROXY."
        )
    headers: dict[str, str] = {}
    if parts.username is not None:
        who = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(who).decode()}"
    return Proxy(parts.hostname, port, headers)
