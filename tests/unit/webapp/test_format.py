"""Numbers and foreign texts on a page."""

from __future__ import annotations

import io
import threading

import polars as pl
import pytest

from tests.unit.webapp.conftest import CPU_EVENTS, written
from webapp import data, format, frame


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, 0.0), (1234.5, 1230.0), (0.0012345, 0.00123), (None, None), (float("nan"), None)],
)
def test_digits_keeps_three_and_leaves_the_unknown_unknown(value, shown):
    assert format.digits(value) == shown


def test_unit_fits_the_largest():
    assert format.unit([5, 1_900]) == ("ns", 1.0)
    assert format.unit([5_000_000, None]) == ("ms", 1e6)
    assert format.unit([]) == ("ns", 1.0)


def test_plain_leaves_no_sign_of_markdown_bare():
    assert format.plain("a*b_<i>") == "a\\*b\\_\\<i\\>"
    assert format.plain(None) == "-"


def test_short_cuts_in_the_middle():
    assert format.short("a" * 50 + "b" * 50, 11) == "a" * 6 + "…" + "b" * 4


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("run `collector floor` on it", "run `collector floor` on it"),
        ("`a` is no *file*", "`a` is no \\*file\\*"),
        ("a ` alone", "a \\` alone"),
        ("`` `x`", "\\`\\` `x`"),
        ("[x](http://example.invalid)", "\\[x\\]\\(http\\://example\\.invalid\\)"),
    ],
)
def test_code_in_a_message_is_code_and_the_rest_is_text(message, shown):
    assert format.prose(message) == shown


def test_csv_holds_lists_as_text_and_exact_numbers():
    rows = pl.DataFrame({"ns": [9_007_199_254_740_993], "many": [[1, 2]]})
    assert frame.csv(rows).decode() == 'ns,many\n9007199254740993,"[1, 2]"\n'


def test_uploaded_files_become_runs_whatever_their_names(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "new.duckdb"))
    content = written(tmp_path / "t.json", CPU_EVENTS).read_bytes()
    results = data.load([("../../evil.json", io.BytesIO(content))])
    assert [(r.state, r.name) for r in results] == [("stored", "evil")]
    assert not (tmp_path.parent / "evil.json").exists()


def test_an_uploaded_run_directory_is_one_run(tmp_path, monkeypatch, samples_dir):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "new.duckdb"))
    folder = samples_dir / "gpt2-prefill-bs2-s512"
    files = [(path.name, io.BytesIO(path.read_bytes())) for path in sorted(folder.iterdir())]
    (result,) = data.load(files)
    assert result.state == "stored"
    assert result.kernels == 235


def test_an_upload_waits_for_whoever_reads_in_the_same_process(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "shared.duckdb"))
    data.take_turns()
    content = written(tmp_path / "one.json", CPU_EVENTS).read_bytes()
    data.load([("one.json", io.BytesIO(content))])
    other = written(tmp_path / "two.json", CPU_EVENTS[:2]).read_bytes()
    results = []
    uploading = threading.Thread(
        target=lambda: results.extend(data.load([("two.json", io.BytesIO(other))]))
    )
    with data.one_connection():
        assert len(data.runs()) == 1
        uploading.start()
        uploading.join(0.5)
        assert uploading.is_alive()
    uploading.join(30)
    assert [result.state for result in results] == ["stored"]
    assert len(data.runs()) == 2


def test_an_upload_from_a_page_that_has_read_does_not_wait_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "own.duckdb"))
    data.take_turns()
    content = written(tmp_path / "one.json", CPU_EVENTS).read_bytes()
    data.load([("one.json", io.BytesIO(content))])
    other = written(tmp_path / "two.json", CPU_EVENTS[:2]).read_bytes()
    with data.one_connection():
        assert len(data.runs()) == 1
        (result,) = data.load([("two.json", io.BytesIO(other))])
        assert result.state == "stored"
        assert len(data.runs()) == 2


def test_a_typed_statement_does_not_wait_for_a_writer_that_waits_for_its_page(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "three.duckdb"))
    data.take_turns()
    content = written(tmp_path / "one.json", CPU_EVENTS).read_bytes()
    data.load([("one.json", io.BytesIO(content))])
    other = written(tmp_path / "two.json", CPU_EVENTS[:2]).read_bytes()
    uploading = threading.Thread(target=lambda: data.load([("two.json", io.BytesIO(other))]))
    with data.one_connection():
        assert len(data.runs()) == 1
        uploading.start()
        uploading.join(0.3)
        statement = data.Statement("SELECT count(*) AS runs FROM runs", 10, 5.0)
        assert statement.wait(8)
        assert statement.rows()["runs"].item() in (1, 2)
    uploading.join(30)
    assert not uploading.is_alive()


def test_uploaded_nonsense_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "new.duckdb"))
    results = data.load([("holiday.json", io.BytesIO(b"no trace at all"))])
    assert results[0].state == "failed"
    assert results[0].error
