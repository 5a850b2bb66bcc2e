"""Documents agree with the project: links lead somewhere, commands exist, shown output is real."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").rglob("*.md.in"),
        ROOT / "benchmarks" / "README.md",
        ROOT / "analyzer" / "samples" / "README.md",
    )
)
MAIN = "import sys; from analyzer.cli import main; sys.exit(main())"
WIDTH = 120
# To be filled anew when those who hold them are done; then this goes.
HELD = {
    *(
        Path("docs") / f"{name}.md"
        for name in ("hybrid", "operations", "schema", "server", "webapp")
    ),
}
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)|^\[[^\]]+\]:\s*(\S+)$", re.MULTILINE)
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

per_page = pytest.mark.parametrize("page", PAGES, ids=str)


def text(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def commands(program: str) -> Iterator[list[str]]:
    """The words after `program` in the code of README, a list a call."""
    for line in re.findall(rf"(?:^|`)(?:\$ )?{program} ([^`\n]+)", text(Path("README.md")), re.M):
        yield line.partition("#")[0].split()


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HELD], ids=str)
def test_lines_are_at_most_120_wide(page: Path) -> None:
    """But for rows of tables, which Markdown cannot break."""
    lines = text(page).splitlines()
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("|")] == []


@per_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    lost: list[str] = []
    for link in (a or b for a, b in LINK.findall(without_code(page))):
        file, _, anchor = link.partition("#")
        if "://" in file:
            continue
        target = (ROOT / page.parent / file).resolve() if file else ROOT / page
        is_lost = not target.exists() or (anchor and anchor not in anchors(target))
        lost += [link] if is_lost else []
    assert lost == []


def test_make_targets_that_readme_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {words[0] for words in commands("make") if re.fullmatch(r"[a-z-]+", words[0])}
    assert named >= {"demo", "test", "app"}
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.M)] == []


def test_commands_and_options_that_readme_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    from analyzer.cli import main

    named = [words for words in commands("analyzer") if words[0].isalpha()]
    assert {words[0] for words in named} >= {"ingest", "report", "predict", "compare"}
    for command, *words in named:
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        known = capsys.readouterr().out
        assert [w for w in words if w.startswith("--") and w not in known] == []


@per_page
def test_modules_that_a_page_names_exist(page: Path) -> None:
    """In its snippets of Python, and in `python -m`."""
    named = set(
        re.findall(r"python3? -m ((?:benchmarks|analyzer|collector)\.[a-z]\w*)", text(page))
    )
    for snippet in SNIPPET.findall(text(page)):
        named |= set(re.findall(r"^(?:from|import) ((?:analyzer|schemas)[\w.]*)", snippet, re.M))
    assert [name for name in sorted(named) if not importlib.util.find_spec(name)] == []


def test_what_readme_shows_is_what_report_prints(samples_dir: Path, tmp_path: Path) -> None:
    """Line by line and in order; three dots stand for what is left out."""
    shown = re.search(r"^\$ analyzer report (\S+)\n(.*?)^```", text(Path("README.md")), re.M | re.S)
    assert shown
    store = str(tmp_path / "runs.duckdb")
    for words in (["ingest", str(samples_dir / shown[1])], ["report", shown[1]]):
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *words, "--db", store],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
    printed = iter(line.rstrip() for line in done.stdout.splitlines())
    wanted = [line for line in shown[2].splitlines() if line.strip() not in ("", "...")]
    assert [line for line in wanted if line not in printed] == []


def test_every_decision_has_a_line_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in folder.glob("0*.md")}
    assert pages == set(re.findall(r"^\[\d+\]: (\S+)$", index, re.M))
    for name in pages:
        assert re.search(rf"^\| \[{int(name[:4])}\] \| ", index, re.M)
