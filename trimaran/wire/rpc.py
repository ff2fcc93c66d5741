"""How services speak: serve and connect, with fencing, errors, deadlines, health and reflection.

A handler checks, calls and translates. A `TrimaranError` that leaves it travels as
`trimaran/wire/status.py` says, and `call` on the other side raises the same class again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from trimaran import errors
from trimaran.host.call_waits import answering_within
from trimaran.host.open_files import most_connections
from trimaran.run.directory import ProcessPlace
from trimaran.telemetry import scope, tracing
from trimaran.telemetry.exposition import Exposition, process_labels
from trimaran.trust.access import LOCAL, NO_TRUST, ClientIdentity, Trust
from trimaran.trust.tls import server_credentials, server_options
from trimaran.types import Caller
from trimaran.wire import health_note, rpc_metrics
from trimaran.wire.channel import Method, TrustedChannel
from trimaran.wire.fence import EpochFence, Issued, no_epochs
from trimaran.wire.recheck import IDENTIFY_SECONDS, while_allowed
from trimaran.wire.rpc_metrics import CallMetrics, MetricsServicer
from trimaran.wire.scrape import Scrape
from trimaran.wire.status import error_of, name_of, status_of

logger = logging.getLogger(__name__)

# grpcio's type stubs lack these.
_aio_health: Any = cast(Any, health).aio
_add_health: Any = cast(Any, health_pb2_grpc).add_HealthServicer_to_server
_EOF: Any = cast(Any, grpc.aio).EOF
_Context = grpc.aio.ServicerContext[Any, Any]

MAX_MESSAGE_BYTES = 1 << 30
"""512 completions of 8k tokens with log-probabilities are 28 MiB; manifests and images add to it."""
OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A second server on the same port must fail instead of sharing it.
    ("grpc.so_reuseport", 0),
]

IDLE_SECONDS = 300.0
"""Without a call, after which a connection ends; the caller's next call makes another."""
HANDSHAKE_SECONDS = 10.0
"""From a connection to its first frames, with TLS in between."""

PINGS = [
    # Callers on other hosts ask whether we live, `channel.AWAY`, also while a long call says nothing.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
]

STOP_GRACE_SECONDS = 2.0
REACH_SECONDS = 30.0
"""Longer than a silent host takes to be noticed (`channel.AWAY`): who was called for so long was there."""
REACH_PAUSE_SECONDS = 0.5

Identify = Callable[[str, str], ClientIdentity]
"""Given the method's path and the token ("" without one): who calls. Raises UnauthenticatedError or
ForbiddenError."""
HEALTH = "/grpc.health.v1.Health/Check"
"""Open to everybody: probes have no token. Who has none may not watch it, and so hold a connection."""

STRANGERS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
"""What another run's process, or another service, answers to a call that is not meant for it."""

_client: ContextVar[ClientIdentity] = ContextVar("client", default=LOCAL)


def client() -> ClientIdentity:
    """Within a handler: who called it."""
    return _client.get()


class _Boundary(grpc.aio.ServerInterceptor):
    """Refuses strangers, fences each request that names its caller, and turns errors into codes."""

    def __init__(self, issued: Issued, identify: Identify, identify_seconds: float) -> None:
        self._fence = EpochFence(issued)
        self._identify = identify
        self._identify_seconds = identify_seconds

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        if method == HEALTH:
            return await continuation(handler_call_details)
        token = _token(handler_call_details.invocation_metadata)
        try:
            identity = self._identify(method, token)
        except errors.TrimaranError as error:
            known = not isinstance(error, errors.ForbiddenError)  # a stranger learns no methods
            if known or await continuation(handler_call_details) is not None:
                return _refusal(error)
            return None  # UNIMPLEMENTED, whatever the role
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith("/grpc."):
            return handler  # reflection
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(
                    handler.unary_stream, identity, partial(self._identify, method, token)
                ),
                request_deserializer=_or_none(handler.request_deserializer),
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(handler.unary_unary, identity),
            request_deserializer=_or_none(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )

    def _unary(
        self, behavior: Callable[..., Awaitable[Any]], identity: ClientIdentity
    ) -> Callable[..., Awaitable[Any]]:
        async def handle(request: Any, context: _Context) -> Any:
            try:
                _client.set(identity)
                async with answering_within(context.time_remaining()):
                    await self._check(request)
                    return await behavior(request, context)
            except Exception as error:
                await _abort(context, error)

        return handle

    def _stream(
        self,
        behavior: Callable[..., AsyncIterator[Any]],
        identity: ClientIdentity,
        identify: Callable[[], ClientIdentity],
    ) -> Callable[..., Any]:
        async def handle(request: Any, context: _Context) -> AsyncIterator[Any]:
            try:
                _client.set(identity)
                await self._check(request)
                responses = behavior(request, context)
                async for response in while_allowed(responses, identify, self._identify_seconds):
                    yield response
            except Exception as error:
                await _abort(context, error)

        return handle

    async def _check(self, request: Any) -> None:
        if request is None:
            raise errors.InputError("request: its bytes are no message of this method")
        if "caller" not in request.DESCRIPTOR.fields_by_name:
            return
        if not request.HasField("caller"):
            raise errors.InputError(f"{request.DESCRIPTOR.name}: caller is missing")
        await self._fence.check(Caller(request.caller.run_id, request.caller.epoch))


def _token(metadata: Any) -> str:
    """The token of `authorization: Bearer TOKEN`; "" without one."""
    value = next((str(value) for key, value in metadata or () if key == "authorization"), "")
    kind, _, token = value.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _or_none(deserialize: Callable[[bytes], Message]) -> Callable[[bytes], Message | None]:
    """None for bytes that are no message, so that they are refused as any other bad input."""

    def read(data: bytes) -> Message | None:
        try:
            return deserialize(data)
        except DecodeError:
            return None

    return read


def _refusal(error: errors.TrimaranError) -> Any:
    """A stream, so that nothing of the request is read, however long it is."""

    async def refuse(requests: Any, context: _Context) -> None:
        await _abort(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)  # pyright: ignore


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


def _bounds() -> list[tuple[str, int]]:
    """On what strangers may hold open."""
    return [
        ("grpc.max_allowed_incoming_connections", most_connections()),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
    ]


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
        issued: Issued = no_epochs,
        trust: Trust = NO_TRUST,
        identify: Identify | None = None,
        max_request_bytes: int = MAX_MESSAGE_BYTES,
        identify_seconds: float = IDENTIFY_SECONDS,
    ) -> None:
        """`issued`: as in `EpochFence`. `identify`: in the place of the token of `trust`.

        Health can be asked without a token. Raises InputError for an address that cannot be bound,
        and for one beyond loopback without token and TLS.
        """
        if not (identify and (trust.tls or trust.is_network_trusted)):
            trust.check_address(address)
        options = [*OPTIONS, *PINGS, ("grpc.max_receive_message_length", max_request_bytes)]
        options += _bounds()
        options += server_options(trust.tls) if trust.tls else []
        boundary = _Boundary(issued, identify or trust.identify, identify_seconds)
        self.metrics = Exposition()
        self.scrape = Scrape.from_environment(os.environ, trust, self._text)
        """What Prometheus asks over HTTP; None unless the environment names an address."""
        self._server = grpc.aio.server(
            interceptors=[CallMetrics(self.metrics), boundary], options=options
        )
        self._health = _aio_health.HealthServicer()
        _add_health(self._health, self._server)
        names: list[str] = []
        metrics = Service(rpc_metrics.NAME, MetricsServicer(self.metrics).add_to)
        for name, add_to in (*services, metrics):
            add_to(self._server)
            names.append(name)
        self._names = ["", *names]
        reflection.enable_server_reflection(
            [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )
        try:
            if trust.tls:
                port = self._server.add_secure_port(address, server_credentials(trust.tls))
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise errors.InputError(
                f"{address}: port in use; stop what listens there (ss -ltnp names it) or name another"
            )
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._tls = trust.tls

    def _text(self) -> bytes:
        """For a Prometheus that does not know what it scrapes."""
        me = scope.process
        return self.metrics.text(process_labels(me.run_id, me.name) if me.run_id else None)

    async def start(self) -> None:
        tracing.start()
        if self.scrape:
            await self.scrape.start()
        await self._server.start()
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        health_note.own.serve(self.address, self._tls)

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        await self._server.stop(STOP_GRACE_SECONDS)
        if self.scrape:
            await self.scrape.stop()


def connect(
    address: str | ProcessPlace, trust: Trust = NO_TRUST, longest_pause_ms: int = 1000
) -> grpc.aio.Channel:
    """A channel that reconnects quickly: what we call is on this machine or its neighbour. It
    follows a place to another address.

    `longest_pause_ms`: between two tries.
    """
    options = [
        *OPTIONS,
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", longest_pause_ms),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return TrustedChannel(address, trust, options)


async def call(method: Callable[..., Any], request: Message, timeout: float) -> Any:
    """One unary call under a deadline in seconds. Raises the TrimaranError that the service raised.

    Example: response = await call(stub.GetRun, run_pb2.GetRunRequest(), timeout=10.0)
    """
    try:
        return await method(request, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        _look_again(method, error)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and name_of(error) is None:
            name = request.DESCRIPTOR.full_name.removesuffix("Request")
            raise errors.DeadlineError(
                f"{name}: no answer within {timeout:g} s; the service is frozen or too slow"
            ) from None
        raise error_of(error) from None


async def call_again(method: Callable[..., Any], request: Message, timeout: float) -> Any:
    """`call` of what may be asked twice: a connection that breaks, as the one between two hosts does
    when the network is away for a while, is made again.

    Raises as `call`, UnreachableError once no process was reached for `REACH_SECONDS`, and where a process
    answers by then who does not know what came before: it was started again.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    lost_at: float | None = None
    while True:
        asked_at = loop.time()
        try:
            return await call(method, request, max(deadline - asked_at, 0.001))
        except errors.OutOfOrderError as error:
            if lost_at is None:
                raise
            raise errors.UnreachableError(f"it was started again meanwhile: {error}") from None
        except errors.UnreachableError:
            now = loop.time()
            if lost_at is None or now - asked_at >= REACH_SECONDS:
                lost_at = now  # until now it was there
            if now + REACH_PAUSE_SECONDS >= min(deadline, lost_at + REACH_SECONDS):
                raise
        await asyncio.sleep(REACH_PAUSE_SECONDS)


async def stream(
    method: Callable[..., Any], request: Message, idle_timeout: float | None
) -> AsyncGenerator[Any, None]:
    """The responses of a streaming call; silence of `idle_timeout` seconds raises DeadlineError,
    unless it is None."""
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
        _look_again(method, error)
        raise error_of(error) from None
    finally:
        responses.cancel()


def _look_again(method: Callable[..., Any], error: grpc.aio.AioRpcError) -> None:
    """After a failed call to a place: where no process answered, it is looked up again.

    Raises UnreachableError where another process did: the one that is meant has moved, and its port is another's.
    """
    place = method.place if isinstance(method, Method) else None
    strange = error.code() in STRANGERS
    if place is None or (name_of(error) is not None and not strange):
        return
    place.look_again()
    if strange:
        raise errors.UnreachableError(
            f"{place.name}: another process answers at {place.address} ({error.details()})"
        ) from None


async def is_serving(
    address: str | ProcessPlace, timeout: float, trust: Trust = NO_TRUST, name: str = ""
) -> bool:
    """Whether the health of the service `name` ("": of all there) says SERVING within `timeout`
    seconds."""
    async with connect(address, trust) as channel:
        return await _answers(health_pb2_grpc.HealthStub(channel), timeout, name)


async def _answers(stub: Any, timeout: float, name: str = "") -> bool:
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        with suppress(errors.UnreachableError):
            _look_again(stub.Check, error)
        return False
    except errors.UnreachableError:
        return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


async def wait_until_serving(
    address: str | ProcessPlace, timeout: float, trust: Trust = NO_TRUST
) -> None:
    """Returns once the service's health says SERVING. Raises DeadlineError after `timeout` seconds."""
    # A run starts when the last of its services was found.
    async with connect(address, trust, longest_pause_ms=200) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        deadline = asyncio.get_running_loop().time() + timeout
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            if await _answers(stub, min(left, 5.0)):
                return
            await asyncio.sleep(0.1)
    name = address.name if isinstance(address, ProcessPlace) else address
    raise errors.DeadlineError(f"{name}: not serving after {timeout:g} s")
