"""What every client has: an address, a channel and the deadlines that calls share."""

from __future__ import annotations

from types import TracebackType
from typing import Any, ClassVar, Self

import grpc

from trimaran.run.directory import ProcessPlace
from trimaran.trust.access import NO_TRUST, Trust
from trimaran.types import Caller
from trimaran.wire import messages as wire
from trimaran.wire import rpc

CONTROL_SECONDS = 10.0
"""Deadline of calls that only look something up."""
TRANSFER_MARGIN_SECONDS = 5.0
"""A transfer's own deadline ends first, so that its error says what happened."""


class Client:
    """Owns its channel; use it as an async context manager or call `close`."""

    _service: ClassVar[Any]
    """The stub that protoc generated."""

    def __init__(self, address: str | ProcessPlace, trust: Trust = NO_TRUST) -> None:
        self._address = address
        self._channel: grpc.aio.Channel = rpc.connect(address, trust)
        self._stub = self._service(self._channel)

    @property
    def address(self) -> str:
        """host:port; the name of a place whose address is not known yet."""
        if isinstance(self._address, str):
            return self._address
        return self._address.address or self._address.name

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class CallerClient(Client):
    """Says in its requests which run's controller calls."""

    def __init__(
        self, address: str | ProcessPlace, caller: Caller, trust: Trust = NO_TRUST
    ) -> None:
        super().__init__(address, trust)
        self._caller = wire.encode_caller(caller)
