"""docs/metrics.md out of the tables of metrics and series: `python -m tests.observability.metrics > docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from trimaran.telemetry import metrics, series

SERIES = tuple(value for value in vars(series).values() if isinstance(value, series.Series))


def markdown() -> Iterator[str]:
    """The lines of docs/metrics.md."""
    yield "# Metrics"
    yield ""
    yield "Written by `python -m tests.observability.metrics > docs/metrics.md` from the table in `trimaran/telemetry/metrics.py`."
    yield ""
    yield "Each step and each validation is one row of `metrics.jsonl` and the same numbers in TensorBoard. Beside the"
    yield "metrics a row has `kind` (`step` or `validation`), `step`, `time` (unix seconds) and, where updates of the step were"
    yield "left out, `nonfinite`: why. A metric that a step has no value for is absent; one that is not finite is null."
    yield ""
    yield "A share lies between 0 and 1. A part of a key in angle brackets is an axis, with one key for each of its names:"
    yield ""
    yield from (f"- `<{axis}>`: {names}" for axis, names in metrics.AXES.items())
    for service, rows in groupby(metrics.METRICS, lambda metric: metric.key.partition("/")[0]):
        yield ""
        yield f"## {service}"
        yield ""
        yield "| key | unit | meaning |"
        yield "|---|---|---|"
        for metric in rows:
            yield f"| `{metric.key}` | {metric.unit} | {metric.meaning} |"
    yield from _prometheus()


def _prometheus() -> Iterator[str]:
    yield ""
    yield "## Prometheus"
    yield ""
    yield "Every process counts what follows; the manager hands it on over HTTP (docs/clients.md). Besides, the controller has"
    yield "the metrics above of its last step and its last validation. Their names are the keys after `trimaran_step_`, with `_` for"
    yield '`/`, and their axes are labels: `trimaran_step_reward_term_mean{term="gsm8k"}`, `trimaran_step_weight_sync_bytes_by_transport{transport="memory"}`.'
    yield "Every process also has the `process_` series of Prometheus' own client."
    yield ""
    yield "| series | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for one in SERIES:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        yield f"| `{one.name}` | {one.kind} | {labels} | {one.meaning} |"


if __name__ == "__main__":
    print("\n".join(markdown()))
