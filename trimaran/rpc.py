"""How services speak: serve, connect, one table from errors to status codes, health, fencing.

A handler checks, calls and translates; every `TrimaranError` that leaves it is
mapped by `STATUS`, and `call` on the other side raises the same class again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from trimaran import errors
from trimaran.call_thread import CallThread
from trimaran.types import Caller

logger = logging.getLogger(__name__)

# grpcio's type stubs know none of these.
_aio_health: Any = health.aio  # pyright: ignore[reportAttributeAccessIssue]
_EOF: Any = grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue]

STATUS: dict[type[errors.TrimaranError], grpc.StatusCode] = {
    errors.InputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.StaleEpochError: grpc.StatusCode.PERMISSION_DENIED,
    errors.OutOfOrderError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PromptTooLongError: grpc.StatusCode.OUT_OF_RANGE,
    errors.BehindError: grpc.StatusCode.ABORTED,
    errors.TransferError: grpc.StatusCode.DATA_LOSS,
    errors.UnprovenError: grpc.StatusCode.UNAUTHENTICATED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}
ERRORS = {code: error for error, code in STATUS.items()}

OPTIONS = [
    # 512 completions of 8k tokens with log-probabilities are 28 MiB; manifests and images add to it.
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 1 << 30),
    # A second server on the same port must fail instead of sharing it.
    ("grpc.so_reuseport", 0),
]

MAX_EPOCH = 2**62
"""A run's store counts in int64."""
Issued = Callable[[str], int | None]
ISSUED_SECONDS = 30.0
"""For the store to say which epoch is the newest."""

STOP_GRACE_SECONDS = 2.0
GRPC_DEADLINE = "Deadline Exceeded"
"""What gRPC itself says when a call's time is over."""


class EpochFence:
    """Refuses callers whose epoch is older than the newest seen for their run.

    Controllers draw their epochs from the run's store. Where a service can ask
    it, an epoch that was never drawn is refused too: one call with a huge number
    would otherwise lock every later controller out.
    """

    def __init__(self, issued: Issued = lambda run_id: None) -> None:
        """`issued`: the newest epoch that was drawn for a run; None where nobody can say.

        It is asked in a thread, once for each newer epoch.
        """
        self._issued = issued
        # Of its own: a disk that hangs must not use up the threads that others work in.
        self._asking = CallThread("epochs")
        self._newest: dict[str, int] = {}

    async def check(self, caller: Caller) -> None:
        if caller.epoch > MAX_EPOCH:
            raise errors.InputError(f"epoch {caller.epoch}: no epoch is larger than {MAX_EPOCH}")
        newest = self._newest.get(caller.run_id)
        if newest is None or caller.epoch > newest:
            newest = max(await self._learn(caller), self._newest.get(caller.run_id, 0))
            self._newest[caller.run_id] = newest
        if caller.epoch < newest:
            raise errors.StaleEpochError(
                f"run {caller.run_id}: epoch {caller.epoch} was replaced by {newest};"
                " another controller has taken over, stop this one"
            )

    async def _learn(self, caller: Caller) -> int:
        """The newest epoch of the caller's run. Raises InputError when the caller's is not one."""
        ask = partial(self._issued, caller.run_id)
        try:
            if self._asking.hangs:
                raise errors.DeadlineError("an earlier question still hangs")
            issued = await asyncio.to_thread(self._asking.call, ask, ISSUED_SECONDS)
        except errors.DeadlineError:
            raise errors.UnavailableError(
                f"the run's store has not answered for {ISSUED_SECONDS:g} s; see that its disk works"
            ) from None
        except sqlite3.Error as error:
            raise errors.UnavailableError(f"the run's store cannot be read: {error}") from error
        if issued is None:
            return caller.epoch
        if not 0 < caller.epoch <= issued:
            raise errors.InputError(
                f"run {caller.run_id}: epoch {caller.epoch} was never drawn;"
                f" the newest of this run is {issued}"
            )
        return issued


class _Boundary(grpc.aio.ServerInterceptor):
    """Fences each request that names its caller and turns errors into status codes."""

    def __init__(self, issued: Issued) -> None:
        self._fence = EpochFence(issued)

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/trimaran."):
            return handler
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
        async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                await self._check(request)
                return await behavior(request, context)
            except Exception as error:
                await _abort(context, error)

        return handle

    def _stream(self, behavior: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
        async def handle(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
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


async def _abort(context: grpc.aio.ServicerContext, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    # A room may have a narrower class of its own; across the wire it is what it derives from.
    code = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)
    if code is None:
        logger.exception("unforeseen error in a handler")
        error = errors.InternalError(f"{type(error).__name__}: {error}")
        code = STATUS[errors.InternalError]
    await context.abort(code, str(error))


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
    """One gRPC server with health and reflection; SERVING from `start` to `stop`."""

    def __init__(
        self,
        address: str,
        add_services: Iterable[Callable[[Any], str]],
        issued: Issued = lambda run_id: None,
    ) -> None:
        """`add_services`: each adds a servicer to the server and returns its full name.

        `issued`: as in `EpochFence`.
        """
        check_loopback(address)
        self._server = grpc.aio.server(interceptors=[_Boundary(issued)], options=OPTIONS)
        self._health = _aio_health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [add(self._server) for add in add_services]
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


async def call(method: Callable[..., Any], request: Any, timeout: float) -> Any:
    """One unary call under a deadline in seconds. Raises the TrimaranError that the service raised."""
    try:
        return await method(request, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        if error.details() == GRPC_DEADLINE:
            name = request.DESCRIPTOR.full_name.removesuffix("Request")
            raise errors.DeadlineError(
                f"{name}: no answer within {timeout:g} s; the service is frozen or too slow"
            ) from None
        raise _translate(error) from None


async def stream(
    method: Callable[..., Any], request: Any, idle_timeout: float
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
        raise _translate(error) from None
    finally:
        responses.cancel()


def _translate(error: grpc.aio.AioRpcError) -> errors.TrimaranError:
    details = error.details() or error.code().name
    if error.code() is grpc.StatusCode.CANCELLED:
        return errors.UnavailableError(details)
    return ERRORS.get(error.code(), errors.InternalError)(details)


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
