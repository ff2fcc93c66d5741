"""From a group to verdicts: every term judges every completion, and the weighted sum is the reward."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from services.reward.outcome import Fault, Indigestible, NotApplicable, Outcome, Value
from services.reward.terms import Term
from trimaran.rewards import Sample
from trimaran.types import LARGEST_REWARD, Faulted, Score, Verdict

logger = logging.getLogger(__name__)

MAX_PART_NAMES = 32

Judge = Callable[[Sequence[Sample]], Awaitable[Sequence[Outcome]]]
"""One outcome a sample, in order. Raises nothing for a bad answer, process or plugin."""


class PartNames:
    """Names of the parts that were ever seen, term by term. Each is a metric for the rest of the
    run, so a function that puts an id into the name must not make ever more of them."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def keep(self, term: str, parts: Mapping[str, float]) -> dict[str, float]:
        """Those that are known or may still become so."""
        known = self._known.setdefault(term, set())
        for name in parts.keys() - known:
            if len(known) < MAX_PART_NAMES:
                known.add(name)
                if len(known) == MAX_PART_NAMES:
                    logger.warning("%s: has %d parts; no new one is kept", term, MAX_PART_NAMES)
        return {name: part for name, part in parts.items() if name in known}


async def score_group(
    terms: Sequence[Term],
    judges: Mapping[str, Judge],
    names: PartNames,
    samples_G: Sequence[Sample],
) -> tuple[Verdict, ...]:
    """One verdict a sample, in order. `judges`: the name of each term -> who judges it.

    Example:
        async def judge(samples: Sequence[Sample]) -> list[Outcome]:
            return [Value(float(sample.text == sample.answer)) for sample in samples]

        verdicts = await score_group([term], {term.name: judge}, PartNames(), samples_G)
    """
    if not terms:
        return (Score(0.0),) * len(samples_G)  # the environment's reward is all there is
    judged_TG = await asyncio.gather(*(_judge(term, judges, samples_G) for term in terms))
    outcomes_TG = [
        [within_bounds(term, outcome, names) for outcome in judged]
        for term, judged in zip(terms, judged_TG, strict=True)
    ]
    _log_failures(terms, samples_G[0].prompt_id if samples_G else "", outcomes_TG)
    return tuple(combine(terms, outcomes) for outcomes in zip(*outcomes_TG, strict=True))


async def _judge(
    term: Term, judges: Mapping[str, Judge], samples_G: Sequence[Sample]
) -> Sequence[Outcome]:
    """All samples are answers to one prompt, so they are of one task."""
    if term.tasks and samples_G and samples_G[0].task not in term.tasks:
        return [NotApplicable()] * len(samples_G)
    return await judges[term.name](samples_G)


def within_bounds(term: Term, outcome: Outcome, names: PartNames) -> Outcome:
    """A value that cannot be believed is a fault of the rule, not of the answer."""
    if not isinstance(outcome, Value):
        return outcome
    if not abs(outcome.value) <= LARGEST_REWARD:
        return Fault(f"the score is {outcome.value:g}")
    if not term.minimum <= outcome.value <= term.maximum:
        return Fault(
            f"the score {outcome.value:g} is not within {term.minimum:g} and {term.maximum:g};"
            f" set reward.rules.{term.name}.minimum and maximum to what it may give"
        )
    if not outcome.parts:
        return outcome
    parts = {name: part for name, part in outcome.parts.items() if abs(part) <= LARGEST_REWARD}
    return replace(outcome, parts=names.keep(term.name, parts))


def combine(terms: Sequence[Term], outcomes: Sequence[Outcome]) -> Verdict:
    """One completion: the weighted sum over the terms that apply, or the fault that prevents it."""
    values: dict[str, float] = {}
    reward, indigestible = 0.0, False
    faults: dict[str, str] = {}
    prediction: str | None = None
    for term, outcome in zip(terms, outcomes, strict=True):
        match outcome:
            case Value(value, parts, read):
                values[term.name] = value
                prediction = read if prediction is None else prediction
                values.update({f"{term.name}.{name}": part for name, part in parts.items()})
            case Indigestible(_reason, score):
                known = math.isfinite(term.worst) or score is None
                values[term.name] = term.worst if known else min(score or 0.0, term.maximum)
                indigestible = True
            case Fault(reason):
                faults[term.name] = reason
            case NotApplicable():
                continue
        reward += term.weight * values.get(term.name, 0.0)
    if faults:
        text = "; ".join(f"{name}: {reason}" for name, reason in faults.items())
        return Faulted(text, values, tuple(faults))
    if not values:
        return Faulted("no rule applies to this completion: every function answered None")
    if not abs(reward) <= LARGEST_REWARD:
        remedy = "set minimum and maximum of the terms that are plugins and functions"
        return Faulted(f"the reward is {reward:g}, too much to learn from; {remedy}", values)
    return Score(reward, values, indigestible, prediction)


def _log_failures(
    terms: Sequence[Term], prompt_id: str, outcomes_TG: Sequence[Sequence[Outcome]]
) -> None:
    """One line a term and group, with the first reason."""
    for term, outcomes in zip(terms, outcomes_TG, strict=True):
        for kind, word in ((Fault, "faulted"), (Indigestible, "indigestible")):
            failed = [outcome for outcome in outcomes if isinstance(outcome, kind)]
            if failed:
                logger.warning(
                    "%s: %s: %d of %d are %s; the first: %s",
                    *(prompt_id, term.name, len(failed), len(outcomes), word, failed[0].reason),
                )
