"""Each page, at a desk and on a phone, light and dark, and with what a hostile model has written."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.filled import PAGES, filled_runs
from tests.browser.site import DESK, PHONE, Visits, let_poll, serving

HOSTILE = (
    "\"><img src='/x' onerror='alert(1)'><script>alert(2)</script><svg onload=alert(3)>"
    "<style>*{display:none}</style><a href='javascript:alert(4)'>`${alert(5)}`</a>{{ 7 * 7 }}"
)
NAMELESS = """() => [...document.querySelectorAll("a, button, input, select, textarea, canvas, img, svg")]
    .filter((one) => one.type !== "hidden" && !one.closest("[aria-hidden]") && !one.labels?.length
        && !one.textContent.trim() && !one.getAttribute("aria-label") && !one.alt && !one.title
        && !one.closest("[role=img][aria-label]"))
    .map((one) => one.outerHTML)"""
"""What a screen reader could not name."""


def widths(page: Page) -> tuple[int, int]:
    root = page.locator("html")
    return root.evaluate("(e) => e.scrollWidth"), root.evaluate("(e) => e.clientWidth")


@pytest.mark.parametrize(("width", "scheme"), [(DESK, "light"), (PHONE, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_each_page_fits_names_its_parts_and_stays_within_the_policy(
    visits: Visits, name: str, width: int, scheme: str
) -> None:
    page = visits.to(PAGES[name], width=width, scheme=scheme)
    let_poll(page)
    assert visits.complaints == []
    content, window = widths(page)
    assert content <= window
    assert page.evaluate(NAMELESS) == []
    assert page.locator("h1").count() == 1
    ground = page.locator("body").evaluate("(e) => getComputedStyle(e).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is (scheme == "light")


@pytest.mark.parametrize("name", PAGES)
def test_what_a_hostile_model_writes_is_text(chromium: Browser, name: str) -> None:
    with serving(filled_runs(HOSTILE)) as site:
        visits = Visits(chromium, site)
        page = visits.to(PAGES[name])
        let_poll(page)
        assert visits.complaints == []
        assert (
            page.locator("img[src='/x'], main script, main style, a[href^=javascript]").count() == 0
        )
        assert "{{ 7 * 7 }}" in page.content() or name == "sign-in"
        visits.close()
