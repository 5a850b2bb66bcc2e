"""A JSON document of any size, walked as it comes: only what is asked for is held.

For formats whose bulk stands in lists of small objects. Each list and object is walked to its end
before what follows is asked for.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from analyzer.trace.stream import TraceError, TraceStream

_SPACE = re.compile(r"[ \t\r\n\x00\ufeff]*")
_MOST_HELD = 64 << 20
_DEEPEST = 100


class JsonStream:
    """The place in a document, and what is read of it."""

    def __init__(self, stream: TraceStream, progress: Callable[[int], None] | None) -> None:
        self._stream = stream
        self._pieces = iter(stream)
        self._progress = progress
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._ended = False
        self._depth = 0

    def members(self) -> Iterator[str]:
        """Yield each key of the object here; its value is to be taken before the next one.

        Raises:
            TraceError: There is no object, or it is damaged.
        """
        for _ in self._parts("{", "}"):
            key = self.value()
            if not isinstance(key, str) or self._next() != ":":
                raise self._damaged()
            self._at += 1
            yield key

    def items(self) -> Iterator[None]:
        """Yield before each element of the list here; it is to be taken before the next one.

        Raises:
            TraceError: There is no list, or it is damaged.
        """
        return self._parts("[", "]")

    def value(self) -> Any:
        """Take the value here whole.

        Raises:
            TraceError: It is damaged, or too large to be held.
        """
        self._next()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or not self._more():
                    raise self._damaged() from error
                continue
            # A number may go on: behind `1` with `.5`, behind `1e+` (seen as 1) with `5`.
            if len(self._text) - end <= len("e+") and self._more():
                continue
            self._at = end
            return value

    def skip(self) -> None:
        """Pass over the value here, holding as little of it as may be.

        Raises:
            TraceError: It is damaged.
        """
        first = self._next()
        if first == "{":
            for _ in self.members():
                self.skip()
        elif first == "[":
            for _ in self.items():
                self.skip()
        else:
            self.value()

    def _parts(self, opening: str, closing: str) -> Iterator[None]:
        if self._next() != opening or self._depth >= _DEEPEST:
            raise self._damaged()
        self._at += 1
        self._depth += 1
        if self._next() != closing:
            yield
            while (mark := self._next()) == ",":
                self._at += 1
                yield
            if mark != closing:
                raise self._damaged()
        self._at += 1
        self._depth -= 1

    def _next(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Append the next piece; False at the end of the file."""
        if self._ended or len(self._text) - self._at > _MOST_HELD:
            return False
        piece = next(self._pieces, None)
        if piece is None:
            self._ended = True
            self._text += self._decode(b"", True)
            return False
        self._text = self._text[self._at :] + self._decode(piece)
        self._at = 0
        if self._progress:
            self._progress(self._stream.compressed_position())
        return True

    def _damaged(self) -> TraceError:
        what = self._stream.broken or ("it is cut off" if self._ended else "it is no JSON there")
        place = self._stream.json_bytes - len(self._text) + self._at
        return TraceError(
            f"{self._stream.path} is damaged near byte {place} ({what}); copy or record it again."
        )
