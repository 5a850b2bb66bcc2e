"""The app in the process that serves it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import asynchronous
from webapp import hosting


async def send_file(size: int, session: str = "mine") -> list[int]:
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    headers = [(b"content-length", str(size).encode())]
    path = f"{hosting.FILES}{session}/file"
    scope = {"type": "http", "method": "PUT", "path": path, "headers": headers}
    await hosting.FilesInMemory(app, 100)(scope, receive, send)
    return statuses


@pytest.mark.parametrize(
    ("held", "size", "status"),
    [
        ({}, 100, 204),
        ({}, 101, 413),
        ({"mine": 60}, 40, 204),
        ({"mine": 60}, 41, 413),
        ({"others": 60}, 100, 204),
        ({"a": 100, "b": 100, "c": 100, "d": 60}, 41, 413),
    ],
)
def test_files_are_taken_as_long_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch, held: dict[str, int], size: int, status: int
) -> None:
    monkeypatch.setattr(hosting, "held_bytes", lambda: held)

    assert asynchronous.run(send_file(size)) == [status]
