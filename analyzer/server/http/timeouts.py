"""Clients that send or read slowly, by a bad line or on purpose: how long each may hold a
connection.

A request's headers must be whole within a time. Its body must on average come faster than
LEAST_BYTES_PER_SECOND; only the time that the server waited for it counts, not the time it took to
write what came. An answer must be read as fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
import time
from collections.abc import Awaitable, Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LEAST_BYTES_PER_SECOND = 1024
_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b'Content-Length: 45\r\n\r\n{"detail":"the request did not come in time"}'
)


def protocol(seconds: float, most_connections: int) -> type[H11Protocol]:
    """uvicorn's protocol over a connection, which ends it when no whole headers come in time, or
    nobody reads what it answers; and ends the one that has been idle for longest when there are
    too many.

    Between requests uvicorn's own `timeout_keep_alive` counts, until the first byte of the next.
    """

    idle: dict[H11Protocol, None] = {}  # the longest first

    class Protocol(H11Protocol):
        _late: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most_connections:
                longest = next(iter(idle), self)
                idle.pop(longest, None)
                longest.transport.abort()
            if not transport.is_closing():
                idle[self] = None
            self._late = self.loop.call_later(seconds, self._end)

        def data_received(self, data: bytes) -> None:
            idle.pop(self, None)
            super().data_received(data)
            if self.conn.their_state is h11.IDLE and self.transport.get_protocol() is self:
                idle[self] = None  # no whole headers yet
            theirs, ours = self.conn.their_state, self.conn.our_state
            # Headers that are not whole, or a body that is answered already and read by nobody.
            if theirs is h11.IDLE or (theirs is h11.SEND_BODY and ours is h11.DONE):
                if self._late is None:
                    self._late = self.loop.call_later(seconds, self._end)
            else:
                self._forget()

        def connection_lost(self, exc: Exception | None) -> None:
            idle.pop(self, None)
            self._forget()
            self._stop_watching()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            idle[self] = None
            super().on_response_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_reading()

        def resume_writing(self) -> None:
            self._stop_watching()
            super().resume_writing()

        def _watch_reading(self) -> None:
            """Look after a time how much of what waits the client has taken."""
            before = _waiting(self.transport)

            def look() -> None:
                taken = before - _waiting(self.transport)
                if taken < LEAST_BYTES_PER_SECOND * seconds:
                    self.transport.abort()  # `close` would wait for it
                else:
                    self._watch_reading()

            self._unread = self.loop.call_later(seconds, look)

        def _stop_watching(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def _forget(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _end(self) -> None:
            if not self.transport.is_closing():
                if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
                    self.transport.write(_LATE)
                self.transport.close()

    return Protocol


def _waiting(transport: asyncio.Transport) -> int:
    """Bytes of an answer that the client's host has not taken: here, and in the system's queue,
    which may hold megabytes that a slow line is still busy with.
    """
    queued = bytes(4)
    with contextlib.suppress(OSError):  # a system that does not say
        queued = fcntl.ioctl(transport.get_extra_info("socket"), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)


class TooSlow(Exception):
    """A body did not come in time."""


class TimedBody:
    """Receives the messages of one request's body, for as long as they come fast enough.

    Args:
        seconds: Silence that is borne at once, and in total beside the least speed.
    """

    def __init__(
        self,
        receive: Callable[[], Awaitable[Any]],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._receive = receive
        self._seconds = seconds
        self._clock = clock
        self._left_s = seconds
        self.is_whole = False

    async def receive(self) -> Any:
        """The next message; after the last one nothing is timed.

        Raises:
            TooSlow: It did not come in time.
        """
        if self.is_whole:
            return await self._receive()
        began = self._clock()
        try:
            message = await asyncio.wait_for(self._receive(), min(self._left_s, self._seconds))
        except (TimeoutError, asyncio.TimeoutError):
            raise TooSlow from None
        self._left_s -= self._clock() - began
        self._left_s += len(message.get("body", b"")) / LEAST_BYTES_PER_SECOND
        if self._left_s <= 0:
            raise TooSlow
        self.is_whole = not message.get("more_body", False)
        return message
