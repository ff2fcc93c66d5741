"""A gRPC channel that shows its token with every call, and follows what changes: the certificates,
and the address of the process that it reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from trimaran.errors import UnreachableError
from trimaran.host.reread import Reread
from trimaran.run.directory import ProcessPlace
from trimaran.telemetry import scope, tracing
from trimaran.trust.access import Trust, is_loopback
from trimaran.trust.tls import LAST_CALLS_SECONDS, Pem, channel_credentials, read_pem

Options = Sequence[tuple[str, Any]]

DIRECT = ("grpc.enable_http_proxy", 0)
"""gRPC would send calls, with their tokens, to the proxy that the shell names, even those to 127.0.0.1."""
AWAY = [
    # On one machine the kernel reports a peer's death. A host that is gone says nothing: calls under
    # way end within the sum of the first two, new connections are given up after the last. The
    # second is also how long the kernel (TCP_USER_TIMEOUT) sends unanswered bytes again: a network
    # that is away for some seconds must not end a step.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", 5_000),
]
"""Options of channels beyond loopback; `rpc.Server` lets them ask so often."""


class TrustedChannel(grpc.aio.Channel):
    """Stubs take it as any other channel.

    gRPC has no client credentials that change, and no channel whose address does, so a channel of
    today's takes the place of the one before; calls that are under way there go on.
    """

    def __init__(self, address: str | ProcessPlace, trust: Trust, options: Options) -> None:
        """Raises InputError: a token does not leave this machine in plain text."""
        self._place = address if isinstance(address, ProcessPlace) else None
        self._address = address.address if isinstance(address, ProcessPlace) else address
        self._trust, self._options = trust, options
        self._metadata = (("authorization", f"Bearer {trust.token}"),) if trust.token else ()
        files = trust.tls
        self._pem = Reread(files.paths, lambda: read_pem(files)) if files else None
        self._used = self._pem.current() if self._pem else None
        self._channel = self._open(self._used) if self._address else None
        self._closed = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._method("unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._method("unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._method("stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._method("stream_stream", arguments, options)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.current().channel_ready()

    async def close(self, grace: float | None = None) -> None:
        self._closed.set()
        await asyncio.gather(*self._retiring)
        if self._channel is not None:
            await self._channel.close(grace)

    async def __aenter__(self) -> TrustedChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _method(self, kind: str, arguments: Any, options: Any) -> Method:
        return Method(
            self.current, self._metadata, self._place, (kind, tuple(arguments), dict(options))
        )

    def current(self) -> grpc.aio.Channel:
        """Raises UnavailableError until it is known where the process answers."""
        pem = self._pem.current() if self._pem else None
        address = self._place.address if self._place else self._address
        if not address:
            assert self._place
            self._place.look_again()
            raise UnreachableError(f"{self._place.name}: has not said yet where it answers")
        if self._channel is None or pem is not self._used or address != self._address:
            old, self._used, self._address = self._channel, pem, address
            self._channel = self._open(pem)
            if old is not None:
                task = asyncio.get_running_loop().create_task(self._retire(old))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
        return self._channel

    async def _retire(self, old: grpc.aio.Channel) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_CALLS_SECONDS):
                await self._closed.wait()
        await old.close()

    def _open(self, pem: Pem | None) -> grpc.aio.Channel:
        if self._trust.token:
            self._trust.check_address(self._address)
        options = [DIRECT, *self._options, *([] if is_loopback(self._address) else AWAY)]
        if pem is None:
            return grpc.aio.insecure_channel(self._address, options=options)
        if self._trust.tls and (name := self._trust.tls.server_name):
            options.append(("grpc.ssl_target_name_override", name))
        return grpc.aio.secure_channel(self._address, channel_credentials(pem), options=options)


class Method:
    """What a stub calls; of the channel of the moment."""

    def __init__(
        self,
        current: Callable[[], grpc.aio.Channel],
        metadata: tuple[tuple[str, str], ...],
        place: ProcessPlace | None,
        making: tuple[str, tuple[Any, ...], dict[str, Any]],
    ) -> None:
        self._current, self._metadata, self._making = current, metadata, making
        self.place = place
        """None where the address is given for good."""
        self._made_by: grpc.aio.Channel | None = None
        self._made: Any = None

    def __call__(self, *requests: Any, metadata: Any = None, **settings: Any) -> Any:
        channel = self._current()
        if channel is not self._made_by:
            kind, arguments, options = self._making
            self._made_by, self._made = channel, getattr(channel, kind)(*arguments, **options)
        sent = (*self._metadata, *(metadata or ()))
        if scope.process.travels:
            sent = (*sent, *scope.headers(), *tracing.headers())
        return self._made(*requests, metadata=sent, **settings)
