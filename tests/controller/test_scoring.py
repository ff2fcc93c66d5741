"""Groups through the gate for faulted answers, on a clock that jumps."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.controller.faulted import FaultedGate, PausedTooLongError, Window, half_is_scored
from services.controller.groups import PromptSkipped
from services.controller.scoring import MARGIN_SECONDS, RESPAWN_SECONDS, Scorer, score_timeout
from tests.controller.fakes import PROMPTS, make_config
from tests.controller.virtual_time import now, run_virtually
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, InternalError
from trimaran.types import Completion, Faulted, Group, Score, ScoredGroup, Verdict

Answer = Callable[[Group], Sequence[Verdict]]
CALL_SECONDS = 0.125
DOWN = Faulted("gsm8k: the plugin is away")


def make_group(number: int, size: int = 8) -> Group:
    return Group(number, 1, PROMPTS[0], (1,), (Completion((1,), (0.0,), "", "stop", ()),) * size)


def mixed(num_faulted: int, size: int = 8, fault: Faulted = DOWN) -> tuple[Verdict, ...]:
    return (fault,) * num_faulted + (Score(1.0),) * (size - num_faulted)


def well(group: Group) -> tuple[Verdict, ...]:
    return mixed(0, len(group.completions_G))


def down(group: Group) -> tuple[Verdict, ...]:
    return mixed(len(group.completions_G), len(group.completions_G))


class Bench:
    """A scorer over a reward client that answers as it is asked, and records its calls."""

    def __init__(self, answer: Answer, config: RunConfig | None = None) -> None:
        self.answer = answer
        self.calls: list[tuple[float, int]] = []
        """When, and which group."""
        self.reported: list[tuple[float, str, str]] = []
        self.num_under_way = self.most_in_pause = 0
        config = config or configure()
        self.gate = FaultedGate(
            config,
            lambda text, values: self.reported.append((now(), "paused", text)),
            lambda text, values: self.reported.append((now(), "unpaused", text)),
        )
        client: Any = self
        self.scorer = Scorer(client, self.gate, config)

    async def score_group(self, group: Group, timeout: float) -> tuple[Verdict, ...]:
        self.calls.append((now(), group.number))
        self.num_under_way += 1
        if self.gate.paused.is_set():
            self.most_in_pause = max(self.most_in_pause, self.num_under_way)
        try:
            await asyncio.sleep(CALL_SECONDS)
            return tuple(self.answer(group))
        finally:
            self.num_under_way -= 1

    async def score(self, group: Group) -> ScoredGroup | str:
        """Or why it was skipped."""
        try:
            scored = await self.scorer.score(group)
        except PromptSkipped as skip:
            assert skip.filtered
            return str(skip)
        assert half_is_scored(scored.verdicts_G)
        assert not self.gate.paused.is_set(), "a group passed in a pause"
        return scored

    async def score_all(self, groups: Sequence[Group]) -> list[ScoredGroup | str]:
        """All at the same time."""
        async with asyncio.TaskGroup() as tasks:
            scoring = [tasks.create_task(self.score(group)) for group in groups]
        return [task.result() for task in scoring]

    @property
    def kinds(self) -> list[str]:
        return [kind for _, kind, _ in self.reported]


def configure(**reward: Any) -> RunConfig:
    run = {"groups_per_step": 8, "max_attempts": 3}
    return make_config(run=run, rollout={"group_size": 8}, reward=reward)


@pytest.mark.parametrize(("num_faulted", "passes"), [(0, True), (4, True), (5, False)])
def test_half_of_the_group_is_enough(num_faulted: int, passes: bool) -> None:
    bench = Bench(lambda group: mixed(num_faulted))
    came = run_virtually(bench.score(make_group(1)))
    assert isinstance(came, ScoredGroup) == passes
    assert len(bench.calls) == (1 if passes else 3)
    if not passes:
        assert came == ("5 of 8 completions faulted, 3 times; the last: gsm8k: the plugin is away")


def test_a_group_is_scored_again_after_growing_waits() -> None:
    bench = Bench(down, make_config(run={"max_attempts": 8}))
    run_virtually(bench.score(make_group(1)))
    times = [time for time, _ in bench.calls]
    waits = [b - a - CALL_SECONDS for a, b in pairwise(times)]
    for wait, longest in zip(waits, [1, 2, 4, 8, 16, 30, 30], strict=True):
        assert longest / 2 <= wait <= longest


def test_a_call_that_fails_leaves_all_terms_faulted() -> None:
    def fail(group: Group) -> Sequence[Verdict]:
        raise InternalError("KeyError: 'x'")

    bench = Bench(fail)
    came = run_virtually(bench.score(make_group(1, size=2)))
    assert came == "2 of 2 completions faulted, 3 times; the last: KeyError: 'x'"
    faulted = Faulted("KeyError: 'x'", faulted_terms=("exact_match",))
    assert bench.gate._window.answers == [faulted, faulted]


def test_a_frozen_service_is_no_fault_of_the_group() -> None:
    def freeze(group: Group) -> Sequence[Verdict]:
        raise DeadlineError("ScoreGroup: no answer within 1 s")

    bench = Bench(freeze)
    with pytest.raises(DeadlineError, match="ScoreGroup"):
        run_virtually(bench.score(make_group(1)))
    assert len(bench.calls) == 3
    assert not bench.reported


@pytest.mark.parametrize(
    ("shares", "beyond"),
    [
        ([8, 0, 0, 0], False),  # one group alone, whatever its share
        ([3, 3, 0, 0], False),  # 6 / 32 = 0.1875
        ([4, 3, 0, 0], True),  # 7 / 32 = 0.21875
        ([8], False),
        ([8, 8], True),  # 16 answers are enough to judge
    ],
)
def test_more_than_the_limit_of_more_than_one_group(shares: list[int], beyond: bool) -> None:
    window = Window(64, 16)
    for number, num_faulted in enumerate(shares):
        window.add(make_group(number), mixed(num_faulted))
    assert window.is_beyond(0.2) == beyond


def test_an_outage_pauses_once_and_costs_no_group() -> None:
    bench = Bench(lambda group: down(group) if now() < 200 else well(group))
    groups = [make_group(number) for number in range(8)]
    came = run_virtually(bench.score_all(groups))
    assert all(isinstance(each, ScoredGroup) for each in came)
    assert bench.kinds == ["paused", "unpaused"]
    assert bench.most_in_pause == 1
    (began, _, text), (ended, _, _) = bench.reported
    for part in (
        "16 of the last 16 answers",
        "100%",
        "max_faulted_share is 20%",
        "plugin is away",
    ):
        assert part in text
    assert 200 <= ended <= 200 + 30 + CALL_SECONDS
    probes = [call for call in bench.calls if began + CALL_SECONDS < call[0] < ended]
    gaps = [b[0] - a[0] - CALL_SECONDS for a, b in pairwise(probes)]
    assert all(gap <= 30 for gap in gaps), gaps
    assert max(gaps) >= 15
    numbers = [number for _, number in probes]
    # They probe in turn; the one that had failed before the pause joins them a little later.
    assert set(numbers[:9]) == set(range(8))
    assert len(probes) <= 20


def test_a_pause_that_lasts_too_long_fails_the_run_with_its_reason() -> None:
    bench = Bench(down, configure(pause_timeout=600))

    async def body() -> float:
        with pytest.raises(ExceptionGroup) as caught:
            await bench.score_all([make_group(number) for number in range(4)])
        (error,) = caught.value.exceptions
        assert isinstance(error, PausedTooLongError)
        for part in ("paused for 600 s (reward.pause_timeout)", "the plugin is away", "resume"):
            assert part in str(error)
        return now()

    ended = run_virtually(body())
    assert ended == pytest.approx(bench.reported[0][0] + 600)
    assert bench.kinds == ["paused"]


@settings(max_examples=150, deadline=None)
@given(
    phases=st.lists(
        st.tuples(st.floats(1, 400), st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0])), max_size=6
    ),
    size=st.sampled_from([2, 3, 8, 16]),
    hopeless=st.sets(st.integers(1, 40)),
    num_groups=st.integers(1, 40),
    num_workers=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_every_group_ends_once_the_faults_do(
    phases: list[tuple[float, float]],
    size: int,
    hopeless: set[int],
    num_groups: int,
    num_workers: int,
    seed: int,
) -> None:
    """The shares of `phases` one after the other, then none; `hopeless` groups are never scored."""
    dice = random.Random(seed)

    def answer(group: Group) -> Sequence[Verdict]:
        end, share = 2 * CALL_SECONDS, 0.0
        for seconds, here in phases:
            if end <= now() < end + seconds:
                share = here
            end += seconds
        if group.number in hopeless:
            share = 1.0
        return tuple(DOWN if dice.random() < share else Score(1.0) for _ in group.completions_G)

    bench = Bench(answer, make_config(run={"groups_per_step": 4}, rollout={"group_size": size}))

    async def body() -> float:
        came = {0: await bench.score(make_group(0, size))}
        numbers = iter(range(1, num_groups))

        async def work() -> None:
            for number in numbers:
                came[number] = await bench.score(make_group(number, size))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(num_workers):
                tasks.create_task(work())
        assert sorted(came) == list(range(num_groups))
        for number in hopeless & came.keys():
            assert isinstance(came[number], str)
        return now()

    seconds = run_virtually(body())
    assert seconds < sum(duration for duration, _ in phases) + 60 * (1 + num_groups)
    assert bench.kinds == ["paused", "unpaused"] * (len(bench.kinds) // 2)


def test_the_deadline_covers_every_hung_answer_and_the_slowest_plugin() -> None:
    run = {"groups_per_step": 4, "max_lag": 1}  # 8 groups at a time
    validation = {"samples": 4, "final_samples": 16}
    functions = {"rules": {"exact_match": 1, "last_integer": 1}, "workers": 4, "timeout": 10}
    config = make_config(
        run=run, rollout={"group_size": 8}, validation=validation, reward=functions
    )
    # 8 groups of 16 answers, 2 functions, 4 workers: 64 turns of two tries
    assert score_timeout(config) == MARGIN_SECONDS + 64 * 2 * (10 + RESPAWN_SECONDS)
    plugin = {"url": "http://h:1", "timeout": 30, "batch_size": 10, "max_concurrency": 3}
    config = make_config(
        run=run,
        rollout={"group_size": 8},
        validation=validation,
        reward={"rules": {"style": {"plugin": plugin}}},
    )
    # two calls for each of 8 groups, 3 at a time: 6 turns
    assert score_timeout(config) == MARGIN_SECONDS + 6 * 30


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e200])
def test_a_reward_that_is_not_finite_never_trains(reward: float) -> None:
    """It judges nothing: the completion is faulted, for a reason that names the term."""
    broken = Score(reward, {"gsm8k": 1.0, "style": reward})
    bench = Bench(lambda group: (broken, *mixed(0, 7)), configure(rules={"gsm8k": 1, "style": 1}))
    scored = run_virtually(bench.score(make_group(1)))
    assert isinstance(scored, ScoredGroup)
    fault = f"style: not finite or beyond 1e+30; the reward is {reward:g}"
    assert scored.verdicts_G[0] == Faulted(fault, {"gsm8k": 1.0}, ("style",))
    assert scored.verdicts_G[1:] == mixed(0, 7)


def test_a_part_whose_mean_would_overflow_is_left_out() -> None:
    """It is no fault of the answer, and the row of the step takes the mean of each part."""
    parts = {"gsm8k": 1.0, "gsm8k.length": 1.5e308}
    bench = Bench(lambda group: (Score(1.0, parts), *mixed(0, 7)), configure(rules={"gsm8k": 1}))
    scored = run_virtually(bench.score(make_group(1)))
    assert isinstance(scored, ScoredGroup)
    assert scored.verdicts_G[0] == Score(1.0, {"gsm8k": 1.0})
