"""A JSON document is walked piece by piece as if it were parsed whole, and damage is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.trace.json_stream import JsonStream
from analyzer.trace.stream import TraceError, TraceStream

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


class Pieces:
    """A stream of pieces of a few bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        self.path, self.broken, self.json_bytes = Path("t.json"), None, 0
        self._data, self._size = data, size

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self._data), self._size):
            piece = self._data[at : at + self._size]
            self.json_bytes += len(piece)
            yield piece

    def compressed_position(self) -> int:
        return self.json_bytes


def stream_of(data: bytes, size: int = 1 << 20) -> JsonStream:
    return JsonStream(Pieces(data, size), None)  # pyright: ignore[reportArgumentType]


def walked(stream: JsonStream, kind: Any) -> Any:
    """The value here, a list or object entered, as an equal one was made of `kind`."""
    if isinstance(kind, dict):
        return {key: walked(stream, kind[key]) for key in stream.members()}
    if isinstance(kind, list):
        return [walked(stream, kind[i]) for i, _ in enumerate(stream.items())]
    return stream.value()


@given(VALUES, st.integers(1, 9), st.sampled_from([None, 2]))
def test_a_document_is_the_same_walked_or_parsed(value: Any, size: int, indent: int | None) -> None:
    data = json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "surrogatepass")
    assert walked(stream_of(data, size), value) == value
    assert stream_of(data, size).value() == value


@given(VALUES, VALUES, st.integers(1, 9))
def test_what_is_skipped_leaves_what_follows(skipped: Any, kept: Any, size: int) -> None:
    stream = stream_of(json.dumps([skipped, kept]).encode(), size)
    found: list[Any] = []
    for number, _ in enumerate(stream.items()):
        if number == 0:
            stream.skip()
        else:
            found.append(stream.value())
    assert found == [kept]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a": [1, 2', "cut off"),
        (b'{"a" 1}', "no JSON there"),
        (b"[1 2]", "no JSON there"),
        (b"", "cut off"),
        (b"[" * 5000, "no JSON there"),
    ],
)
def test_damage_is_one_line_with_its_place(data: bytes, why: str) -> None:
    with pytest.raises(TraceError, match=rf"t\.json is damaged near byte \d+ \(it is {why}\)"):
        stream_of(data).skip()


def test_a_packed_file_that_is_cut_off_says_so(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"a": [' + b"1, " * 50_000)[:-20])
    with (
        TraceStream(path) as stream,
        pytest.raises(TraceError, match="the gzip stream is cut off"),
    ):
        JsonStream(stream, None).skip()
