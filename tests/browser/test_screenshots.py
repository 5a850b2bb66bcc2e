"""Pictures of every page, light and dark, wide and narrow: `make screenshots`."""

from __future__ import annotations

import pytest

from tests.support.browser import LONGEST_TEST_S, PAGES

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(LONGEST_TEST_S),
]


@pytest.mark.parametrize("width", [1440, 800])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_picture(visit, screenshots_dir, name, scheme, width):
    if screenshots_dir is None:
        pytest.skip("pictures are made when HOSTBOUND_SCREENSHOTS names a folder")
    seen = visit(PAGES[name], scheme=scheme, width=width)
    seen.drawn()
    height = seen.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    seen.page.set_viewport_size({"width": width, "height": min(max(height, 600), 4000)})
    seen.drawn()
    seen.still()
    seen.page.wait_for_timeout(1_200)  # drawings of another width: nothing says when they are made
    seen.page.screenshot(path=screenshots_dir / f"{name}-{scheme}-{width}.png")
