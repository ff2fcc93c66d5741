"""The page of curves in a browser: what one does with its charts, with a mouse and without."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.site import ServedPages, Visits, let_poll
from trimaran.run.runs import EventKind
from trimaran.telemetry.metrics import REWARD_MEAN


def curves(visits: Visits, more: str = "") -> Page:
    page = visits.to(f"/runs/run{more}")
    page.locator("#charts canvas").first.wait_for()
    return page


def drag(page: Page, begin: float, end: float) -> None:
    """Over a part of the first chart."""
    box = page.locator("#charts .u-over").first.bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + begin * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=4)
    page.mouse.up()


def test_a_chart_grows_with_its_run(visits: Visits, site: ServedPages) -> None:
    page = curves(visits)
    chart = page.get_by_role("img", name=re.compile("^Reward by step"))
    site.ask(lambda: site.runs.tell("run", EventKind.STEP, {REWARD_MEAN: 0.8125}, step=1000))
    let_poll(page)
    expect(chart).to_have_attribute("aria-label", re.compile("mean 0.8125"))
    assert visits.complaints == []


def test_all_charts_zoom_and_the_address_says_so(visits: Visits) -> None:
    page = curves(visits)
    drag(page, 0.25, 0.5)
    expect(page).to_have_url(re.compile(r"\?from=\d+&to=\d+$"))
    first, last = int(page.input_value("#from")), int(page.input_value("#to"))
    expect(page.locator("#charts figcaption").last).to_contain_text(re.compile("step"))
    assert 0 < first < last
    page.locator("#charts .u-over").first.dblclick()
    expect(page).to_have_url(re.compile(r"/runs/run$"))
    drag(page, 0.25, 0.5)
    page.click("#whole")
    expect(page).to_have_url(re.compile(r"/runs/run$"))


def test_charts_are_chosen_by_keyboard_alone(visits: Visits) -> None:
    page = curves(visits, "?chart=reward")
    expect(page.locator("#charts figure")).to_have_count(1)
    page.locator("#choose").press("Enter")
    page.keyboard.type("imbalance")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Escape")
    expect(page.locator("#charts figure")).to_have_count(2)
    expect(page).to_have_url(re.compile(r"\?chart=reward&chart=trainer%2Fimbalance$"))
    page.reload()
    expect(page.locator("#charts figure")).to_have_count(2)


def test_another_run_is_laid_over_by_keyboard_and_taken_away_again(visits: Visits) -> None:
    page = curves(visits)
    page.locator("#other").press_sequentially("other")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"\?with=other$"))
    expect(page.get_by_role("rowheader", name="run · mean").first).to_be_visible()
    expect(page.get_by_role("rowheader", name="other · mean").first).to_be_visible()
    page.get_by_role("checkbox", name="other").press("Space")
    expect(page).to_have_url(re.compile(r"/runs/run$"))


def test_colours_follow_the_theme(visits: Visits) -> None:
    page = curves(visits)

    def ink() -> str:
        return page.locator("#charts canvas").first.evaluate("(e) => e.toDataURL()")

    light = ink()
    page.locator("#theme").click()
    assert ink() == light
    page.locator("#theme").click()
    assert ink() != light
