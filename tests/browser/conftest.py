"""One chromium for the folder, and a site for each test."""

from __future__ import annotations

import shutil
from collections.abc import Generator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.filled import filled_runs
from tests.browser.site import ServedPages, Visits, serving


@pytest.fixture(scope="package")
def chromium() -> Generator[Browser]:
    """Playwright marks the thread as one whose event loop runs, so it ends with this folder's tests."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Debian's chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def site() -> Generator[ServedPages]:
    with serving(filled_runs("some words")) as site:
        yield site


@pytest.fixture
def visits(chromium: Browser, site: ServedPages) -> Generator[Visits]:
    visits = Visits(chromium, site)
    yield visits
    visits.close()
