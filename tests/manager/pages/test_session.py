"""Who may see which page, and what a page's answer carries."""

from __future__ import annotations

import pytest
from httpx import AsyncClient as Client

from tests.clients.fake_runs import FakeRuns
from tests.manager.pages.browsing import PARTIAL


@pytest.mark.parametrize("token", [""])
async def test_a_token_opens_a_session_that_no_script_and_no_address_holds(client: Client) -> None:
    answer = await client.get("/runs/run")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?to=/runs/run")
    shared = await client.get("/runs?state=failed&sort=-age")
    assert shared.headers["location"] == "/sign-in?to=/runs%3Fstate%3Dfailed%26sort%3D-age"
    refused = await client.post("/sign-in", data={"token": "stranger"})
    assert refused.status_code == 401 and "no such token" in refused.text
    assert "stranger" not in refused.text
    form = {"token": " viewer ", "to": "/runs/run"}
    opened = await client.post("/sign-in", data=form)
    assert (opened.status_code, opened.headers["location"]) == (303, "/runs/run")
    cookie = opened.headers["set-cookie"]
    assert cookie.startswith("trimaran_7980=viewer;")
    assert {"HttpOnly", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}
    assert (await client.get("/runs/run")).status_code == 200
    assert (await client.post("/sign-out")).status_code == 303
    assert (await client.get("/runs")).status_code == 303


@pytest.mark.parametrize("token", [""])
async def test_a_part_of_a_page_sends_the_browser_to_sign_in(client: Client) -> None:
    answer = await client.get("/runs", headers=PARTIAL)
    assert answer.headers["hx-redirect"] == "/sign-in" and not answer.text


async def test_the_cookie_does_not_open_the_api_and_sign_in_leads_to_our_pages_alone(
    client: Client,
) -> None:
    assert (await client.get("/v1/runs")).status_code == 401
    form = {"token": "viewer", "to": "https://elsewhere.example/"}
    assert (await client.post("/sign-in", data=form)).headers["location"] == "/runs"


async def test_a_change_must_say_which_page_it_comes_from(client: Client) -> None:
    other = {"Origin": "http://elsewhere.example"}
    assert (await client.post("/sign-out", headers=other)).status_code == 403
    del client.headers["Origin"]
    silent = await client.post("/sign-out")
    assert silent.status_code == 403 and "which page" in silent.text


@pytest.mark.parametrize(("token", "has"), [("viewer", False), ("operator", True)])
async def test_a_viewer_sees_no_way_to_start_runs(has: bool, client: Client) -> None:
    assert ("/runs/new" in (await client.get("/runs")).text) is has


async def test_pages_load_from_here_alone_and_hold_no_script_of_their_own(
    client: Client, runs: FakeRuns
) -> None:
    runs.add("hostile", error="<script>alert(1)</script>")
    answer = await client.get("/runs")
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert "<script>" not in answer.text and "&lt;script&gt;" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    style = await client.get("/static/style.css")
    assert style.headers["content-type"].startswith("text/css")
    assert (await client.get("/")).headers["location"] == "/runs"


async def test_errors_are_pages_for_people_and_a_line_within_a_page(client: Client) -> None:
    page = await client.get("/runs/other")
    assert page.status_code == 404 and "<h1>" in page.text and "no run" in page.text
    part = await client.get("/runs/other/head", headers=PARTIAL)
    assert part.status_code == 404 and "<h1>" not in part.text and "no run" in part.text
