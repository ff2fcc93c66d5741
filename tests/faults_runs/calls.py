"""Calls that get lost, come late or come twice, at the side that serves them.

The driver gives an order for one call of one process (`tests.faults.orders`); the interceptor, which
only test processes have, carries it out on the next such call:

    drop       it never arrives: the caller sees a connection that broke
    lose       it is done, but its answer never arrives
    delay S    it arrives S seconds late
    twice      it arrives twice at once; the caller gets the first answer
    again S    a copy of it arrives S seconds after it was answered; nothing hears the second answer
    cut N      its stream of answers breaks after N of them
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from tests.faults.orders import Orders

logger = logging.getLogger(__name__)

_copies: set[asyncio.Task[None]] = set()


class FaultyCalls(grpc.aio.ServerInterceptor):
    """Outside of all others, so that a copy goes the whole way."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.rpartition("/")
        if handler is None or not service.startswith("/trimaran."):
            return handler
        action, _, number = self._orders.reach(method).partition(" ")
        if not action:
            return handler
        logger.warning("test: %s %s %s", method, action, number)
        wrap, make = (
            (_stream, grpc.unary_stream_rpc_method_handler)
            if handler.response_streaming
            else (_unary, grpc.unary_unary_rpc_method_handler)
        )
        behavior = handler.unary_stream if handler.response_streaming else handler.unary_unary
        return make(
            wrap(behavior, action, float(number or 0)),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def install(orders: Orders) -> None:
    """In this process, before it serves anything."""
    serve: Any = grpc.aio.server

    def server(*arguments: Any, interceptors: Any = (), **named: Any) -> Any:
        return serve(*arguments, interceptors=[FaultyCalls(orders), *interceptors], **named)

    grpc.aio.server = server


def _unary(behavior: Callable[..., Any], action: str, number: float) -> Callable[..., Any]:
    async def handle(request: Any, context: Any) -> Any:
        if action == "drop":
            await _break(context)
        if action == "delay":
            await asyncio.sleep(number)
        if action == "twice":
            _spawn(_unheard(behavior, request, context, 0))
        answer = await behavior(request, context)
        if action == "again":
            _spawn(_unheard(behavior, request, context, number))
        if action == "lose":
            await _break(context)
        return answer

    return handle


def _stream(behavior: Callable[..., Any], action: str, number: float) -> Callable[..., Any]:
    async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
        if action == "drop":
            await _break(context)
        if action == "delay":
            await asyncio.sleep(number)
        if action in ("twice", "again"):
            _spawn(_unheard_stream(behavior, request, context, number))
        left = number if action == "cut" else float("inf")
        async for answer in behavior(request, context):
            if left < 1:
                await _break(context)
            left -= 1
            yield answer
        if action == "lose":
            await _break(context)

    return handle


async def _break(context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "test: the connection broke")


class _NoCaller:
    """The context of a call to which nothing listens."""

    def __init__(self, context: Any) -> None:
        self._metadata = context.invocation_metadata()

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return "test:no_caller"

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        logger.warning("test: the copy was refused: %s %s", code, details)
        raise grpc.aio.AbortError(details)


async def _unheard(behavior: Any, request: Any, context: Any, seconds: float) -> None:
    no_caller = _NoCaller(context)
    await asyncio.sleep(seconds)
    try:
        await behavior(request, no_caller)
    except grpc.aio.AbortError:
        return


async def _unheard_stream(behavior: Any, request: Any, context: Any, seconds: float) -> None:
    no_caller = _NoCaller(context)
    await asyncio.sleep(seconds)
    try:
        async for _ in behavior(request, no_caller):
            pass
    except grpc.aio.AbortError:
        return


def _spawn(work: Any) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _copies.add(task)
    task.add_done_callback(_copies.discard)
