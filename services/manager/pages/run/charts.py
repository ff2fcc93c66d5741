"""Which numbers of a run share a chart, and which charts stand first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trimaran.telemetry.metrics import (
    GREEDY_CORRECT,
    GREEDY_REWARD,
    LAG_MAX,
    LENGTH_MEAN,
    METRICS,
    REWARD_MEAN,
    SAMPLED_REWARD,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
    Metric,
)

_DECLARED = {metric.key: metric for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Line:
    """Example: Line("trainer/loss", "loss")"""

    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Several numbers over one axis.

    Example: Chart("lag", "Lag", {"mean": "rollout/completion/lag/mean"})
    """

    name: str
    """In addresses."""
    title: str
    keys: Mapping[str, str]
    """By label. A key with an axis stands for a line for each of the axis' names, in the place of {}."""
    spread: tuple[str, ...] = ()
    """Around the first line: its standard deviation, or the least and the greatest value."""
    unit: str = ""
    about: str = ""

    def lines(self, known: Iterable[str]) -> list[Line]:
        """For the keys that a run has."""
        found: list[Line] = []
        for label, key in self.keys.items():
            metric = _DECLARED.get(key)
            if metric is None or not metric.axes:
                found.extend(Line(key, label) for name in known if name == key)
                continue
            names = {name: metric.names_in(name)[0] for name in known if metric.has(name)}
            found.extend(
                Line(name, label.format(names[name]))
                for name in sorted(names, key=lambda name: (_size(names[name]), names[name]))
            )
        return found


def _chart(
    name: str, title: str, keys: Mapping[str, str], spread: tuple[str, ...] = (), about: str = ""
) -> Chart:
    """With the unit of the first key."""
    return Chart(name, title, keys, spread, _DECLARED[next(iter(keys.values()))].unit, about)


CHARTS = (
    _chart(
        "reward",
        "Reward",
        {"mean": REWARD_MEAN},
        ("reward/completion/std",),
        "the band is one standard deviation over the completions",
    ),
    _chart("held-out", "Held-out reward", {"greedy": GREEDY_REWARD, "sampled": SAMPLED_REWARD}),
    _chart(
        "correct",
        "Held-out correct answers",
        {"greedy": GREEDY_CORRECT, "pass@{}": "validation/pass_at/<k>"},
    ),
    _chart("terms", "Reward by rule", {"{}": "reward/term/<term>/mean"}),
    _chart(
        "length",
        "Length of completions",
        {"mean": LENGTH_MEAN},
        ("rollout/completion/length/min", "rollout/completion/length/max"),
        "the band is from the shortest to the longest",
    ),
    _chart(
        "shares",
        "Completions and groups",
        {
            "truncated": "rollout/completion/truncated/share",
            "faulted": "reward/completion/faulted/share",
            "groups of equal rewards": "reward/group/equal/share",
        },
    ),
    _chart("lag", "Lag", {"mean": "rollout/completion/lag/mean", "max": LAG_MAX}),
    _chart(
        "entropy",
        "Entropy",
        {"estimate": "trainer/computed/entropy", "exact": "trainer/computed/exact_entropy"},
    ),
    _chart(
        "kl",
        "KL divergence",
        {
            "from the reference": "trainer/kl",
            "of engine and trainer, k1": "trainer/computed/rollout_kl/k1",
            "of engine and trainer, k3": "trainer/computed/rollout_kl/k3",
        },
    ),
    _chart(
        "clip",
        "Clipped and corrected tokens",
        {
            "{}": "trainer/policy/<measure>",
            "correction: {}": "trainer/computed/correction/<measure>",
        },
    ),
    _chart("gradient", "Norm of the gradient", {"before clipping": "trainer/grad_norm"}),
    _chart("tokens", "Tokens a second", {"of the step": TOKENS_PER_SECOND}),
    _chart(
        "phases",
        "Seconds of a step and its phases",
        {"step": STEP_SECONDS, "{}": "controller/phase/<activity>/seconds"},
    ),
    _chart(
        "weights",
        "Seconds of new weights",
        {
            "stage": "weight_sync/stage/seconds",
            "commit": "weight_sync/commit/seconds",
            "pause": "weight_sync/pause/seconds",
        },
    ),
    _chart(
        "turns",
        "Turns of an episode",
        {"mean": "environment/turns/mean", "max": "environment/turns/max"},
    ),
    _chart("environment", "Seconds in the environment", {"mean": "environment/seconds/mean"}),
    _chart("calls", "Tool calls that failed", {"share": "environment/calls/failed/share"}),
)
"""Those of which a run has a number stand on its page."""
_BY_NAME = {chart.name: chart for chart in CHARTS}


def find_charts(names: Iterable[str]) -> list[Chart]:
    """As they were chosen; all that are declared where none was. Any key of a run is a chart too."""
    return [_BY_NAME.get(name) or _own_chart(name) for name in names] or list(CHARTS)


def other_charts(known: Iterable[str]) -> list[Chart]:
    """One for each key that stands in no declared chart."""
    keys = set(known)
    drawn = {line.key for chart in CHARTS for line in chart.lines(keys)}
    return [_own_chart(key) for key in sorted(keys - drawn)]


def _size(name: str) -> int:
    """Of a number: 2 comes before 16."""
    return int(name) if name.isdecimal() else 0


def _own_chart(key: str) -> Chart:
    metric = next((metric for metric in METRICS if metric.has(key)), Metric(key, "", ""))
    return Chart(key, key, {"": key}, unit=metric.unit, about=metric.meaning)
