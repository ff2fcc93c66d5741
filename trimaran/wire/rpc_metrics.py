"""Every gRPC server counts its calls, and reports what it has counted: MetricsService."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from trimaran.telemetry import scope, tracing
from trimaran.telemetry.exposition import Exposition
from trimaran.v1 import metrics_pb2, metrics_pb2_grpc

NAME = metrics_pb2.DESCRIPTOR.services_by_name["MetricsService"].full_name
Metadata = Sequence[tuple[str, str | bytes]]

lives = logging.getLogger("trimaran.lives")
"""What becomes of each group; only where JSON lines are written."""

_CODES: dict[Any, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class CallMetrics(grpc.aio.ServerInterceptor):
    """Counts calls, how they ended and how long they took. The first interceptor, so that refusals
    of the others are counted."""

    def __init__(self, metrics: Exposition) -> None:
        self._metrics = metrics

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith("/grpc."):
            return handler  # health and reflection
        service, _, method = handler_call_details.method.rpartition("/")
        name = f"{service.rpartition('.')[2]}/{method}"
        metadata = handler_call_details.invocation_metadata or ()
        serializers = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(name, metadata, handler.unary_unary), *serializers
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(name, metadata, handler.unary_stream), *serializers
            )
        return handler

    def _unary(
        self, name: str, metadata: Metadata, behavior: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def handle(request: Any, context: Any) -> Any:
            with self._counted(name, metadata, context), tracing.served(name, metadata):
                return await behavior(request, context)

        return handle

    def _stream(
        self, name: str, metadata: Metadata, behavior: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
            with self._counted(name, metadata, context), tracing.served(name, metadata):
                async for response in behavior(request, context):
                    yield response

        return handle

    @contextmanager
    def _counted(self, name: str, metadata: Metadata, context: Any) -> Generator[None]:
        if scope.process.travels:
            scope.learn(**scope.read(metadata))
        metrics, began, code = self._metrics, time.perf_counter(), "OK"
        metrics.open.labels(name).inc()
        try:
            yield
        except grpc.aio.AbortError:
            code = _name_of(context.code())
            raise
        except Exception:
            code = "UNKNOWN"
            raise
        except BaseException:  # the caller went away, or the server ends
            code = "CANCELLED"
            raise
        finally:
            metrics.open.labels(name).dec()
            metrics.calls.labels(name, code).inc()
            seconds = time.perf_counter() - began
            metrics.seconds.labels(name).observe(seconds)
            if scope.process.travels and scope.facts():
                lives.info("%s: %s after %.3f s", name, code, seconds)


class MetricsServicer(metrics_pb2_grpc.MetricsServiceServicer):
    def __init__(self, metrics: Exposition) -> None:
        self._metrics = metrics

    async def GetMetrics(
        self, request: metrics_pb2.GetMetricsRequest, context: Any
    ) -> metrics_pb2.GetMetricsResponse:
        return metrics_pb2.GetMetricsResponse(text=self._metrics.text().decode())

    def add_to(self, server: Any) -> None:
        add: Any = metrics_pb2_grpc.add_MetricsServiceServicer_to_server  # pyright: ignore
        add(self, server)


def _name_of(code: Any) -> str:
    """grpcio gives a member of StatusCode or its number."""
    return code.name if isinstance(code, grpc.StatusCode) else _CODES.get(code, "UNKNOWN")
