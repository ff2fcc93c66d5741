"""Pages over fake runs, asked as a browser asks: with cookies, an origin, and htmx's header for parts."""

import httpx
import pytest

from services.manager.http.app import make_app
from tests.clients.fake_runs import FakeRuns
from tests.manager.pages.browsing import ORIGIN, identify
from trimaran.telemetry.exposition import Exposition


@pytest.fixture
def token() -> str:
    """Whose pages they are; "" has not signed in."""
    return "operator"


@pytest.fixture
def is_read_only() -> bool:
    return False


@pytest.fixture
def runs() -> FakeRuns:
    """There is one run."""
    fake = FakeRuns()
    fake.add("run", owner="team-a")
    return fake


@pytest.fixture
def client(runs: FakeRuns, token: str, is_read_only: bool) -> httpx.AsyncClient:
    app = make_app(runs, identify, Exposition())
    app.state.is_read_only = is_read_only
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url=ORIGIN,
        headers={"Origin": ORIGIN},
        cookies={"trimaran_7980": token} if token else {},
    )
