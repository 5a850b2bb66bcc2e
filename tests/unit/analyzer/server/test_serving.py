"""How a server listens."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from analyzer.server import logs
from analyzer.server.serve import _bound  # pyright: ignore[reportPrivateUsage]
from tests.support import asynchronous


def test_a_connection_sends_at_once_what_is_written() -> None:
    """Without TCP_NODELAY a body waits until the client's system has confirmed the headers."""
    found: list[int] = []

    class Looking(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted = transport.get_extra_info("socket")
            found.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def look(bound: socket.socket) -> None:
        server = await asyncio.get_running_loop().create_server(Looking, sock=bound)
        async with server:
            _, writer = await asyncio.open_connection(*bound.getsockname())
            while not found:
                await asyncio.sleep(0)
            writer.close()

    with _bound("127.0.0.1", 0) as bound:
        asynchronous.run(look(bound))
    assert found == [1]


def test_a_cause_that_comes_again_and_again_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    handler = logs._AsLines(lambda: now[0])  # pyright: ignore[reportPrivateUsage]
    record = logging.LogRecord("asyncio", logging.ERROR, "x.py", 1, "no more files", (), None)
    for _ in range(1000):
        handler.emit(record)
    now[0] = 60.0
    handler.emit(record)

    first, second = capsys.readouterr().err.splitlines()
    assert "no more files" in first
    assert '"repeated":999' in second


def test_a_fault_is_told_without_a_traceback() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        told = logs.fault(error)

    assert told["error"] == "ValueError: two lines"
    assert [step.partition(":")[0] for step in told["where"]] == ["test_serving.py"]
