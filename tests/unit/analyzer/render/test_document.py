"""Markdown and HTML say what the terminal says, and names in them stay text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.text import Text

from analyzer import queries
from analyzer.ingest import ingest
from analyzer.render.document import Document
from analyzer.render.report import print_report
from analyzer.render.tables import heading, table
from analyzer.reports.report import report

HOSTILE = "<img src=https://x.example/a.png> [click](https://x.example) @all | `x` www.x.example"


class Seen(HTMLParser):
    """Tags, and what they would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for key, value in attrs if key in ("src", "href", "srcset")]


def small(name: str) -> Document:
    out = Document()
    out.print(Text(name, style="bold"))
    heading(out, "Section")
    out.print(table([("name", "name"), ("time", "right"), ("", "left")], [(name, "3 us", "██")]))
    out.print(Text("  a fact"))
    out.print(Text("  another"))
    return out


def test_a_small_document_in_markdown() -> None:
    assert small("run-1").markdown() == (
        "## run-1\n\n### Section\n\n| name | time |\n| --- | ---: |\n| run-1 | 3 us |\n\n"
        "- a fact\n- another\n"
    )


def test_a_hostile_name_is_no_markup_in_markdown() -> None:
    text = small(HOSTILE).markdown()

    assert "<img" not in text
    assert re.search(r"(?<!\\)[\[\]]", text) is None
    assert "://" not in text
    assert "@all" not in text
    assert "www." not in text
    assert "\\|" in text
    assert (
        len(
            {
                line.count("|") - line.count("\\|")
                for line in text.split("\n")
                if "3 us" in line or "---" in line
            }
        )
        == 1
    )


def test_a_hostile_name_is_no_tag_in_html_and_nothing_is_loaded() -> None:
    seen = Seen()

    seen.feed(small(HOSTILE).html(HOSTILE))

    assert not seen.tags & {"img", "script", "a", "link", "iframe"}
    assert seen.loads == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Document:
    db = tmp_path_factory.mktemp("document") / "s.duckdb"
    ingest([samples_dir / "gpt2-prefill-bs1-s512"], db, jobs=1)
    out = Document()
    with queries.connect(db) as connection:
        print_report(report(connection, queries.find_run(connection, "latest")), out)
    return out


def test_a_report_fits_an_issue_and_loads_nothing(whole: Document) -> None:
    seen = Seen()
    seen.feed(whole.html("report"))

    assert len(whole.markdown()) < 65_536
    assert {"table", "h1", "h2"} <= seen.tags
    assert seen.loads == []
    assert "url(" not in whole.html("report")


def test_a_report_has_the_same_figures_in_each_format(whole: Document) -> None:
    markdown, html = whole.markdown(), whole.html("report")

    for figure in ("T\\_Orchestration", "Ledger of the launching thread"):
        assert figure in markdown
        assert figure.replace("\\", "") in html
