"""A person's way through the app, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import LONGEST_TEST_S, PAGES, PATIENCE_MS, Watched
from tests.support.statements import RUNAWAY

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(LONGEST_TEST_S),
]
EAGER, GRAPH = "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph"
MOST_DRAGS = 12


def drag(seen: Watched, drawing: Any, effect: Any) -> None:
    """Drag over a part of a drawing until it has an effect: it listens a moment after it shows."""
    from playwright.sync_api import TimeoutError  # deferred: absent, `visit` says so

    mouse = seen.page.mouse
    for _ in range(MOST_DRAGS):
        seen.still()
        box = drawing.bounding_box()
        middle = box["y"] + box["height"] * 0.5
        mouse.move(box["x"] + box["width"] * 0.4, middle)
        mouse.down()
        for step in range(1, 11):
            mouse.move(box["x"] + box["width"] * (0.4 + 0.02 * step), middle)
        mouse.up()
        try:
            effect.wait_for(timeout=PATIENCE_MS / MOST_DRAGS)
        except TimeoutError:
            continue
        return
    raise AssertionError(f"{MOST_DRAGS} drags over the drawing had no effect")


def test_from_a_dropped_run_to_a_shared_comparison(visit, samples_dir: Path, tmp_path: Path):
    seen = visit()
    page = seen.page

    # Load: a run directory, dropped as files.
    folder = samples_dir / "gpt2-prefill-bs2-s512"
    page.locator("input[type=file]").set_input_files([str(p) for p in sorted(folder.iterdir())])
    page.get_by_text("is in the store: 235 kernels").wait_for()
    page.get_by_text("of 5 runs").wait_for()

    # Filter.
    search = page.get_by_role("textbox", name="Search")
    search.fill("graph")
    search.press("Enter")
    page.get_by_text("1 of 5 runs").wait_for()
    seen.url_has("q=graph")
    search.fill("")
    search.press("Enter")
    page.get_by_text("5 of 5 runs").wait_for()

    # Open a run.
    page.get_by_role("link", name=EAGER, exact=True).click()
    page.get_by_role("heading", name="Run", exact=True).wait_for()
    seen.settle()
    page.get_by_text("software stack dominates").wait_for()

    # Zoom the timeline: by a drag, then by a button.
    page.get_by_test_id("stMain").get_by_role("link", name="Timeline").click()
    page.get_by_role("heading", name="Timeline", exact=True).wait_for()
    seen.settle()
    drawing = page.locator(
        "[data-testid='stVegaLiteChart'] canvas, [data-testid='stVegaLiteChart'] svg"
    )
    drawing.first.wait_for()
    drag(seen, drawing.first, page.get_by_role("button", name="Zoom to the marked"))
    page.get_by_role("button", name="Zoom to the marked").click()
    seen.url_has("from=")
    seen.settle()
    before = page.url
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_function("before => location.href !== before", arg=before)
    seen.settle()

    # Compare eager and graph.
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("heading", name="Runs", exact=True).wait_for()
    seen.settle()
    for name in (EAGER, GRAPH):
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.get_by_text("2 chosen").wait_for()
    page.get_by_test_id("stMain").get_by_role("link", name="Compare").click()
    page.get_by_role("heading", name=f"{GRAPH} against {EAGER}").wait_for()
    seen.settle()
    seen.url_has("runs=")

    # Share: the same address in a fresh browser.
    other = visit(page.url.removeprefix(f"{seen.base}/"))
    other.page.get_by_role("heading", name=f"{GRAPH} against {EAGER}").wait_for()
    other.page.wait_for_url(page.url)
    other.take("waterfall.png", tmp_path / "waterfall.png")
    assert (tmp_path / "waterfall.png").read_bytes().startswith(b"\x89PNG")

    # Query and take the answer away.
    page.get_by_role("link", name="SQL").click()
    page.get_by_role("heading", name="SQL", exact=True).wait_for()
    seen.settle()
    page.get_by_label("SQL: one SELECT").fill("SELECT count(*) AS runs FROM runs")
    page.get_by_role("button", name="Run", exact=False).last.click()
    page.get_by_text("1 row, at most").wait_for()
    seen.settle()
    seen.take("answer.csv", tmp_path / "answer.csv")
    assert (tmp_path / "answer.csv").read_text() == "runs\n5\n"


def test_a_slow_statement_is_cancelled_by_a_button(visit):
    seen = visit("sql")
    page = seen.page
    page.get_by_label("SQL: one SELECT").fill(RUNAWAY)
    page.get_by_role("button", name="Run", exact=False).last.click()
    page.get_by_text("Asking the store").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text(re.compile(r"^The statement was cancelled after \d+\.\d s\.$")).wait_for()
    page.get_by_role("button", name="Cancel").wait_for(state="detached")
    page.get_by_label("SQL: one SELECT").fill("SELECT 42 AS answer")
    page.get_by_role("button", name="Run", exact=False).last.click()
    page.get_by_text("1 row, at most").wait_for()


@pytest.mark.parametrize("name", PAGES)
def test_controls_and_charts_have_names_for_a_screen_reader(visit, name):
    seen = visit(PAGES[name])
    seen.drawn()
    nameless = seen.page.evaluate(
        """() => [...document.querySelectorAll(
          '[data-testid=stMain] :is(input, textarea, button, a, [role=combobox])')]
          .filter(e => e.offsetParent !== null && !e.closest('[data-testid=stElementToolbar]'))
          .filter(e => !(e.ariaLabel || e.textContent.trim() || e.title || e.labels?.length
            || e.getAttribute('aria-labelledby') || e.placeholder))
          .map(e => e.outerHTML.slice(0, 200))"""
    )
    assert nameless == []
    drawings = seen.page.locator("[data-testid='stVegaLiteChart']")
    for i in range(drawings.count()):
        assert len(drawings.nth(i).get_attribute("aria-label") or "") > 10


CONTRAST = """() => {
  const parse = text => { const v = text.match(/[\\d.]+/g).map(Number);
    return [v[0], v[1], v[2], v[3] === undefined ? 1 : v[3]]; };
  const mix = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const light = c => { const f = c.slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const up = e => e.parentElement ?? e.getRootNode().host;
  const all = root => [...root.querySelectorAll('*')].flatMap(e =>
    e.shadowRoot ? [e, ...all(e.shadowRoot)] : [e]);
  const ground = e => { const layers = [];
    for (let at = e; at; at = up(at)) {
      const c = parse(getComputedStyle(at).backgroundColor); if (c[3]) layers.push(c);
      if (c[3] === 1) break; }
    return layers.reverse().reduce((below, c) => mix(c, below), [255, 255, 255, 1]); };
  const poor = [];
  for (const e of all(document.body)) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.offsetParent || 
      e.closest('[disabled], [aria-disabled=true], svg, style, script')) continue;
    const style = getComputedStyle(e);
    if (style.visibility === 'hidden' || +style.opacity === 0) continue;
    const below = ground(e), ink = mix(parse(style.color), below);
    const [hi, lo] = [light(ink), light(below)].sort((a, b) => b - a);
    const ratio = (hi + 0.05) / (lo + 0.05);
    const big = parseFloat(style.fontSize) >= 24;
    if (ratio < (big ? 3 : 4.5)) poor.push(
      `${ratio.toFixed(2)} ${style.color} ${e.textContent.trim().slice(0, 60)}`);
  }
  return [...new Set(poor)]; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_text_on_the_page_has_the_contrast_of_wcag_aa(visit, name, scheme):
    seen = visit(PAGES[name], scheme=scheme)
    seen.drawn()
    seen.still()
    assert seen.page.evaluate(CONTRAST) == []
