"""The table of metrics, and what follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.observability.metrics import markdown
from trimaran.errors import InternalError
from trimaran.run.event_words import COLUMNS, EPISODE_COLUMNS
from trimaran.telemetry import metrics
from trimaran.telemetry.metrics import AXES, METRICS, find_metric

DOCUMENT = Path(metrics.__file__).parents[2] / "docs" / "metrics.md"


def test_the_document_is_the_table() -> None:
    written = DOCUMENT.read_text(encoding="utf-8").splitlines()
    assert written == list(markdown()), (
        "run: python -m tests.observability.metrics > docs/metrics.md"
    )


def test_each_key_is_declared_once() -> None:
    for metric in METRICS:
        assert [other for other in METRICS if other.has(metric.key)] == [metric]


def test_every_axis_is_explained_and_used() -> None:
    assert {axis for metric in METRICS for axis in metric.axes} == AXES.keys()


@given(name=st.text(min_size=1))
def test_an_axis_takes_any_name(name: str) -> None:
    """A plugin names the parts of its terms as it likes."""
    assert find_metric(f"reward/term/{name}/mean").key == "reward/term/<term>/mean"


@pytest.mark.parametrize(
    "key", ["", "loss", "trainer/losses", "trainer/loss/mean", "reward/term//mean", "reward/term/x"]
)
def test_any_other_key_is_refused(key: str) -> None:
    with pytest.raises(InternalError, match="is not declared"):
        find_metric(key)


def test_what_the_line_of_a_step_shows_is_declared() -> None:
    assert [find_metric(key) for _, key, _ in (*COLUMNS, *EPISODE_COLUMNS)]
