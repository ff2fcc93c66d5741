"""The endpoint of one process of the service: where it listens, and the episodes that it has.

127.0.0.1            programs that are started here, and all others where the run is on one machine
the run's own subnet programs that are started elsewhere; with TLS, unless its network is trusted
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.environment.agents.app import Desks, Live, Rules, make_app, path_of
from services.environment.agents.desk import Desk
from services.environment.agents.offers import EpisodeOffer
from trimaran.run.network import HTTP_BACKLOG, LOOPBACK, Host, join
from trimaran.trust.access import Trust, new_token, write_private
from trimaran.trust.tls import http_context
from trimaran.wire.http_server import HttpServer, serving_http


class Endpoint:
    """Example:
    async with serving(Rules("SmolLM2-135M-Instruct"), policy.complete, LOOPBACK, NO_TRUST) as endpoint:
        desk = endpoint.add("17.1.0")
    """

    def __init__(self, episodes: Desks, server: HttpServer, local_port: int) -> None:
        self._episodes, self._server = episodes, server
        self.local_port = local_port

    @property
    def model(self) -> str:
        return self._episodes.rules.model

    def local_url(self, name: str) -> str:
        """Of an episode, for a program on this machine."""
        return f"http://127.0.0.1:{self.local_port}{path_of(name)}"

    def add(self, name: str) -> Desk:
        desk = self._episodes.desks[name] = Desk(new_token())
        return desk

    def remove(self, name: str, desk: Desk) -> None:
        if self._episodes.desks.get(name) is desk:
            del self._episodes.desks[name]

    def offer(self, name: str, desk: Desk, row: Mapping[str, Any]) -> None:
        """To programs that are started elsewhere."""
        self._episodes.offers.put(EpisodeOffer(name, desk, row))

    def accept_at(self, listener: socket.socket) -> asyncio.Task[None]:
        """A listener in a program's own network."""
        return self._server.accept_at(listener)

    def write(self, path: Path) -> None:
        """Where it is and its token, for this user alone."""
        tree = {"url": self._episodes.url, "token": self._episodes.token, "model": self.model}
        write_private(path, json.dumps(tree) + "\n")


@asynccontextmanager
async def serving(rules: Rules, live: Live, host: Host, trust: Trust) -> AsyncGenerator[Endpoint]:
    """Until the block ends. Raises InputError where others could read what goes to `host`."""
    async with AsyncExitStack() as stack:
        episodes = Desks(rules, new_token())
        app = make_app(episodes, live)
        listener = replace(LOOPBACK, ports=host.ports).listen(HTTP_BACKLOG)
        port = listener.getsockname()[1]
        server = await stack.enter_async_context(serving_http(app, listener, None))
        episodes.url = f"http://127.0.0.1:{port}"
        if not host.is_loopback:
            outer = host.listen(HTTP_BACKLOG)
            address = join(host.address, outer.getsockname()[1])
            trust.check_address(address)
            # A program shows its key, not a certificate as the services do.
            tls = http_context(replace(trust.tls, authorities=None)) if trust.tls else None
            await stack.enter_async_context(serving_http(app, outer, tls))
            episodes.url = f"{'https' if tls else 'http'}://{address}"
        yield Endpoint(episodes, server, port)
