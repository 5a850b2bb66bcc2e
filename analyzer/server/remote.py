"""Questions to a server from the command line: `--server URL`, the token in HOSTBOUND_TOKEN.

Answers come back as the records that the local command would have made, so both print the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from analyzer.errors import AnalyzerError
from schemas.endpoint import TOKEN_VARIABLE, Unreachable, parse_endpoint

T = TypeVar("T")
_PATIENCE_S = 600.0  # a comparison of large runs takes a while
_HINTS = {401: f"; export a token of it as {TOKEN_VARIABLE}"}


def ask(
    url: str,
    path: str,
    query: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
    method: str = "GET",
    body: object = None,
) -> bytes:
    """The answer of a server to one request of its API.

    Args:
        path: Under /api/v1/; each part quoted by `part` if somebody typed it.
        body: Sent as JSON.

    Raises:
        AnalyzerError: It does not answer, or refuses.
    """
    server = parse_endpoint(url, os.environ.get(TOKEN_VARIABLE) or None)
    asked = f"/api/v1/{path}" + (f"?{urlencode(query)}" if query else "")
    sent = None if body is None else json.dumps(body).encode()
    headers = {} if sent is None else {"Content-Type": "application/json"}
    try:
        answer = server.request(method, asked, body=sent, headers=headers, timeout_s=_PATIENCE_S)
    except Unreachable as error:
        raise AnalyzerError(f"{server.base} does not answer: {error}; is the server up?") from error
    if answer.status != 200:
        hint = _HINTS.get(answer.status, "")
        raise AnalyzerError(
            f"{server.base} refused ({answer.status}): {answer.detail().rstrip('.')}{hint}."
        )
    return answer.body


def record(
    kind: type[T], url: str, path: str, query: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
) -> T:
    """An answer as a record.

    Raises:
        AnalyzerError: As `ask`, or the server is of another version.
    """
    try:
        return msgspec.json.decode(ask(url, path, query), type=kind)
    except msgspec.DecodeError as error:
        raise AnalyzerError(
            f"{url} answers what this version does not know ({error}); use the server's version."
        ) from error


def change(url: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """What a server says after a change; raises as `ask`."""
    return json.loads(ask(url, path, method="PATCH", body=body))


def part(text: str) -> str:
    """What somebody typed, as one part of a path."""
    return quote(text, safe="")
