"""Child processes of the server: each is sent messages, answers, and is watched while it does.

A child is a module of this package, started by name; a socket to it carries messages, each of some
bytes. What it says is not believed to be well-formed and never unpickled: it works on what clients
sent. It is killed when it takes longer, more memory or more room for its answer than it may. A
child sees the end of its server as the end of the socket.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

_ROOT = Path(__file__).resolve().parents[2]
_LENGTH = struct.Struct("!Q")
_PIECE = 1 << 20
_LOOK_S = 0.05
_SEND_S = 60.0  # a child that has just been started takes a while to read
_LARGEST = 1 << 40

Reason = Literal["ended", "time", "memory", "size", "asked"]


class Stopped(Exception):
    """A child gives no answer any more.

    Attributes:
        reason: It "ended" by itself or was killed by somebody else; or was stopped here, as it took
            too much "time", "memory" or "size" of its answer, or because that was "asked" for.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Channel:
    """One end of the socket between a server and a child."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, *parts: bytes) -> None:
        """Send one message, made of parts.

        Raises:
            OSError: The other end is gone, or does not read.
        """
        self._end.sendall(_LENGTH.pack(sum(map(len, parts))))
        for part in parts:
            self._end.sendall(part)

    def receive(self) -> bytes:
        """Wait for one message.

        Raises:
            EOFError: The other end is gone.
        """
        return self._exactly(_LENGTH.unpack(self._exactly(_LENGTH.size))[0])

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            piece = self._end.recv(min(_PIECE, count - len(found)))
            if not piece:
                raise EOFError
            found += piece
        return bytes(found)


def channel() -> Channel:
    """In a child: its end of the socket."""
    return Channel(socket.socket(fileno=int(sys.argv[1])))


class Child:
    """A child process and this server's end of the socket to it."""

    def __init__(
        self, module: str, environment: Mapping[str, str], is_confined: bool = False
    ) -> None:
        """Start it; it loads what it needs, then waits for a message.

        Args:
            module: What `python -m` runs.
            environment: All of its environment, but where Python finds this package.
            is_confined: What it writes to stderr is dropped.
        """
        path = os.pathsep.join(filter(None, (str(_ROOT), environment.get("PYTHONPATH"))))
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if is_confined else None,
                cwd="/",  # `-m` looks for modules here first: in no folder of a user
                env={**environment, "PYTHONPATH": path},
                pass_fds=(theirs.fileno(),),
            )
        self._socket = ours
        self._channel = Channel(ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def send(self, message: bytes) -> None:
        """Send a message.

        Raises:
            Stopped: It is gone, or does not read.
        """
        try:
            self._socket.settimeout(_SEND_S)
            self._channel.send(message)
        except OSError as error:
            self.end()
            raise Stopped("ended") from error

    def receive(
        self,
        deadline: float,
        memory_bytes: int | None = None,
        answer_bytes: int = _LARGEST,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> bytes:
        """Wait for a message, and watch the child meanwhile.

        Args:
            deadline: Of `time.monotonic`.
            memory_bytes: Resident memory that it may hold; None: it is not watched.
            answer_bytes: Length that the message may have.

        Raises:
            Stopped: It ended, or was ended here.
        """
        self._socket.settimeout(_LOOK_S)
        found = bytearray()
        wanted = _LENGTH.size
        while len(found) < wanted:
            try:
                # No more than this message: the next one is somebody else's to wait for.
                piece = self._socket.recv(min(_PIECE, wanted - len(found)))
            except TimeoutError:
                piece = None
            except OSError:
                piece = b""
            if piece == b"":
                self._stop("ended")
            found += piece or b""
            if wanted == _LENGTH.size == len(found):
                wanted += _LENGTH.unpack(found)[0]
                if wanted - _LENGTH.size > answer_bytes:
                    self._stop("size")
            elif len(found) == wanted:
                break
            elif is_asked_to_stop():
                self._stop("asked")
            elif time.monotonic() > deadline:
                self._stop("time")
            elif memory_bytes is not None and resident_bytes(self.pid) > memory_bytes:
                self._stop("memory")
        del found[: _LENGTH.size]
        return bytes(found)

    def _stop(self, reason: Reason) -> None:
        self.end()
        raise Stopped(reason)


def resident_bytes(pid: int) -> int:
    """Memory that a process holds; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
