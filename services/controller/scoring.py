"""From a group to a scored group, or to the reason why it stays out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import starmap

from services.controller.faulted import (
    FaultedGate,
    Verdicts,
    half_is_scored,
    most_frequent_fault,
    num_faulted,
)
from services.controller.groups import PromptSkipped
from trimaran.clients import RewardClient
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, StaleEpochError, TrimaranError, UnavailableError
from trimaran.ledger.retries import growing_wait, patiently
from trimaran.types import (
    ENVIRONMENT_TERM,
    LARGEST_REWARD,
    Completion,
    Faulted,
    Group,
    Score,
    ScoredGroup,
    Verdict,
)

MARGIN_SECONDS = 30.0
RESPAWN_SECONDS = 5.0
"""A worker that was killed is replaced, and loads its rules again."""


def num_at_a_time(config: RunConfig) -> int:
    """Groups that are scored at a time: as many as have a slot, also in a validation."""
    return (config.run.max_lag + 1) * config.run.groups_per_step


def score_timeout(config: RunConfig) -> float:
    """Seconds after which the reward service itself is frozen, whatever its rules do.

    The worst case is that every answer of every group under way hangs every function, twice, and
    that this group's are the last in the pool's queue. Plugins have a queue of calls each, and the
    deadline of a call covers all its tries. Terms are judged side by side, so that the slowest of
    the pool and the plugins counts, not their sum.
    """
    samples = max(
        config.rollout.group_size, config.validation.samples, config.validation.final_samples
    )
    groups, reward = num_at_a_time(config), config.reward
    plugins = [rule.plugin for rule in reward.rules.values() if rule.plugin]
    num_functions = len(reward.rules) - len(plugins)
    turns = math.ceil(groups * samples * num_functions / reward.workers)
    waits = [2 * (reward.timeout + RESPAWN_SECONDS) * turns]
    for plugin in plugins:
        num_calls = groups * math.ceil(samples / plugin.batch_size)
        waits.append(plugin.timeout * math.ceil(num_calls / plugin.max_concurrency))
    return MARGIN_SECONDS + max(waits)


def missing_signal(scored: ScoredGroup, term: str | None = None) -> str:
    """Why no group-relative advantage of the group differs from 0: all its scored rewards are equal,
    or all values of one of their terms. Empty where they differ."""
    scores = [verdict for verdict in scored.verdicts_G if isinstance(verdict, Score)]
    values = {one.reward if term is None else one.terms.get(term) for one in scores}
    if len(values) > 1:
        return ""
    equal = ", ".join("missing" if value is None else f"{value:g}" for value in values)
    return f"all its {'rewards' if term is None else f'values of {term}'} are {equal}"


class Scorer:
    """Asks the reward service for a group's verdicts, again where too many are faulted.

    Example:
        scorer = Scorer(reward_client, FaultedGate(config, print, print), config)
        scored = await scorer.score(group)
        scored.verdicts_G  # a Score or a Faulted for each completion
    """

    def __init__(
        self,
        reward: RewardClient,
        gate: FaultedGate,
        config: RunConfig,
        wait: Callable[[int], float] = growing_wait,
    ) -> None:
        """`wait`: seconds before a group is scored again, by how often it failed."""
        self._reward, self._gate, self._wait = reward, gate, wait
        self._max_attempts = config.run.max_attempts
        self._patience = config.outage_timeout
        self._timeout = score_timeout(config)
        # With a bound on the groups under way there is one on how long each may take.
        self._places = asyncio.Semaphore(num_at_a_time(config))
        self._environment_weight = config.environment.weight if config.environment else None
        self._terms, self._has_rules = config.reward_terms, bool(config.reward.rules)

    @property
    def paused(self) -> asyncio.Event:
        """Set while nothing passes, because too many answers cannot be scored."""
        return self._gate.paused

    async def score(self, group: Group) -> ScoredGroup:
        """Waits while the run is paused. Raises PromptSkipped(filtered) when less than half of the
        group can be scored, DeadlineError for a frozen service, PausedTooLongError."""
        verdicts_G: Verdicts = ()
        for attempt in range(1, self._max_attempts + 1):
            try:
                verdicts_G = await self._verdicts(group)
            except DeadlineError:
                # A rule that hangs has its own deadline: here the service itself is frozen.
                if attempt == self._max_attempts:
                    raise
            else:
                if half_is_scored(verdicts_G):
                    return ScoredGroup(group, verdicts_G)
            if attempt < self._max_attempts:
                await asyncio.sleep(self._wait(attempt))
        raise PromptSkipped(
            f"{num_faulted(verdicts_G)} of {len(verdicts_G)} completions faulted,"
            f" {self._max_attempts} times; the last: {most_frequent_fault(verdicts_G)}",
            filtered=True,
        )

    async def _verdicts(self, group: Group) -> Verdicts:
        """A faulted episode has no answer that could be judged, whatever the reward service does: it neither
        counts in the gate nor ends a pause."""
        whole = [one for one in group.completions_G if not one.fault]
        judged: Iterator[Verdict] = iter(())
        if whole:
            judged = iter(
                await self._gate.verdicts(replace(group, completions_G=tuple(whole)), self._judge)
            )
        return tuple(
            Faulted(one.fault, faulted_terms=self._terms) if one.fault else next(judged)
            for one in group.completions_G
        )

    async def _judge(self, group: Group) -> Verdicts:
        """Waits for a service that restarts. Raises StaleEpochError, UnavailableError when it stays
        away, DeadlineError when it is frozen; any other failure of a call is a fault."""
        async with self._places:
            try:
                verdicts_G: Verdicts = (Score(0.0),) * len(group.completions_G)
                if self._has_rules:
                    verdicts_G = await patiently(
                        lambda: self._reward.score_group(group, self._timeout),
                        self._patience,
                        "reward",
                    )
                rewarded = starmap(
                    self._with_environment, zip(verdicts_G, group.completions_G, strict=True)
                )
                return tuple(self._check_finite(verdict) for verdict in rewarded)
            except (StaleEpochError, UnavailableError, DeadlineError):
                raise
            except TrimaranError as error:
                faulted = Faulted(str(error), faulted_terms=self._terms)
                return (faulted,) * len(group.completions_G)

    def _with_environment(self, verdict: Verdict, completion: Completion) -> Verdict:
        """With what the episode's environment rewards, as a term of its own. It may reward some episodes alone:
        without any reward an episode is worth 0."""
        if self._environment_weight is None or isinstance(verdict, Faulted):
            return verdict
        if completion.reward is None and verdict.terms:
            return verdict
        value = completion.reward or 0.0
        terms = {**verdict.terms, ENVIRONMENT_TERM: value}
        return replace(
            verdict, reward=verdict.reward + self._environment_weight * value, terms=terms
        )

    def _check_finite(self, verdict: Verdict) -> Verdict:
        """A reward that is not finite, or next to it, says nothing of its answer, and must not
        train. A part of a term that is so is left out."""
        terms = {name: x for name, x in verdict.terms.items() if abs(x) <= LARGEST_REWARD}
        broken = tuple(name for name in self._terms if name in verdict.terms.keys() - terms.keys())
        if isinstance(verdict, Faulted) or (abs(verdict.reward) <= LARGEST_REWARD and not broken):
            return replace(verdict, terms=terms) if len(terms) < len(verdict.terms) else verdict
        what = ", ".join(broken) or "the sum of its terms"
        fault = f"{what}: not finite or beyond {LARGEST_REWARD:g}; the reward is {verdict.reward:g}"
        return Faulted(fault, terms, broken or self._terms)
