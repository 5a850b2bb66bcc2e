"""docs/schema.md says what the store is: every name is there, and its queries run and answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analyzer.ingest import ingest
from analyzer.store import open_store
from analyzer.store.sandbox import run_sql
from schemas.run_directory import MANIFEST

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    path = tmp_path_factory.mktemp("docs") / "store.duckdb"
    ingest([manifest.parent for manifest in samples_dir.glob(f"*/{MANIFEST}")], path, jobs=1)
    return path


def columns(store: Path, kind: str) -> dict[str, list[tuple[str, str]]]:
    """Columns and types by name of table ("BASE TABLE") or view ("VIEW")."""
    sql = (
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "JOIN information_schema.tables USING (table_catalog, table_schema, table_name) "
        "WHERE table_schema = 'main' AND table_type = ? ORDER BY table_name, ordinal_position"
    )
    found: dict[str, list[tuple[str, str]]] = {}
    with open_store(store).reading() as connection:
        for table, column, type_ in connection.execute(sql, [kind]).fetchall():
            found.setdefault(table, []).append((column, type_))
    return found


def test_every_table_is_described_column_by_column(store: Path) -> None:
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", PAGE, re.DOTALL | re.MULTILINE))
    described = {
        table: re.findall(r"^\| `(\w+)` \| ([\w\[\]]+) \| \S", text, re.MULTILINE)
        for table, text in sections.items()
    }
    assert described == columns(store, "BASE TABLE")


def test_every_view_is_described_with_its_own_columns(store: Path) -> None:
    text = PAGE.partition("## Views")[2].partition("## Tables")[0]
    paragraphs = {p.split("`")[1]: p for p in text.split("\n\n") if p.startswith("`")}
    views = columns(store, "VIEW")
    assert set(paragraphs) == set(views)
    tables = columns(store, "BASE TABLE")
    inherited = {"run_totals": "totals", "step_totals": "totals", "launch_costs": "launches"}
    for view, found in views.items():
        taken = {c for c, _ in tables[inherited[view]]} if view in inherited else set[str]()
        named = set(re.findall(r"`(\w+)`", paragraphs[view]))
        assert {c for c, _ in found} - taken <= named, view


def test_there_are_ten_queries() -> None:
    assert len(QUERIES) == 10


@pytest.mark.parametrize("number", range(10))
def test_a_query_of_the_page_answers_on_the_samples(store: Path, number: int) -> None:
    table = run_sql(store, QUERIES[number])
    assert table.num_rows > 0
    assert all(column.null_count < table.num_rows for column in table.columns)


def test_links_between_pages_lead_somewhere() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    for page in docs.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_python_example_does_what_its_comments_say(
    samples_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "analyzer.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [text for text in examples if "print(" in text]
    (tmp_path / "gpt2-prefill-bs1-s512").symlink_to(samples_dir / "gpt2-prefill-bs1-s512")
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    exec(example, {"print": lambda *values: printed.append(" ".join(map(str, values)))})

    expected = re.findall(r"print\(.*?\)\s+# (.*)", example)
    assert len(expected) == 2
    assert printed[:2] == expected
    assert len(printed) > 4
