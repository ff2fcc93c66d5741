"""The manager over HTTP, beside gRPC: for people, probes, Prometheus and pages.

    curl -N http://127.0.0.1:7980/v1/runs/addition-20261120-120000/events

/openapi.json describes all of it. The same tokens and roles count as for RunService.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, FastAPI

from services.manager.http.forms import Health
from services.manager.http.metrics import MetricsRoutes
from services.manager.http.problems import responses
from services.manager.http.routes import RunRoutes
from services.manager.http.safety import Safety
from services.manager.pages.app import add_pages
from trimaran.errors import UnavailableError
from trimaran.telemetry.exposition import Exposition
from trimaran.wire.http_problems import add_handlers
from trimaran.wire.recheck import IDENTIFY_SECONDS

HEARTBEAT_SECONDS = 15.0
LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))

Identify = Callable[[str, str], Any]
"""Given a gRPC method's path and a token ("" without one): who asks. Raises UnauthenticatedError or
ForbiddenError."""


def make_app(
    runs: Any,
    identify: Identify,
    own: Exposition,
    *,
    is_ready: Callable[[], bool] = lambda: True,
    hosts: frozenset[str] = LOOPBACK,
    is_read_only: bool = False,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    identify_seconds: float = IDENTIFY_SECONDS,
) -> FastAPI:
    """`own`: the manager's numbers. `hosts`: the names under which the manager may be asked; empty: any.
    `is_read_only`: `identify` refuses what changes runs, and pages have no buttons for it.

    Example:
        app = make_app(runs, lambda method, token: LOCAL, Exposition())
        await uvicorn.Server(uvicorn.Config(app, port=7980)).serve()
    """
    app = FastAPI(
        title="Trimaran manager",
        version="1",
        description="Runs of GRPO post-training: submit them, watch them, steer them. Every error is"
        " a problem document whose `title` is the code that gRPC has for it.",
        redirect_slashes=False,
        docs_url=None,  # their scripts would come from another host
        redoc_url=None,
    )
    app.state.identify = identify
    app.add_middleware(Safety, hosts=hosts)
    add_handlers(app)
    probes = APIRouter(tags=["probes"])
    probes.get("/healthz", responses=responses(403, 500))(health)
    probes.get("/readyz", responses=responses(403, 500, 503))(readiness(is_ready))
    app.include_router(probes)
    app.include_router(RunRoutes(runs, heartbeat_seconds, identify_seconds).router())
    app.include_router(MetricsRoutes(runs, own).router())
    add_pages(app, runs, is_read_only=is_read_only)
    return app


async def health() -> Health:
    """The manager lives."""
    return Health(status="ok")


def readiness(is_ready: Callable[[], bool]) -> Callable[[], Awaitable[Health]]:
    async def ready() -> Health:
        """The manager can take runs."""
        if not is_ready():
            raise UnavailableError("not ready: the manager starts, or its store does not answer")
        return Health(status="ok")

    return ready
