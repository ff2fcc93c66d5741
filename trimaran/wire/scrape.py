"""What a process counts, over plain HTTP: for a Prometheus that scrapes each container or pod itself.

Nothing listens unless `TRIMARAN_METRICS` names an address. It is a variable and no key of the run's
configuration, because the maker of a container knows its ports. On one machine it is not needed:
the manager hands on what each process of a run counts.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from trimaran.errors import InputError
from trimaran.run.network import listening_at
from trimaran.telemetry.exposition import CONTENT_TYPE
from trimaran.trust.access import Trust, is_loopback, read_token
from trimaran.trust.tls import http_context

ADDRESS_VARIABLE = "TRIMARAN_METRICS"
"""host:port, for example 0.0.0.0:9100."""
TOKEN_VARIABLE = "TRIMARAN_METRICS_TOKEN_FILE"
"""A file with the bearer token that Prometheus shows. Never the run's own token, with which
Prometheus could call every service."""


class Scrape:
    """Serves `GET /metrics` in the event loop of the service: a frozen service is seen as down.

    Example:
        scrape = Scrape.from_environment(os.environ, run.trust, metrics.text)
        if scrape:
            await scrape.start()
    """

    def __init__(self, address: str, trust: Trust, token: str, text: Callable[[], bytes]) -> None:
        """`trust`: the run's, for its TLS files. Raises InputError for an address beyond loopback
        without token and TLS, unless the network is trusted: then everybody on it may read."""
        if not (is_loopback(address) or trust.is_network_trusted or (token and trust.tls)):
            raise InputError(
                f"{ADDRESS_VARIABLE}: {address} is beyond loopback, and there is no token"
                f" ({TOKEN_VARIABLE}) or no TLS; use 127.0.0.1:PORT, or give both (the word"
                " `network: trusted` stands for them)"
            )
        self.address, self._tls, self._token, self._text = address, trust.tls, token, text
        self._open = AsyncExitStack()

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], trust: Trust, text: Callable[[], bytes]
    ) -> Scrape | None:
        """None where nothing is to listen. Raises InputError."""
        address = environment.get(ADDRESS_VARIABLE, "")
        file = environment.get(TOKEN_VARIABLE, "")
        return (
            cls(address, trust, read_token(Path(file)) if file else "", text) if address else None
        )

    async def start(self) -> None:
        """Raises InputError for an address that cannot be bound."""
        # Late: they take some tenths of a second that others need not pay.
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import Response
        from starlette.routing import Route

        from trimaran.wire.http_server import serving_http

        async def answer(request: Request) -> Response:
            shown = request.headers.get("Authorization", "")
            if self._token and not hmac.compare_digest(
                shown.encode(), f"Bearer {self._token}".encode()
            ):
                return Response("the token of this endpoint is missing\n", status_code=401)
            return Response(self._text(), headers={"Content-Type": CONTENT_TYPE})

        tls = http_context(self._tls) if self._tls else None
        listener, self.address = listening_at(self.address, ADDRESS_VARIABLE)
        app = Starlette(routes=[Route("/metrics", answer)])
        await self._open.enter_async_context(serving_http(app, listener, tls))

    async def stop(self) -> None:
        await self._open.aclose()
