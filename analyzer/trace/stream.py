"""A trace file as a stream of decompressed pieces, read ahead in a thread; plain or gzip by its
first bytes.

Memory stays at a few pieces whatever the file's size. What ends early ends the stream, and `broken`
says how: the reader then reports the trace as truncated, never as whole.
"""

from __future__ import annotations

import gzip
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from schemas.errors import HostboundError

try:  # several times faster than the standard library's; the same interface
    from isal import igzip as fast_gzip  # pyright: ignore[reportMissingTypeStubs]
    from isal.isal_zlib import error as fast_error  # pyright: ignore[reportMissingTypeStubs]
except ImportError:
    fast_gzip = gzip
    fast_error = zlib.error

_DAMAGED = (gzip.BadGzipFile, zlib.error, cast("type[Exception]", fast_error))

PIECE_BYTES = 4 << 20
_AHEAD = 3
SPACE = b" \t\r\n\x00\xef\xbb\xbf"  # what may stand before a document: a byte order mark too


class TraceError(HostboundError):
    """A file cannot be read as a trace."""


class TraceStream:
    """The decompressed bytes of one file, in pieces.

    Attributes:
        broken: None, or why the stream ended before its end ("gzip stream cut off", ...).
        json_bytes: Bytes handed out so far.
    """

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        """Open a file; more than `most_bytes` decompressed bytes are refused while reading.

        Raises:
            TraceError: The file cannot be read.
        """
        self.path = path
        self._most_bytes = most_bytes
        self.broken: str | None = None
        self.json_bytes = 0
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror}.") from error
        magic = self._file.read(2)
        self._file.seek(0)
        self.is_gzip = magic == b"\x1f\x8b"
        self._queue: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="trace-stream", daemon=True)
        self._thread.start()

    def __enter__(self) -> TraceStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():  # a full queue would hold the thread
            try:
                self._queue.get(timeout=0.01)
            except queue.Empty:
                continue
        self._file.close()

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._queue.get()) is not None:
            self.json_bytes += len(piece)
            if self._most_bytes is not None and self.json_bytes > self._most_bytes:
                raise TraceError(
                    f"{self.path} holds more than {self._most_bytes} bytes of JSON, the most that "
                    "is read here; record fewer steps in a trace."
                )
            yield piece
        if self._failure is not None:
            raise self._failure

    def compressed_position(self) -> int:
        """Bytes of the file read so far, for a progress bar."""
        return 0 if self._file.closed else self._file.tell()

    def _read(self) -> None:
        try:
            source = cast(
                "IO[bytes]",
                fast_gzip.open(self._file) if self.is_gzip else self._file,  # pyright: ignore[reportUnknownMemberType]
            )
            while not self._stop.is_set():
                piece = source.read(PIECE_BYTES)
                if not piece:
                    break
                self._put(piece)
        except EOFError:
            self.broken = "the gzip stream is cut off"
        except _DAMAGED as error:
            self.broken = f"the gzip stream is damaged ({error})"
        except OSError as error:
            self._failure = TraceError(f"{self.path} cannot be read: {error}.")
        except BaseException as error:  # handed to the consumer's thread, which raises it
            self._failure = error
        finally:
            self._put(None)

    def _put(self, piece: bytes | None) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(piece, timeout=0.1)
                return
            except queue.Full:
                continue


def first_bytes(path: Path, size: int = 4096) -> bytes:
    """Return the first decompressed bytes of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            source = cast(
                "IO[bytes]",
                fast_gzip.open(file) if is_gzip else file,  # pyright: ignore[reportUnknownMemberType]
            )
            return source.read(size)
    except (OSError, EOFError, *_DAMAGED):
        return b""


class Feed:
    """What is held of the stream: `buffer[at:]` is not read yet."""

    def __init__(self, stream: TraceStream, progress: Callable[[int], None] | None) -> None:
        self.stream = stream
        self._pieces = iter(stream)
        self._progress = progress
        self.buffer = b""
        self.at = 0
        self.base = 0
        self.ended = False

    def place(self, at: int | None = None) -> int:
        """Byte offset in the decompressed file."""
        return self.base + (self.at if at is None else at)

    def more(self) -> bool:
        """Append the next piece; False at the end of the stream."""
        piece = next(self._pieces, None)
        if piece is None:
            self.ended = True
            return False
        self.base += self.at
        self.buffer = self.buffer[self.at :] + piece
        self.at = 0
        if self._progress:
            self._progress(self.stream.compressed_position())
        return True

    def skip_space(self) -> bool:
        """Go to the next character that is no white space; False if there is none."""
        while True:
            rest = self.buffer[self.at : self.at + 65_536]
            kept = rest.lstrip(SPACE)
            self.at += len(rest) - len(kept)
            if kept:
                return True
            if self.at >= len(self.buffer) and not self.more():
                return False
