"""What an operator does to runs, with the mouse and with the keyboard alone; and who may."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from services.manager.pages.runs.actions import RunAction
from services.manager.runs import Runs
from tests.browser.site import ServedPages, Visits, let_poll, serving_from
from tests.manager.fakes import managing, specification
from trimaran.run.runs import Replicas, RunState

FOCUSED = "document.activeElement.id"
FOCUS = """() => { const one = document.activeElement;
    return [getComputedStyle(one).outlineStyle, one.outerHTML.slice(0, 200), one.id]; }"""


def tab_to(page: Page, ident: str) -> None:
    """With the keyboard; wherever the focus is on the way, it is seen. On the body: in the browser's own bar."""
    for _ in range(80):
        page.keyboard.press("Tab")
        outline, where, focused = page.evaluate(FOCUS)
        assert outline != "none" or where.startswith("<body"), where
        if focused == ident:
            return
    raise AssertionError(f"no Tab leads to {ident}")


@pytest.mark.parametrize(
    ("run_id", "action", "state"),
    [
        ("run", RunAction.PAUSE, RunState.PAUSING),
        ("run", RunAction.CANCEL, RunState.CANCELLING),
        ("queued-1", RunAction.CANCEL, RunState.CANCELLED),
        ("failed-1", RunAction.RESUME, RunState.QUEUED),
        ("succeeded-1", RunAction.DELETE, None),
    ],
)
def test_a_button_asks_first_and_can_be_left(
    visits: Visits, site: ServedPages, run_id: str, action: RunAction, state: RunState | None
) -> None:
    page = visits.to(f"/runs/{run_id}")
    before = site.runs.runs[run_id]
    question = page.get_by_role("dialog", name=f"{action.capitalize()} {run_id}?")
    for leave in ("Escape", "Enter"):  # whoever presses Enter has changed nothing
        page.click(f"#{action}")
        expect(question).to_be_visible()
        let_poll(page)
        expect(question).to_be_visible()
        page.keyboard.press(leave)
        expect(question).to_be_hidden()
        assert site.runs.runs[run_id] == before
    page.click(f"#{action}")
    page.click("#confirm")
    if state is None:
        page.wait_for_url("**/runs")
        assert run_id not in site.runs.runs
    else:
        expect(page.locator("h1 .state")).to_have_text(state)
        expect(question).to_be_hidden()
        assert site.runs.runs[run_id].state is state
    assert visits.complaints == []


def test_a_number_that_is_refused_stays_in_its_dialog(visits: Visits, site: ServedPages) -> None:
    page = visits.to("/runs/run/config")
    page.click("#scale")
    page.fill("#min_replicas", "9")
    page.click("#confirm")
    dialog = page.locator("#dialog")
    expect(dialog.locator(".problem")).to_contain_text("min_replicas: 9")
    assert page.input_value("#min_replicas") == "9"
    page.fill("#min_replicas", "2")
    page.click("#confirm")
    expect(dialog).to_be_hidden()
    assert site.runs.runs["run"].replicas == Replicas(2, 4)
    assert page.url.endswith("/runs/run/config")


@asynccontextmanager
async def managed(folder: Path) -> AsyncGenerator[Runs]:
    async with managing(folder) as served:
        yield served.runs


def test_a_manager_takes_runs_from_a_file_and_as_copies_and_steers_them(
    chromium: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(specification(tmp_path, rollout={"max_replicas": 2}))
    with serving_from(managed(tmp_path / "runs")) as site:
        visits = Visits(chromium, site)
        page = visits.to("/runs/new")
        page.set_input_files("#file", file)
        page.fill("#overrides", "trainer.data_paralel=6")
        page.click("#queue")
        expect(page.get_by_role("alert").filter(has_text="data_parallel")).to_be_visible()
        page.fill("#overrides", "trainer.data_parallel=6")
        page.click("#queue")
        page.wait_for_url("**/runs/demo-*")
        page.click("#copy")
        assert "data_parallel: 6" in page.input_value("#config")
        page.fill("#overrides", "run.seed=3\nrun.name=copy")
        page.click("#check")
        expect(page.get_by_role("status")).to_contain_text("not queued yet")
        page.dblclick("#queue")
        page.wait_for_url("**/runs/copy-*")
        expect(page.locator(".note")).to_contain_text("Waits: ")
        page.click("#scale")
        page.fill("#max_replicas", "3")
        page.click("#confirm")
        for action, state in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
            page.click(f"#{action}")
            page.click("#confirm")
            expect(page.locator("h1 .state")).to_have_text(state)
        page.goto(page.url + "/events")
        expect(page.locator(".events")).to_contain_text("scaled to 1:3 by anna-operator")
        page.click("#delete")
        page.click("#confirm")
        page.wait_for_url("**/runs")
        expect(page.locator("tr[id^=run-]")).to_have_count(1)
        visits.close()


def test_the_keyboard_alone_opens_a_run_and_pauses_it(visits: Visits) -> None:
    page = visits.to("/runs")
    tab_to(page, "by-reward")
    page.keyboard.press("Enter")
    expect(page.locator("th[aria-sort]")).to_have_text("Reward")
    let_poll(page)
    assert page.evaluate(FOCUSED) == "by-reward"
    tab_to(page, "to-run")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/run")
    tab_to(page, "pause")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Leave it as it is")).to_be_focused()
    tab_to(page, "confirm")
    page.keyboard.press("Enter")
    expect(page.locator("h1 .state")).to_have_text("pausing")
    assert visits.complaints == []


def test_a_question_opens_once_its_answer_is_heard(visits: Visits) -> None:
    page = visits.to("/runs/run")
    page.evaluate("htmx.config.defaultSettleDelay = 1000")
    page.click("#pause")
    page.click("#confirm")
    expect(page.locator("h1 .state")).to_have_text("pausing")
    assert visits.complaints == []


def test_the_table_follows_its_filters_and_its_address(visits: Visits, site: ServedPages) -> None:
    page = visits.to("/runs?sort=-priority")
    page.select_option("#state", "unended")
    page.fill("#text", "r")
    page.wait_for_url("**/runs?state=unended&text=r&sort=-priority")
    rows = page.locator("tr[id^=run-]")
    expect(rows.first).to_have_attribute("id", "run-run")
    count = rows.count()
    site.ask(lambda: site.runs.add("rapid", RunState.QUEUED))
    let_poll(page)
    expect(rows).to_have_count(count + 1)
    page.reload()
    expect(rows).to_have_count(count + 1)
    assert page.input_value("#text") == "r" and page.input_value("#state") == "unended"
    assert visits.complaints == []


def test_a_token_opens_a_session_that_no_script_reads_until_it_is_closed(
    visits: Visits, site: ServedPages
) -> None:
    page = visits.to("/runs/run/events", role="")
    page.fill("#token", "operator")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site.address}/runs/run/events")
    assert page.evaluate("document.cookie") == ""
    page.click("text=Sign out")
    page.wait_for_url(f"{site.address}/sign-in")
    page.goto("/runs")
    assert "/sign-in" in page.url and visits.complaints == []


def test_the_theme_is_chosen_and_stays(visits: Visits) -> None:
    page = visits.to("/runs/run")
    for theme in ("light", "dark"):
        page.click("#theme")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
    page.goto("/runs")
    ground = page.locator("body").evaluate("(e) => getComputedStyle(e).backgroundColor")
    assert ground == "rgb(20, 24, 29)"
    assert visits.complaints == []


def test_a_page_says_that_the_server_is_away_and_goes_on_when_it_is_back(visits: Visits) -> None:
    page = visits.to("/runs")
    page.context.set_offline(True)
    let_poll(page)
    expect(page.locator("#problem")).to_contain_text("does not answer")
    page.context.set_offline(False)
    let_poll(page)
    expect(page.locator("#problem")).to_be_empty()
