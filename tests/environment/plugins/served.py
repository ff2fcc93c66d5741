"""A world behind the contract, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from services.environment.episodes import OpenEpisodes
from services.environment.plugins.app import make_app
from services.environment.plugins.contract import CONTRACT, Info
from tests.environment.worlds import Worlds
from tests.trimaran.plugins.live import serving
from trimaran.config import EnvironmentSection

TOKEN = "a-token"
INFO = Info(contract=CONTRACT, name="echo", max_sessions=8)


@asynccontextmanager
async def served(
    worlds: Worlds,
    token: str | None = None,
    changed: Callable[[Any], Any] = lambda app: app,
    **keys: Any,
) -> AsyncIterator[str]:
    """Its URL. `keys`: of the section."""
    section = EnvironmentSection(factory="x:Y", **{"timeout": 5, "max_episodes": 8, **keys})
    async with OpenEpisodes(worlds, section) as episodes:
        app = make_app(episodes, INFO, token, options={"size": 3})
        async with serving(changed(app)) as url:
            yield url
