"""What a process reports to Prometheus: the series of `trimaran/telemetry/series.py`, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trimaran.telemetry.metrics import find_metric
from trimaran.telemetry.series import RPC_CALLS, RPC_OPEN, RPC_SECONDS, STORE_SECONDS, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
"""Seconds. A look-up takes 1 ms, a step of a large model an hour."""

Reading = float | Mapping[str, float] | Mapping[tuple[str, ...], float] | None
"""One number, or one for each value of the labels; None: not known yet."""


class Exposition:
    """The numbers of one server: it shares nothing with others in the same process.

    Example:
        server.metrics.show(TRAINER_STEP, lambda: rank.version.version.step)
        server.metrics.text()  # b"# HELP trimaran_trainer_step step of ..."
    """

    def __init__(self) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.calls = Counter(*_described(RPC_CALLS), registry=registry)
        self.seconds = Histogram(*_described(RPC_SECONDS), registry=registry, buckets=BUCKETS)
        self.open = Gauge(*_described(RPC_OPEN), registry=registry)
        self._registry = registry

    def show(self, series: Series, read: Callable[[], Reading]) -> None:
        """`read` is called for each scrape."""
        self._registry.register(_Shown(series, read))

    def show_step(self, read: Callable[[], Mapping[str, float]]) -> None:
        """The metrics of a step, by their keys in `trimaran/telemetry/metrics.py`."""
        self._registry.register(_ShownStep(read))

    def show_store(self, seconds: StoreSeconds) -> None:
        self._registry.register(seconds.histogram)

    def text(self, labels: Mapping[str, str] | None = None) -> bytes:
        """In Prometheus' text format. `labels`: of every series besides its own."""
        return generate_latest(_Labelled(self._registry, labels) if labels else self._registry)


def process_labels(run_id: str, process: str) -> dict[str, str]:
    """What distinguishes a process of a run from others.

    Example: process_labels("addition-1", "rollout-3")["kind"] == "rollout"
    """
    kind, _, index = process.rpartition("-")
    kind, index = (kind, index) if index.isdigit() else (process, "0")
    return {"run": run_id, "process": process, "kind": kind, "index": index}


class _Labelled(CollectorRegistry):
    """The same series, with further labels."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._of, self._labels = registry, labels

    def collect(self) -> Iterator[Metric]:
        for family in self._of.collect():
            labelled = Metric(family.name, family.documentation, family.type)
            labelled.samples = [
                sample._replace(labels={**self._labels, **sample.labels})
                for sample in family.samples
            ]
            yield labelled


class StoreSeconds:
    """How long the calls of a store took: it is there before the server that shows it.

    Example:
        seconds = StoreSeconds()
        store = timed(await open_store(url), seconds)
        server.metrics.show_store(seconds)
    """

    def __init__(self) -> None:
        self.histogram = Histogram(*_described(STORE_SECONDS), registry=None, buckets=BUCKETS)

    def __call__(self, call: str, seconds: float) -> None:
        self.histogram.labels(call).observe(seconds)


class _Shown(Collector):
    def __init__(self, series: Series, read: Callable[[], Reading]) -> None:
        self._series, self._read = series, read

    def describe(self) -> Iterator[Metric]:
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        family, reading = self._family(), self._read()
        if isinstance(reading, Mapping):
            for labels, value in reading.items():
                family.add_metric([labels] if isinstance(labels, str) else labels, value)
        elif reading is not None:
            family.add_metric([], reading)
        yield family

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if self._series.kind == "counter" else GaugeMetricFamily
        return kind(self._series.name, self._series.meaning, labels=self._series.labels)


class _ShownStep(Collector):
    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        for key, value in self._read().items():
            metric = find_metric(key)
            name = metric.series
            if name not in families:
                families[name] = GaugeMetricFamily(name, metric.description, labels=metric.axes)
            families[name].add_metric(metric.names_in(key), value)
        yield from families.values()


def _described(series: Series) -> tuple[str, str, tuple[str, ...]]:
    return series.name, series.meaning, series.labels
