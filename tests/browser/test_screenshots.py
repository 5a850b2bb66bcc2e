"""Pictures of every page, light and dark, wide and narrow: `make screenshots`."""

from __future__ import annotations

import pytest

from tests.browser.conftest import PAGES

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


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
    seen.page.wait_for_timeout(1_200)  # what fades in, and drawings of another width
    seen.page.screenshot(path=screenshots_dir / f"{name}-{scheme}-{width}.png")
