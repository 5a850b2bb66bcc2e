"""The address and token of a Hostbound server, and one HTTP request to it.

Knows nothing of uploads or retries. The token comes from a file or the environment, is sent only to
the origin that the address names, and not in clear over a network unless told to.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, urljoin, urlsplit

from schemas import proxy
from schemas.errors import UploadError

TOKEN_VARIABLE = "HOSTBOUND_TOKEN"
_WANTS_TO_KNOW = "tunnel connection failed: 407"


def is_base_path(text: str) -> bool:
    """Whether it is a path below which a server can stand, as /hostbound; "" is none."""
    return not text or re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", text) is not None


class Unreachable(Exception):
    """No complete answer came: refused, cut, timed out. Worth another try."""


@dataclass(frozen=True)
class Answer:
    """Status, headers (names in lower case) and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty if it is none."""
        try:
            value: Any = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {}

    def detail(self) -> str:
        """What the server says about it, in one line."""
        text = self.json().get("detail")
        said = text if isinstance(text, str) and text else http.client.responses.get(self.status)
        return one_line(said or "no reason given", 300)

    def retry_after_s(self) -> float | None:
        """Seconds the server asks to wait, None if it does not say.

        A date counts from the answer's own date: the clocks of the two hosts may differ.
        """
        text = self.headers.get("retry-after", "").strip()
        if text.isdigit():
            return float(text)
        try:
            then = parsedate_to_datetime(text)
            seconds = (then - parsedate_to_datetime(self.headers.get("date", ""))).total_seconds()
        except (TypeError, ValueError):
            return None
        return max(0.0, seconds)


@dataclass(frozen=True)
class Endpoint:
    """Where a server is. `base` ends without a slash; `token` is never shown."""

    base: str
    token: str | None = field(default=None, repr=False)

    def url(self, path: str) -> str:
        """The address of a path the server gave, or of "/api/..." here.

        Raises:
            UploadError: It names another server, to which the token must not go.
        """
        mine = urlsplit(self.base)
        there = urlsplit(urljoin(self.base + "/", path))
        if _origin(there) != _origin(mine):
            raise UploadError(
                f"{self.base} sends on to {there.scheme}://{there.netloc}; if that is the server "
                "you mean, give that address."
            )
        prefix = mine.path.rstrip("/")
        # A server behind a proxy may not know under which prefix it is seen.
        route = there.path if there.path.startswith(f"{prefix}/") else prefix + there.path
        return f"{mine.scheme}://{mine.netloc}{route}" + (f"?{there.query}" if there.query else "")

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Answer:
        """Send one request on a connection of its own and read the whole answer.

        An answer that comes before the body is sent to its end is returned as it is.

        Raises:
            Unreachable: There was no complete answer.
            UploadError: The server's certificate is not trusted.
        """
        target = urlsplit(self.url(path))
        sent = {"User-Agent": "hostbound", "Connection": "close", **(headers or {})}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        route = target.path + (f"?{target.query}" if target.query else "")
        through = proxy.find(target)
        if through is not None and target.scheme == "http":
            if self.token is not None:
                raise UploadError(
                    f"the proxy {through} would read the token on its way to {self.base}; give the "
                    f"https address, or name {target.hostname} in NO_PROXY."
                )
            route = f"http://{target.netloc}{route}"
            sent.update(through.headers)
        connection = _connect(target, through, timeout_s)
        try:
            # ConnectionError: the server may have answered and hung up while it was being sent to.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, route, body, sent)
            response = connection.getresponse()
            content = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, content)
        except ssl.SSLCertVerificationError as error:
            raise UploadError(
                f"the certificate of {target.netloc} is not trusted ({error.verify_message}); "
                "name the file of its authority in SSL_CERT_FILE."
            ) from error
        except (OSError, http.client.HTTPException) as error:
            if through is None:
                raise Unreachable(_reason(error)) from error
            reason = f"by the proxy {through}: {_reason(error)}"
            if _WANTS_TO_KNOW in reason:
                raise UploadError(
                    f"{target.netloc} is not reached {reason}; put USER:PASSWORD@ before its name "
                    f"in {target.scheme.upper()}_PROXY."
                ) from error
            raise Unreachable(reason) from error
        finally:
            connection.close()


def one_line(text: str, most: int) -> str:
    """Somebody else's text as a single printable line: no control character reaches a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:most]


def parse_endpoint(url: str, token: str | None, insecure: bool = False) -> Endpoint:
    """Check an address and pair it with a token.

    Raises:
        UploadError: It is no http(s) address, holds a password, or the token would go in clear
            over a network.
    """
    try:
        parts = urlsplit(url.strip())
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise UploadError(f"{url!r} is no address of a server: {error}.") from error
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise UploadError(
            f"{url!r} is no address of a server; give one such as https://hostbound.example:8443."
        )
    if parts.username is not None or parts.password is not None:
        raise UploadError(
            f"the address of {host} holds a user or password; put a token into {TOKEN_VARIABLE} or "
            "a --token-file."
        )
    if parts.query or parts.fragment or any(ord(c) <= 32 or ord(c) == 127 for c in url.strip()):
        raise UploadError(f"{url!r} is more than an address; leave out what follows the path.")
    if (
        parts.scheme == "http"
        and token is not None
        and not insecure
        and not proxy.is_loopback(host)
    ):
        raise UploadError(
            f"{url} is plain http: anybody on the way could read the token. Give its https "
            "address, or --insecure if the way is private."
        )
    return Endpoint(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", token)


def read_token(file: Path | None) -> str | None:
    """The token of a file, else of the environment, else None.

    Raises:
        UploadError: The file cannot be read, or what was given is no token.
    """
    if file is not None:
        where = str(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UploadError(f"--token-file {file} cannot be read: {error}.") from error
    else:
        where = TOKEN_VARIABLE
        text = os.environ.get(TOKEN_VARIABLE)
        if text is None:
            return None
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UploadError(f"{where} holds no token; put the one line there that the server gave.")
    return token


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or default


def _connect(
    target: SplitResult, through: proxy.Proxy | None, timeout_s: float
) -> http.client.HTTPConnection:
    host, port = target.hostname or "", target.port
    first, first_port = (host, port) if through is None else (through.host, through.port)
    if target.scheme == "http":
        return http.client.HTTPConnection(first, first_port, timeout=timeout_s)
    connection = http.client.HTTPSConnection(
        first, first_port, timeout=timeout_s, context=ssl.create_default_context()
    )
    if through is not None:
        connection.set_tunnel(host, port or 443, through.headers)
    return connection


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return f"its name is not known here ({error.strerror})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).lower() or type(error).__name__
