"""How good the answers of a validation are: rewards, correct shares, pass@k and majority@k.

Nothing is kept of a prompt but sums, so that a validation of any size takes the same memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trimaran.telemetry.metrics import (
    GREEDY_CORRECT,
    GREEDY_REWARD,
    MAJORITY_AT,
    PASS_AT,
    SAMPLED_REWARD,
    sizes_up_to,
)
from trimaran.types import Score, Verdict


@dataclass(frozen=True, slots=True)
class Judged:
    """A scored answer.

    Example: Judged(reward=1.0, is_correct=True, prediction="42")
    """

    reward: float
    is_correct: bool | None
    """None where no term says."""
    prediction: str | None = None
    """Its final answer, as `Score.prediction`."""


def accuracy_terms(rules: Iterable[str]) -> tuple[str, ...]:
    """Which terms say whether an answer is correct, where the run does not: of each rule its part for that, as
    the functions of verl (acc) and of EasyR1 and our rules for them (accuracy) report it, or else its value.

    Example: accuracy_terms(["geo3k"]) == ("geo3k.acc", "geo3k.accuracy", "geo3k")
    """
    return tuple(term for name in rules for term in (f"{name}.acc", f"{name}.accuracy", name))


def judge(
    verdicts_G: Iterable[Verdict], correct_by: Sequence[str], correct_from: float
) -> list[Judged]:
    """The judged answers, of those that were scored. `correct_by`: names of terms; the first that judged an answer counts."""
    return [
        Judged(one.reward, _is_correct(one, correct_by, correct_from), one.prediction)
        for one in verdicts_G
        if isinstance(one, Score)
    ]


def _is_correct(score: Score, correct_by: Sequence[str], correct_from: float) -> bool | None:
    values = [score.terms[name] for name in correct_by if name in score.terms]
    return values[0] >= correct_from if values else None


def pass_at(k: int, num_samples: int, num_correct: int) -> float:
    """The chance that at least one of k answers is correct, drawn without putting back from
    `num_samples` of which `num_correct` are: 1 - C(n - c, k) / C(n, k).

    An unbiased estimate for the policy: Chen et al. 2021, arXiv:2107.03374, equation 1.

    Example: pass_at(2, num_samples=4, num_correct=1) == 0.5
    """
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def majority_at(k: int, judged_G: Sequence[Judged]) -> float:
    """How often the final answer that most of k samples give is correct: mean over the n // k parts of k
    samples into which the n samples fall in their order.

    A sample without a final answer has no vote; a part without votes counts as wrong. Of answers with
    equally many votes each counts alike. An answer is as correct as the samples that give it are on
    average: a rule may ask for a form besides.

    Example: of the predictions 7 (correct), 7, 8, 8, 8, 7 and k = 3 it is 0.5
    """
    parts = [judged_G[start : start + k] for start in range(0, len(judged_G) - k + 1, k)]
    return sum(map(_vote, parts)) / len(parts)


def _vote(part: Sequence[Judged]) -> float:
    votes = Counter(one.prediction for one in part if one.prediction)
    most = max(votes.values(), default=0)
    winners = [text for text, number in votes.items() if number == most]
    shares = [sum(bool(one.is_correct) for one in part if one.prediction == w) for w in winners]
    return sum(shares) / (len(winners) * most) if winners else 0.0


@dataclass(slots=True)
class Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1


@dataclass(slots=True)
class Tally:
    """Sums over the prompts of one task, or of all.

    Example:
        tally = Tally(num_samples=4)
        tally.add(greedy=[Judged(1.0, True)], sampled=[Judged(0.0, False)] * 4)
        tally.values()  # {"validation/greedy_reward/mean": 1.0, "validation/pass_at/4": 0.0, ...}
    """

    num_samples: int
    means: dict[str, Mean] = field(default_factory=dict[str, Mean])
    """By the keys of metrics."""

    def add(self, greedy: Sequence[Judged], sampled: Sequence[Judged]) -> None:
        """Those of a prompt's answers that were scored. A prompt with fewer than k scored samples does not
        count for that k."""
        for one in greedy:
            self._add(GREEDY_REWARD, one.reward)
            if one.is_correct is not None:
                self._add(GREEDY_CORRECT, one.is_correct)
        for one in sampled:
            self._add(SAMPLED_REWARD, one.reward)
        known = [one for one in sampled if one.is_correct is not None]
        for k in sizes_up_to(self.num_samples):
            if k <= len(known):
                num_correct = sum(bool(one.is_correct) for one in known)
                self._add(PASS_AT.format(k), pass_at(k, len(known), num_correct))
                if k > 1 and any(one.prediction is not None for one in known):
                    self._add(MAJORITY_AT.format(k), majority_at(k, known))

    def values(self) -> dict[str, float]:
        return {key: mean.total / mean.count for key, mean in self.means.items()}

    def _add(self, key: str, value: float) -> None:
        self.means.setdefault(key, Mean()).add(value)
