"""The pages of one run, as a reader works with them."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest
from playwright.sync_api import expect

from tests.browser.site import PHONE, Visits, let_poll
from trimaran.run.runs import EventKind


@pytest.fixture(autouse=True)
def uncomplaining(visits: Visits) -> Generator[None]:
    """After each test."""
    yield
    assert visits.complaints == []


def test_a_log_follows_until_it_is_told_not_to_and_hides_lines(visits: Visits) -> None:
    page = visits.to("/runs/run/logs?process=rollout-0")
    runs, ask = visits.site.runs, visits.site.ask
    log, lines = page.locator("#log"), page.locator("#log div:visible")
    ask(lambda: runs.log("rollout-0", "the 41st line"))
    let_poll(page)
    expect(lines).to_have_count(41)
    assert log.evaluate("(e) => e.scrollTop + e.clientHeight >= e.scrollHeight - 2")
    page.get_by_label("Only lines with").fill("A REPLICA")
    expect(lines).to_have_count(20)
    page.get_by_label("Only lines with").fill("")
    page.get_by_label("Follow").uncheck()
    ask(lambda: runs.log("rollout-0", "the 42nd line"))
    let_poll(page)
    expect(lines).to_have_count(41)
    page.get_by_label("Follow").check()
    let_poll(page)
    expect(lines).to_have_count(42)
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download").click()
    assert saved.value.suggested_filename == "run-rollout-0.log"


def test_events_are_added_above_and_older_ones_below(visits: Visits) -> None:
    runs, ask = visits.site.runs, visits.site.ask
    ask(lambda: [runs.tell("run", EventKind.PROCESS, text=f"note {n}") for n in range(120)])
    page = visits.to("/runs/run/events", width=PHONE)
    page.get_by_role("link", name="Processes").last.click()
    rows = page.locator(".events tbody tr:visible")
    expect(rows).to_have_count(101)
    page.get_by_role("link", name="Older events").press("Enter")
    expect(rows).to_have_count(122)
    ask(lambda: runs.tell("run", EventKind.REPLICA_BACK, text="rollout-0 is back"))
    ask(lambda: runs.step("run", 40, 0.5))
    let_poll(page)
    expect(rows).to_have_count(123)
    expect(rows.first).to_contain_text("replica back: rollout-0 is back")


def test_the_timeline_says_what_is_pointed_at_and_moves_by_keys(visits: Visits) -> None:
    page = visits.to("/runs/run/processes")
    expect(page.locator("#process-rollout-0")).to_contain_text("sampled")
    expect(page.locator("#process-rollout-1")).to_contain_text("no answer")
    facts = page.locator("#span-facts")
    expect(page.locator("#shares td").nth(1)).to_have_text("40.0 %", use_inner_text=False)
    box = page.locator("#timeline canvas").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 12)
    expect(facts).to_have_text(re.compile("rollout-0: generating, step 1, .* 4.00 s"))
    with page.expect_request(re.compile(r"timeline\?seconds=5&until=1002\.5$")):
        page.get_by_role("button", name="Closer").press("Enter")
    with page.expect_request("**/timeline?seconds=0&until=0"):
        page.get_by_role("button", name="All", exact=True).click()


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
