"""OpenTelemetry traces, where OTEL_EXPORTER_OTLP_ENDPOINT is set: else nothing is made or sent.

    group 17  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  controller
      generate ━━━━━━━━━━━━━━━                                          controller
        attempt  ━━━━━━━━━━━━━                                          controller
          RolloutService/Generate ━━━                                   rollout-0
      score                   ━━━━                                      controller
        RewardService/ScoreGroup ━━                                     reward
      wait                        ━━━━━━━━━                             controller
      train                                ━━━━━━━━━━  ┐ linked to      trainer-0
      publish                                        ━━┘ the step's     controller
    step 3                                 ━━━━━━━━━━━━                 controller
      TrainerService/Train, WeightSyncService/PublishVersion, …

A group is one trace, across services and across a resume: its id follows from the run's id and the
group's number, so each process that knows both adds to it. A step trains many groups and is
a trace of its own.

The variables are OpenTelemetry's own, and the operator's: a run's configuration cannot send its
traces elsewhere. `trimaran/telemetry/otel.py` has what needs the packages of the extra `traces`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from trimaran.telemetry import scope

if TYPE_CHECKING:
    from trimaran.telemetry.otel import Tracer

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
"""They may hold a token of the collector."""
PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")

Attribute = int | str
_NOTHING: AbstractContextManager[None] = nullcontext()


class _State:
    headers: str | None = None
    """None: no traces are wanted."""
    tracer: Tracer | None = None


_state = _State()


def configure(environment: MutableMapping[str, str]) -> None:
    """Whether traces are wanted. Takes the collector's token out of the environment: what this
    process starts, such as functions of others that judge answers, does not inherit it."""
    headers = [environment.pop(name, "") for name in HEADERS]
    if not any(environment.get(name) for name in ENDPOINTS):
        return
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_off or environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), "grpc")
    if protocol != "grpc":
        logger.warning("no traces: %s is %s, and only grpc is spoken", PROTOCOLS[1], protocol)
    elif not all(map(_is_installed, PACKAGES)):
        logger.warning("no traces: a package is missing; pip install 'trimaran[traces]'")
    else:
        _state.headers = headers[0] or headers[1]
        scope.process.travels = True


def start() -> None:
    """Where traces are wanted. Starts a thread: after an engine has forked its processes."""
    if _state.headers is not None and _state.tracer is None:
        from trimaran.telemetry.otel import Tracer  # late: it takes half a second

        _state.tracer = Tracer(scope.process.name, scope.process.run_id, _state.headers)


def stop() -> None:
    """Sends what is left."""
    if _state.tracer:
        _state.tracer.close()
    _state.tracer = _state.headers = None


def is_on() -> bool:
    return _state.tracer is not None


def span(name: str, **attributes: Attribute) -> AbstractContextManager[None]:
    """Around a piece of work; inside another span a part of it, outside of one nothing.

    Example:
        with span("attempt", replica=lease.name):
            await lease.client.generate(...)
    """
    return _state.tracer.span(name, attributes) if _state.tracer else _NOTHING


def in_group(number: int) -> AbstractContextManager[None]:
    """Inside, spans belong to the group's trace."""
    return _state.tracer.in_group(number) if _state.tracer else _NOTHING


def step(number: int, groups: Iterable[int]) -> AbstractContextManager[None]:
    """A trace of its own, linked to those of the groups."""
    return _state.tracer.step(number, list(groups)) if _state.tracer else _NOTHING


def annotate(**attributes: Attribute) -> None:
    """The span that is open."""
    if _state.tracer:
        _state.tracer.annotate(attributes)


@contextmanager
def in_groups(name: str, groups: Iterable[int]) -> Generator[None]:
    """Around work on many groups at once: each trace gets a span, linked to the one that is open.

    Nothing where the work fails.
    """
    if not (tracer := _state.tracer):
        yield
        return
    began = tracer.now()
    yield
    for group in groups:
        tracer.add(name, group, began, tracer.now())


def waited(group: int, began: float) -> None:
    """From `began`, unix seconds, to now the group has waited for its step."""
    if _state.tracer:
        _state.tracer.add("wait", group, int(began * 1e9), _state.tracer.now())


def ended(group: int, began: float, outcome: str) -> None:
    """The whole of a group's trace, from `began`, unix seconds. `outcome`: "committed"."""
    if _state.tracer:
        _state.tracer.add_whole(group, int(began * 1e9), outcome)


def headers() -> tuple[tuple[str, str], ...]:
    """Metadata for a call: the open span as W3C traceparent."""
    return _state.tracer.headers() if _state.tracer else ()


def served(name: str, metadata: Iterable[tuple[str, str | bytes]]) -> AbstractContextManager[None]:
    """Around the answer to a call that came with `headers`; nothing around others."""
    return _state.tracer.served(name, metadata) if _state.tracer else _NOTHING


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
