"""Spans and their way to a collector, with the packages of the extra `traces`: see tracing.py."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trimaran.telemetry import scope

Attributes = Mapping[str, int | str]
SEND_SECONDS = 5
"""For one package to the collector."""
CLOSE_SECONDS = 2.0
MOST_WAITING = 16_384
"""Spans. A step of 512 groups ends 2,000 at a time; beyond it they are dropped."""
NOTHING = Context()

_fixed: ContextVar[tuple[int, int] | None] = ContextVar("fixed", default=None)


class _Ids(RandomIdGenerator):
    """Random ones, but for the span of a whole group."""

    def generate_trace_id(self) -> int:
        fixed = _fixed.get()
        return fixed[0] if fixed else super().generate_trace_id()

    def generate_span_id(self) -> int:
        fixed = _fixed.get()
        return fixed[1] if fixed else super().generate_span_id()


def group_ids(run_id: str, number: int) -> tuple[int, int]:
    """The ids of a group's trace and of its outermost span: the same in every process of the run.

    Example: f"{group_ids('addition-1', 17)[0]:032x}" is what a viewer of traces is asked for.
    """
    digest = hashlib.sha256(f"{run_id}/group/{number}".encode()).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1


class Tracer:
    """Example: Tracer("rollout-0", "addition-1", headers="")"""

    def __init__(self, process: str, run_id: str, headers: str) -> None:
        """`headers`: for the collector, as `OTEL_EXPORTER_OTLP_HEADERS` has them."""
        self._run_id = run_id
        kind, _, index = process.rpartition("-")
        resource = Resource.create(
            {
                "service.name": f"trimaran.{kind if index.isdigit() else process}",
                "service.instance.id": f"{run_id}/{process}",
                "trimaran.run": run_id,
                "trimaran.process": process,
            }
        )
        self._provider = TracerProvider(
            resource=resource, id_generator=_Ids(), shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(headers=headers or None, timeout=SEND_SECONDS)
        waiting = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", MOST_WAITING))
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=waiting))
        self._tracer = self._provider.get_tracer("trimaran")
        self._w3c = TraceContextTextMapPropagator()

    def close(self) -> None:
        """Sends what is left; a collector that does not answer is left alone."""
        last = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(CLOSE_SECONDS)

    def now(self) -> int:
        """Unix nanoseconds."""
        return time.time_ns()

    @contextmanager
    def span(self, name: str, attributes: Attributes) -> Generator[None]:
        if not trace.get_current_span().get_span_context().is_valid:
            yield  # no trace of this is wanted
            return
        with self._tracer.start_as_current_span(name, attributes=_named(attributes)):
            yield

    @contextmanager
    def in_group(self, number: int) -> Generator[None]:
        if not self._is_sampled(number):
            yield
            return
        token = contexts.attach(self._context_of(number))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextmanager
    def step(self, number: int, groups: Sequence[int]) -> Generator[None]:
        links = [Link(self._span_context(group)) for group in filter(self._is_sampled, groups)]
        with self._tracer.start_as_current_span(
            "step", NOTHING, attributes=_named({"step": number}), links=links
        ):
            yield

    def annotate(self, attributes: Attributes) -> None:
        trace.get_current_span().set_attributes(_named(attributes))

    def add(self, name: str, group: int, began: int, ended: int) -> None:
        """To the group's trace, linked to the span that is open. Unix nanoseconds."""
        if not self._is_sampled(group):
            return
        open_span = trace.get_current_span().get_span_context()
        links = [Link(open_span)] if open_span.is_valid else []
        self._tracer.start_span(
            name,
            self._context_of(group),
            attributes=_named({"group": group}),
            links=links,
            start_time=began,
        ).end(ended)

    def add_whole(self, group: int, began: int, outcome: str) -> None:
        if not self._is_sampled(group):
            return
        token = _fixed.set(group_ids(self._run_id, group))
        try:
            span = self._tracer.start_span(
                f"group {group}",
                NOTHING,
                attributes=_named({"group": group, "outcome": outcome}),
                start_time=began,
            )
        finally:
            _fixed.reset(token)
        span.end()

    def headers(self) -> tuple[tuple[str, str], ...]:
        carrier: dict[str, str] = {}
        self._w3c.inject(carrier)
        return tuple(carrier.items())

    @contextmanager
    def served(self, name: str, metadata: Iterable[tuple[str, str | bytes]]) -> Generator[None]:
        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        parent = self._w3c.extract(carrier, NOTHING)
        if not trace.get_current_span(parent).get_span_context().is_valid:
            yield
            return
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, _named({}))
        # To the end of the call's task: a stream that is given up is closed in another context.
        contexts.attach(trace.set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            span.end()

    def _context_of(self, group: int) -> Context:
        return trace.set_span_in_context(NonRecordingSpan(self._span_context(group)), NOTHING)

    def _span_context(self, group: int) -> SpanContext:
        """The group's outermost span, which is sent when the group has ended."""
        sampled = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(*group_ids(self._run_id, group), is_remote=False, trace_flags=sampled)

    def _is_sampled(self, group: int) -> bool:
        """The same in every process: it depends on the trace's id alone."""
        trace_id, _ = group_ids(self._run_id, group)
        return self._provider.sampler.should_sample(
            NOTHING, trace_id, "group"
        ).decision.is_sampled()


def _named(attributes: Attributes) -> dict[str, int | str]:
    """With what the work at hand is about."""
    return {f"trimaran.{key}": value for key, value in {**scope.facts(), **attributes}.items()}
