"""A real OpenTelemetry collector, rotel, and where it hands its spans on to: a list."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc

from tests.observability.servers import SECONDS
from trimaran.run.network import LOOPBACK
from trimaran.telemetry.tracing import PACKAGES

_found = find_spec("rotel")
AGENT = Path(_found.origin).parent / "rotel-agent" if _found and _found.origin else None
HAS_SDK = all(find_spec(package.partition(".")[0]) and find_spec(package) for package in PACKAGES)
WHY_SKIPPED = "needs a collector and OpenTelemetry's SDK: pip install rotel 'trimaran[traces]'"

QUIET_SECONDS = 3.0
"""Longer than the collector gathers spans before it hands them on."""


@dataclass(frozen=True, slots=True)
class Span:
    """As it reached the collector."""

    name: str
    trace: str
    span: str
    parent: str
    process: str
    begin: int
    end: int
    attributes: dict[str, Any]
    links: tuple[str, ...]
    """Traces that it is linked to."""


class Collected:
    """Spans, in the order in which they came."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.endpoint = ""
        """What OTEL_EXPORTER_OTLP_ENDPOINT is to be set to."""

    def of(self, trace: int) -> list[Span]:
        return [span for span in self.spans if span.trace == f"{trace:032x}"]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def collector(folder: Path) -> Generator[Collected]:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

    collected = Collected()

    class Sink(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collected.spans += [
                _span(span, _attributes(of_process.resource.attributes))
                for of_process in request.resource_spans
                for scope in of_process.scope_spans
                for span in scope.spans
            ]
            return pb.ExportTraceServiceResponse()

    sink = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Sink(), sink)
    port = sink.add_insecure_port("127.0.0.1:0")
    sink.start()
    address = LOOPBACK.free_address()
    collected.endpoint = f"http://{address}"
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        agent = subprocess.Popen(
            [
                *(str(AGENT), "start", "--pid-file", str(folder / "pid")),
                *("--otlp-grpc-endpoint", address),
                *("--otlp-http-endpoint", LOOPBACK.free_address({address})),
                *("--exporter", "otlp", "--otlp-exporter-endpoint", f"http://127.0.0.1:{port}"),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        channel = grpc.insecure_channel(address)
        try:
            grpc.channel_ready_future(channel).result(timeout=30)
        except grpc.FutureTimeoutError:
            raise AssertionError((folder / "log").read_text()) from None
        channel.close()
        yield collected
    finally:
        agent.kill()
        agent.wait()
        sink.stop(0)


def wait_for_last(collected: Collected, *names: str) -> None:
    """Until spans of these names have come, and no further ones for a while."""
    deadline, seen, since = time.monotonic() + SECONDS, 0, time.monotonic()
    while time.monotonic() < since + QUIET_SECONDS or not all(map(collected.named, names)):
        assert time.monotonic() < deadline, sorted({span.name for span in collected.spans})
        if len(collected.spans) != seen:
            seen, since = len(collected.spans), time.monotonic()
        time.sleep(0.1)


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        resource["trimaran.process"],
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        tuple(link.trace_id.hex() for link in span.links),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
