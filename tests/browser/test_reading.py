"""What the pages of a run show when they are used: curves, samples, tokens, logs, events, the ledger."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from playwright.sync_api import expect

from tests.browser.filled import STEPS
from tests.browser.site import ServedPages, Visits, let_poll
from trimaran.run.runs import EventKind


@pytest.fixture(autouse=True)
def uncomplaining(visits: Visits) -> Generator[None]:
    """After each test."""
    yield
    assert visits.complaints == []


def test_curves_are_drawn_chosen_zoomed_and_grow(visits: Visits, site: ServedPages) -> None:
    page = visits.to("/runs/run?with=other")
    charts = page.locator("#charts canvas")
    expect(charts.first).to_be_visible()
    let_poll(page)
    box = page.locator("#charts .u-over").first.bounding_box()
    assert box
    y = box["y"] + box["height"] / 3
    page.mouse.move(box["x"] + box["width"] * 0.4, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, y, steps=5)
    page.mouse.up()
    expect(page.locator("#whole")).to_be_visible()
    first, last = int(page.input_value("#from")), int(page.input_value("#to"))
    assert 0 < first < last < STEPS
    page.click("#whole")
    expect(page.locator("#from")).to_have_value("")
    page.click("#choose")
    chosen = page.locator("#choice-list input:checked")
    expect(charts).to_have_count(chosen.count())
    chosen.last.uncheck()
    page.click("#choice-done")
    expect(charts).to_have_count(chosen.count())
    site.ask(lambda: site.runs.step("run", STEPS + 1, 0.123456))
    let_poll(page)
    expect(page.locator("#charts")).to_contain_text("0.1235")


def test_samples_are_chosen_and_lead_to_tokens_and_to_the_ledger(visits: Visits) -> None:
    page = visits.to("/runs/run/samples")
    page.select_option("#of", "trained")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url("**/samples?*of=trained*")
    page.get_by_role("link", name="Tokens").first.click()
    page.wait_for_url("**/groups/17/0")
    token = page.locator("#tokens [data-at='40']")
    token.hover()
    expect(page.locator("#token-facts")).to_contain_text("-2.0000")
    before = token.evaluate("(e) => getComputedStyle(e).backgroundColor")
    page.check("#by-maker")
    assert token.evaluate("(e) => getComputedStyle(e).backgroundColor") != before
    page.focus("#tokens")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#token-facts")).not_to_contain_text("-2.0000")
    page.get_by_role("link", name="Group 17").click()
    expect(page.locator(".life")).to_contain_text("attempt 1: issued")
    page.get_by_role("button", name="Check the whole ledger").click()
    expect(page.locator("#check")).to_contain_text("not sound")


def test_a_log_follows_is_sifted_and_stops(visits: Visits, site: ServedPages) -> None:
    page = visits.to("/runs/run/logs?process=rollout-0")
    log = page.get_by_role("log")
    expect(log).to_contain_text("a replica is late")
    site.ask(lambda: site.runs.log("rollout-0", "a fresh line"))
    let_poll(page)
    expect(log).to_contain_text("a fresh line")
    page.fill("#only", "fresh")
    expect(log.locator("div:visible")).to_have_count(1)
    page.uncheck("#follow")
    site.ask(lambda: site.runs.log("rollout-0", "a fresher line"))
    let_poll(page)
    expect(log).not_to_contain_text("fresher")
    page.check("#follow")
    let_poll(page)
    expect(log.locator("div:visible")).to_have_count(2)


def test_events_come_newest_first_and_by_kind(visits: Visits, site: ServedPages) -> None:
    page = visits.to("/runs/run/events")
    site.ask(lambda: site.runs.tell("run", EventKind.REPLICA_BACK, text="rollout-7"))
    let_poll(page)
    expect(page.locator(".events tbody tr:visible").first).to_contain_text("rollout-7")
    page.get_by_role("link", name="Processes").last.click()
    expect(page.locator(".events")).to_contain_text("rollout-7")
    expect(page.locator(".events")).not_to_contain_text("held-out reward")


def test_a_configuration_is_compared_and_copied(visits: Visits) -> None:
    page = visits.to("/runs/run/config")
    page.select_option("#with", "other")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".config")).to_contain_text("the same configuration")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download as YAML").click()
    assert downloading.value.suggested_filename == "run.yaml"
    page.locator("#copy").click()
    assert "steps: 40" in page.input_value("#config")


def test_processes_are_asked_and_the_timeline_says_what_lies_under_the_pointer(
    visits: Visits,
) -> None:
    page = visits.to("/runs/run/processes")
    expect(page.locator("#process-rollout-1")).to_contain_text("no answer")
    canvas = page.locator("#timeline canvas")
    box = canvas.bounding_box()
    assert box
    canvas.hover(position={"x": box["width"] * 0.75, "y": 12})
    expect(page.locator("#span-facts")).to_contain_text("rollout-0: generating")
    page.click("summary")
    expect(page.locator("#shares")).to_contain_text("rollout-0")
    with page.expect_request("**/timeline?seconds=0&until=0"):
        page.get_by_role("button", name="All", exact=True).click()
