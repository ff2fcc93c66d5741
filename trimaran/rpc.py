"""How services speak: serve and connect, with fencing, errors, deadlines, health and reflection.

A handler checks, calls and translates. A `TrimaranError` that leaves it travels as
`trimaran/status.py` says, and `call` on the other side raises the same class again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from trimaran import errors
from trimaran.fence import EpochFence, Issued, nobody_knows
from trimaran.status import error_of, name_of, status_of
from trimaran.types import Caller

logger = logging.getLogger(__name__)

# grpcio's type stubs lack these.
_aio_health: Any = cast(Any, health).aio
_add_health: Any = cast(Any, health_pb2_grpc).add_HealthServicer_to_server
_EOF: Any = cast(Any, grpc.aio).EOF
_Context = grpc.aio.ServicerContext[Any, Any]

OPTIONS = [
    # 512 completions of 8k tokens with log-probabilities are 28 MiB; manifests and images add to it.
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 1 << 30),
    # A second server on the same port must fail instead of sharing it.
    ("grpc.so_reuseport", 0),
]

STOP_GRACE_SECONDS = 2.0


class _Boundary(grpc.aio.ServerInterceptor):
    """Fences each request that names its caller and turns errors into status codes."""

    def __init__(self, issued: Issued) -> None:
        self._fence = EpochFence(issued)

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith("/grpc."):
            return handler  # health and reflection
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _unary(self, behavior: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def handle(request: Any, context: _Context) -> Any:
            try:
                await self._check(request)
                return await behavior(request, context)
            except Exception as error:
                await _abort(context, error)

        return handle

    def _stream(self, behavior: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
        async def handle(request: Any, context: _Context) -> AsyncIterator[Any]:
            try:
                await self._check(request)
                async for response in behavior(request, context):
                    yield response
            except Exception as error:
                await _abort(context, error)

        return handle

    async def _check(self, request: Any) -> None:
        if "caller" not in request.DESCRIPTOR.fields_by_name:
            return
        if not request.HasField("caller"):
            raise errors.InputError(f"{request.DESCRIPTOR.name}: caller is missing")
        await self._fence.check(Caller(request.caller.run_id, request.caller.epoch))


async def _abort(context: _Context, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    status = status_of(error)
    if status is None:
        logger.exception("unforeseen error in a handler")
        status = status_of(errors.InternalError(f"{type(error).__name__}: {error}"))
        assert status
    await context.abort(*status)


class Service(NamedTuple):
    """What `Server` serves; `service` makes it."""

    name: str
    """With its package: "trimaran.v1.RewardService"."""
    add_to: Callable[[Any], None]
    """Adds the servicer to a grpc.aio.Server."""


def service(file: FileDescriptor, add: Callable[[Any, Any], None], servicer: Any) -> Service:
    """`servicer` as the one service of its proto file; `add` is what protoc generated for it.

    Example:
        add = reward_pb2_grpc.add_RewardServiceServicer_to_server
        service(reward_pb2.DESCRIPTOR, add, RewardServicer(terms, judges))
    """
    [descriptor] = file.services_by_name.values()

    def add_to(server: Any) -> None:
        add(servicer, server)

    return Service(descriptor.full_name, add_to)


def check_loopback(address: str) -> None:
    """Raises InputError unless host:port is on this machine's loopback interface."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise errors.InputError(
            f"{address}: services speak without authentication, so they bind to loopback only;"
            " use 127.0.0.1:PORT"
        )


class Server:
    """One gRPC server with health and reflection; SERVING from `start` to `stop`.

    Example:
        server = Server("127.0.0.1:7000", [service(run_pb2.DESCRIPTOR, add, RunServicer(log))])
        await server.start()
    """

    def __init__(
        self,
        address: str,
        services: Iterable[Service],
        issued: Issued = nobody_knows,
    ) -> None:
        """`issued`: as in `EpochFence`. Raises InputError for an address that cannot be bound."""
        check_loopback(address)
        self._server = grpc.aio.server(interceptors=[_Boundary(issued)], options=OPTIONS)
        self._health = _aio_health.HealthServicer()
        _add_health(self._health, self._server)
        names: list[str] = []
        for name, add_to in services:
            add_to(self._server)
            names.append(name)
        self._names = ["", *names]
        reflection.enable_server_reflection(
            [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise errors.InputError(
                f"{address}: port in use; stop what listens there or name another"
            )
        self.address = f"{address.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        await self._server.start()
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        await self._server.stop(STOP_GRACE_SECONDS)


def connect(address: str) -> grpc.aio.Channel:
    """A channel that reconnects quickly: what we call is on this machine or its neighbour."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            *OPTIONS,
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


async def call(method: Callable[..., Any], request: Message, timeout: float) -> Any:
    """One unary call under a deadline in seconds. Raises the TrimaranError that the service raised.

    Example:
        response = await call(stub.GetRun, run_pb2.GetRunRequest(), timeout=10.0)
    """
    try:
        return await method(request, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and name_of(error) is None:
            name = request.DESCRIPTOR.full_name.removesuffix("Request")
            raise errors.DeadlineError(
                f"{name}: no answer within {timeout:g} s; the service is frozen or too slow"
            ) from None
        raise error_of(error) from None


async def stream(
    method: Callable[..., Any], request: Message, idle_timeout: float
) -> AsyncGenerator[Any, None]:
    """The responses of a streaming call; silence of `idle_timeout` seconds raises DeadlineError."""
    responses = method(request)
    try:
        while True:
            async with asyncio.timeout(idle_timeout):
                response = await responses.read()
            if response is _EOF:
                return
            yield response
    except TimeoutError:
        raise errors.DeadlineError(f"no answer for {idle_timeout:g} s") from None
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from None
    finally:
        responses.cancel()


async def wait_until_serving(address: str, timeout: float) -> None:
    """Returns once the service's health says SERVING. Raises DeadlineError after `timeout` seconds."""
    async with connect(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        deadline = asyncio.get_running_loop().time() + timeout
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=min(left, 5.0))
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass  # not up yet: that is what we wait for
            await asyncio.sleep(0.1)
    raise errors.DeadlineError(f"{address}: not serving after {timeout:g} s")
