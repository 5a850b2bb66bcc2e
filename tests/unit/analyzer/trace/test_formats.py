"""A file's content tells its format; each format is a module behind one interface."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from analyzer.trace import formats, kineto
from analyzer.trace.events import Trace
from analyzer.trace.reader import DEFAULTS, ReadOptions
from analyzer.trace.stream import TraceError
from tests.support.tracebuilder import TraceBuilder


class Numbered:
    """A format whose files begin with a number; it reads the trace in the file beside it."""

    def sniff(self, path: Path) -> bool:
        return path.read_bytes()[:1].isdigit()

    def read(self, path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
        return kineto.read(path.with_suffix(".json"), options)


def one_op() -> TraceBuilder:
    return TraceBuilder().add_op("aten::mm", 1, 2)


@pytest.mark.parametrize("text", [b'{"traceEvents": []}', b"[]", b"\xef\xbb\xbf \n{"])
def test_json_is_told_by_its_content_packed_or_not(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b").write_bytes(gzip.compress(text))
    assert kineto.sniff(tmp_path / "a.txt")
    assert kineto.sniff(tmp_path / "b")


@pytest.mark.parametrize(
    "content",
    [b"", b"SQLite format 3\x00", b"\x1f\x8b\x08 cut off", gzip.compress(b"\x0a\x03abc", mtime=0)],
)
def test_what_is_no_json_is_not_taken_for_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    assert not kineto.sniff(path)


def test_what_cannot_be_read_is_no_format_and_the_error_says_why(tmp_path: Path) -> None:
    path = tmp_path / "absent.json"
    assert not kineto.sniff(path)
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        formats.read(path)


def test_what_nobody_recognises_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"SQLite format 3")
    with pytest.raises(TraceError, match=r"is no trace: at byte 0 it has .*SQLite"):
        formats.read(path)


def test_a_new_format_gets_the_files_that_it_recognises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "READERS", (Numbered(), *formats.READERS))
    one_op().write(tmp_path / "t.json")
    (tmp_path / "t.other").write_text("1")
    assert isinstance(formats.reader_of(tmp_path / "t.other"), Numbered)
    assert formats.reader_of(tmp_path / "t.json") is kineto
    (trace,) = formats.read(tmp_path / "t.other")
    assert trace.events == 1


def test_options_reach_the_reader(tmp_path: Path) -> None:
    built = one_op()
    built.add("python_function", "f", 0, 5)
    path = built.write(tmp_path / "t.json")
    kept = formats.read(path, ReadOptions(keep_python=True))[0]
    assert (len(formats.read(path)[0].rows), len(kept.rows)) == (1, 2)
    with pytest.raises(TraceError, match="more than 1 events"):
        formats.read(path, ReadOptions(most_events=1))
