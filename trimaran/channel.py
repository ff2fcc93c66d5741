"""A gRPC channel that shows its token with every call, and follows certificates that change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from trimaran import scope, tracing
from trimaran.reread import Reread
from trimaran.tls import LAST_CALLS_SECONDS, Pem, channel_credentials, read_pem
from trimaran.trust import Trust

Options = Sequence[tuple[str, Any]]


class TrustedChannel(grpc.aio.Channel):
    """Stubs take it as any other channel.

    gRPC has no client credentials that change, so a channel of today's files takes the place of
    the one before; calls that are under way there go on.
    """

    def __init__(self, address: str, trust: Trust, options: Options) -> None:
        """Raises InputError: a token does not leave this machine in plain text."""
        if trust.token:
            trust.check_address(address)
        self._address, self._options, self._tls = address, options, trust.tls
        self._metadata = (("authorization", f"Bearer {trust.token}"),) if trust.token else ()
        files = trust.tls
        self._pem = Reread(files.paths, lambda: read_pem(files)) if files else None
        self._used = self._pem.current() if self._pem else None
        self._channel = self._open(self._used)
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
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel_ready()

    async def close(self, grace: float | None = None) -> None:
        self._closed.set()
        await asyncio.gather(*self._retiring)
        await self._channel.close(grace)

    async def __aenter__(self) -> TrustedChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _method(self, kind: str, arguments: Any, options: Any) -> Callable[..., Any]:
        made_by: grpc.aio.Channel | None = None
        made: Any = None

        def call(*requests: Any, metadata: Any = None, **settings: Any) -> Any:
            nonlocal made_by, made
            channel = self._current()
            if channel is not made_by:
                made_by, made = channel, getattr(channel, kind)(*arguments, **options)
            told = (*self._metadata, *(metadata or ()))
            if scope.process.travels:
                told = (*told, *scope.headers(), *tracing.headers())
            return made(*requests, metadata=told, **settings)

        return call

    def _current(self) -> grpc.aio.Channel:
        pem = self._pem.current() if self._pem else None
        if pem is not self._used:
            old, self._channel, self._used = self._channel, self._open(pem), pem
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
        if pem is None:
            return grpc.aio.insecure_channel(self._address, options=self._options)
        credentials = channel_credentials(pem)
        return grpc.aio.secure_channel(self._address, credentials, options=self._options)
