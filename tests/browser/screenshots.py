"""Pictures of the pages for docs/operations.md: `python -m tests.browser.screenshots FOLDER CURVES EPISODES`.

FOLDER holds real runs, two of which are named: one with curves, and one with turns that was trained with
run.keep_payloads=all. What steers runs is shown over fakes.
"""

from __future__ import annotations

import asyncio
import io
import random
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from services.manager.viewing.serve import viewing
from tests.browser.filled import WAITS
from tests.browser.site import Visits, serving
from tests.clients.fake_runs import FakeRuns
from trimaran.run.runs import Replicas, RunState
from trimaran.trust.access import NO_TRUST

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDTH, HEIGHT = 1120, 720
HEIGHTS = {"processes": 900}
"""Of a page whose end has to be seen."""
COLOURS = 96
RENAME = """([folder, name]) => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) walk.currentNode.data = walk.currentNode.data.replaceAll(folder, name);
}"""


def draw(folder: Path, curves: str, episodes: str) -> None:
    pages = {
        "curves": f"/runs/{curves}?with={episodes}",
        "config": f"/runs/{curves}/config",
        "processes": f"/runs/{curves}/processes",
        "checkpoints": f"/runs/{curves}/checkpoints",
        "events": f"/runs/{curves}/events",
        "logs": f"/runs/{curves}/logs?process=controller",
        "samples": f"/runs/{episodes}/samples?of=trained&order=highest",
        "ledger": f"/runs/{episodes}/ledger?group=17",
        "tokens": f"/runs/{episodes}/groups/17/0#by-probability",
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--disable-gpu"]
        )
        with serving(_several_runs()) as site:
            visits = Visits(browser, site)
            for scheme, suffix in (("light", ""), ("dark", "-dark")):
                _save(visits.to("/runs", width=WIDTH, scheme=scheme), f"runs{suffix}")
            _save(visits.to("/runs/new?copy=gsm8k-1", width=WIDTH), "new")
            asked = visits.to("/runs/gsm8k-1/config", width=WIDTH)
            asked.click("#cancel")
            _save(asked, "cancel")
            visits.close()
        with _viewing(folder) as address:
            for name, path in pages.items():
                _save(_open(browser, address + path, folder), name)
            _save(_open(browser, address + pages["curves"], folder, "dark"), "curves-dark")
        browser.close()


def _open(browser: Browser, address: str, folder: Path, scheme: Any = "light") -> Page:
    """No picture names a folder of this machine."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
    page.goto(address)
    page.wait_for_timeout(1500)
    page.evaluate(RENAME, [str(folder.resolve().parent), "/srv"])
    return page


def _save(page: Page, name: str) -> None:
    page.set_viewport_size({"width": WIDTH, "height": HEIGHTS.get(name, HEIGHT)})
    page.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS).save(IMAGES / f"pages-{name}.png", optimize=True)


@contextmanager
def _viewing(folder: Path) -> Generator[str]:
    begun, over, found = Event(), Event(), list[str]()

    async def serve() -> None:
        async with viewing(folder, "127.0.0.1:0", NO_TRUST) as address:
            found.append(f"http://{address}")
            begun.set()
            await asyncio.to_thread(over.wait)

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    begun.wait()
    try:
        yield found[0]
    finally:
        over.set()
        thread.join()


def _several_runs() -> FakeRuns:
    runs, now, chance = FakeRuns(), time.time(), random.Random(4)
    names = ("gsm8k", "countdown", "geo3k", "search-tools", "addition")
    for number, state in enumerate((*list(RunState)[8::-1], RunState.RUNNING, RunState.QUEUED)):
        step = chance.randint(40, 390)
        facts: dict[str, Any] = {"step": step, "reward": step / 500, "held_out": step / 470}
        if state in (RunState.QUEUED, RunState.STARTING):
            facts = {}
        facts |= {"waiting_for": WAITS} if state is RunState.QUEUED else {}
        facts |= {"ends_at": now + 31 * (400 - step)} if state is RunState.RUNNING else {}
        facts |= {"devices": 8, "replicas": Replicas(2, 4, 2)} if state.has_processes else {}
        facts |= {"error": "trainer-0: out of memory"} if state is RunState.FAILED else {}
        runs.add(
            f"{names[number % 5]}-{number + 1}",
            state,
            **{"num_steps": 400, "owner": ("research", "team-b")[number % 2]} | facts,
            created_at=now - 90000 + 8000 * number,
            priority=number % 3,
        )
    runs.add(
        "gsm8k-1", step=212, num_steps=400, owner="research", reward=0.61, created_at=now - 9e3
    )
    return runs


if __name__ == "__main__":
    draw(Path(sys.argv[1]), *sys.argv[2:])
