"""Serves pages from a thread, and looks at them through chromium."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request

from services.manager.http.app import make_app
from tests.clients.fake_runs import FakeRuns
from tests.manager.pages.browsing import identify
from trimaran.run.network import listening_at
from trimaran.telemetry.exposition import Exposition
from trimaran.wire.http_server import serving_http

SECONDS = 20.0
PHONE, DESK = 390, 1280
SETTLE_MS = 500


@dataclass(frozen=True, slots=True)
class ServedPages:
    """Example: with serving(runs) as site: Visits(browser, site).to("/runs")"""

    address: str
    runs: Any
    """A fake's, or a manager's."""
    loop: asyncio.AbstractEventLoop

    def ask(self, call: Callable[[], Any]) -> Any:
        """In the server's thread, whose the runs are."""

        async def within() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(within(), self.loop).result(SECONDS)


def let_poll(page: Page) -> None:
    """Parts of a page are asked for again every 3 s: now."""
    page.clock.fast_forward(3000)
    page.wait_for_timeout(SETTLE_MS)


def serving(runs: FakeRuns, *, is_read_only: bool = False) -> AbstractContextManager[ServedPages]:
    """Until the block ends. Each role's name is a token."""
    return serving_from(nullcontext(runs), is_read_only=is_read_only)


@contextmanager
def serving_from(
    opened: AbstractAsyncContextManager[Any], *, is_read_only: bool = False
) -> Generator[ServedPages]:
    """The same of runs that are opened in the server's event loop."""
    begun: Future[tuple[ServedPages, asyncio.Event]] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        async with opened as runs:
            app: Any = make_app(runs, identify, Exposition(), is_read_only=is_read_only)
            listener, address = listening_at("127.0.0.1:0", "address")
            site = ServedPages(f"http://{address}", runs, asyncio.get_running_loop())
            async with serving_http(app, listener, None):
                begun.set_result((site, over))
                await over.wait()

    thread = Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    site, over = begun.result(SECONDS)
    try:
        yield site
    finally:
        site.ask(over.set)
        thread.join(SECONDS)


@dataclass
class Visits:
    """Pages of a site, and what was wrong with them."""

    browser: Browser
    site: ServedPages
    complaints: list[str] = field(default_factory=list[str])
    """Errors in the console, violations of the content policy among them; dialogs; requests elsewhere."""
    contexts: list[BrowserContext] = field(default_factory=list[BrowserContext])

    def to(
        self, path: str, *, role: str = "operator", width: int = DESK, scheme: Any = "light"
    ) -> Page:
        """In a fresh browser of a client with that role; "": one that has not signed in."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            base_url=self.site.address,
        )
        context.set_default_timeout(1000 * SECONDS)
        self.contexts.append(context)
        port = self.site.address.rpartition(":")[2]
        if role:
            name = f"trimaran_{port}"
            context.add_cookies([{"name": name, "value": role, "url": self.site.address}])
        page = context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        page.on("dialog", self._on_dialog)
        page.on("request", self._on_request)
        page.clock.install()  # it goes on as time does, and can be put forward
        page.goto(path)
        return page

    def close(self) -> None:
        for context in self.contexts:
            context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.site.address}/", "data:", "blob:")):
            self.complaints.append(f"elsewhere: {request.url}")
