"""The pool with real processes: what hangs, crashes or raises, beside what does not."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from services.reward import rules
from services.reward.pool import RulePool
from services.reward.rules import Rule
from trimaran.types import (
    Completion,
    Group,
    Message,
    Origin,
    Prompt,
    Score,
    Segment,
    Unscored,
    Verdict,
    VersionId,
)

WORKER = (sys.executable, "-m", "tests.reward.unruly_worker")
SECONDS = 2.0
RIGHT, WRONG = Score(1.0, {"unruly": 1.0}), Score(0.0, {"unruly": 0.0})
UNSCOREABLE = Score(0.0, {"unruly": 0.0}, unscoreable=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture(autouse=True)
def unruly_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool looks up the bounds of the rules that its stand-in workers run."""
    stand_ins = {"unruly": Rule(lambda *_: 0.0), "penalty": Rule(lambda *_: 0.0)}
    monkeypatch.setattr(rules, "RULES", {**rules.RULES, **stand_ins})


def group(texts: list[str], log: Path) -> Group:
    segment = Segment(0, 1, VersionId(0, 0), Origin.GENERATED, "rollout-0")
    completions = [Completion((1,), (-0.5,), text, "stop", (segment,)) for text in texts]
    prompt = Prompt("t:1", (Message("user", "?"),), "t", "right", {"log": str(log)})
    return Group(0, 0, prompt, (1,), tuple(completions))


def score(
    texts: list[str], log: Path, weights: dict[str, float] | None = None, num_workers: int = 2
) -> tuple[Verdict, ...]:
    async def run() -> tuple[Verdict, ...]:
        pool = RulePool(weights or {"unruly": 1.0}, num_workers, SECONDS, WORKER)
        await pool.start()
        try:
            return await pool.score_group(group(texts, log))
        finally:
            await pool.close()

    return asyncio.run(run())


def runs(log: Path, text: str) -> list[int]:
    """The process of each time that the rule met this answer."""
    lines = [line.rsplit(" ", 1) for line in log.read_text().splitlines()]
    return [int(pid) for seen, pid in lines if seen == text]


def test_verdicts_stand_in_completion_order(log: Path) -> None:
    texts = ["right", "wrong", "right", "wrong", "wrong", "right"]
    assert score(texts, log) == (RIGHT, WRONG, RIGHT, WRONG, WRONG, RIGHT)


def test_an_answer_that_hangs_the_checker_twice_gets_the_minimum_and_holds_up_nobody(
    log: Path,
) -> None:
    texts = ["right", "hang", "wrong", "right", "right"]
    assert score(texts, log) == (RIGHT, UNSCOREABLE, WRONG, RIGHT, RIGHT)
    first, second = runs(log, "hang")
    assert first != second  # the second time in a fresh process


def test_an_answer_on_which_the_checker_raises_twice_gets_the_minimum(log: Path) -> None:
    assert score(["raise", "right"], log) == (UNSCOREABLE, RIGHT)
    first, second = runs(log, "raise")
    assert first != second


def test_a_value_outside_the_rules_bounds_is_no_value(log: Path) -> None:
    assert score(["beyond"], log) == (UNSCOREABLE,)


def test_hanging_the_checker_does_not_escape_a_penalty(log: Path) -> None:
    weights = {"unruly": 1.0, "penalty": -0.5}
    worst = Score(-0.5, {"unruly": 0.0, "penalty": 1.0}, unscoreable=True)
    assert score(["hang"], log, weights) == (worst,)


def test_a_worker_that_dies_twice_leaves_the_answer_unscored(log: Path) -> None:
    verdicts = score(["crash", "right"], log)
    assert isinstance(verdicts[0], Unscored)
    assert "exit code 9" in verdicts[0].fault
    assert verdicts[1] == RIGHT
    assert len(runs(log, "crash")) == 2


@pytest.mark.parametrize("text", ["crash once", "hang once"])
def test_a_failure_that_does_not_come_again_costs_nothing(log: Path, text: str) -> None:
    assert score([text], log) == (WRONG,)


def test_one_worker_is_replaced_and_goes_on(log: Path) -> None:
    texts = ["crash", "right", "raise", "right"]
    crashed, first, raised, second = score(texts, log, num_workers=1)
    assert isinstance(crashed, Unscored)
    assert (first, raised, second) == (RIGHT, UNSCOREABLE, RIGHT)


def test_a_caller_that_gives_up_leaves_no_worker_with_an_old_answer(log: Path) -> None:
    async def run() -> tuple[Verdict, ...]:
        pool = RulePool({"unruly": 1.0}, 1, 60, WORKER)
        await pool.start()
        try:
            abandoned = asyncio.create_task(pool.score_group(group(["hang"], log)))
            while not log.exists():
                await asyncio.sleep(0.01)
            abandoned.cancel()
            await asyncio.gather(abandoned, return_exceptions=True)
            return await pool.score_group(group(["right"], log))
        finally:
            await pool.close()

    assert asyncio.run(run()) == (RIGHT,)


def test_workers_that_do_not_start_are_a_fault(log: Path) -> None:
    async def run() -> tuple[Verdict, ...]:
        pool = RulePool({"unruly": 1.0}, 1, SECONDS, (sys.executable, "-c", "pass"))
        try:
            return await pool.score_group(group(["right"], log))
        finally:
            await pool.close()

    (verdict,) = asyncio.run(run())
    assert isinstance(verdict, Unscored)
    assert "did not start" in verdict.fault
