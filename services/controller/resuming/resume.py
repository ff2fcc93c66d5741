"""From the ledger to where the run stood. Every run starts here, a new one with an empty ledger.

The trainer has loaded the checkpoint of step c; the ledger ends at step n. The batches c+1 … n are
trained again from their payloads, with the proofs that the ledger holds. After each step the root
of the weights is compared with the recorded one. Nothing is published before step n. A batch that
was consumed but not committed is trained as step n+1.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from services.controller.resuming.retraining import (
    DivergedError,
    describe_difference,
    load_batch,
    train_again,
)
from trimaran.clients import TrainAnswer, TrainerClient
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, OutOfOrderError
from trimaran.ledger.ledger import RunLedger
from trimaran.ledger.records import Began, Branched, Reissue, Replayed
from trimaran.ledger.state import OPEN, Stage
from trimaran.types import PolicyVersion, ScoredGroup, TrainingBatch
from trimaran.wire.messages import parse_scored_group

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
OnStep = Callable[[TrainingBatch, TrainAnswer], None]


@dataclass(frozen=True, slots=True)
class OpenGroups:
    """Groups that were issued and not consumed when the last controller ended."""

    reused: tuple[ScoredGroup, ...]
    reissued: dict[int, Reissue]
    unissued: tuple[int, ...] = ()
    """Numbers that the last controller had given out and not yet issued."""


class Resumed(NamedTuple):
    """Where a run goes on."""

    policy: PolicyVersion
    """At the last committed step."""
    pending: TrainingBatch | None
    """Consumed and not committed."""
    came_at: int
    """The step of the version that the trainer held before."""


async def replay(
    ledger: RunLedger,
    trainer: TrainerClient,
    config: RunConfig,
    on_step: OnStep = lambda batch, answer: None,
) -> Resumed:
    """`on_step` is called for each step that is trained again, and for one whose controller died before
    it reported it.

    Raises OutOfOrderError when trainer and ledger do not belong together, DivergedError when a
    deterministic run reaches another root.
    """
    policy = await _stand_of(trainer, config.trainer.step_timeout)
    if noted := await trainer.get_ledger_end(config.trainer.step_timeout):
        await ledger.check_anchor(noted, "the trainer's newest checkpoint")
    state, start, lineage = ledger.state, policy.version.step, ledger.state.lineage
    if state.began is None:
        _begin(ledger, policy)
    elif start > state.step + state.has_pending_batch:
        raise OutOfOrderError(
            f"the trainer stands at step {start}, but the ledger ends at step {state.step};"
            " they belong to different runs"
        )
    pending = None
    if state.has_pending_batch:
        pending = await load_batch(ledger.load, state.step + 1, state.steps[state.step + 1])
    if start > state.step:
        return Resumed(policy, pending, start)
    if policy.root != state.root_at(start):
        raise DivergedError(
            _difference("the trainer's checkpoint is not of this run", ledger, policy)
        )
    if start == state.step and start not in (0, *state.checkpoints):
        await _tell_again(ledger, trainer, config, start, on_step)
    for step in range(start + 1, state.step + 1):
        diverged = state.lineage != lineage
        batch, answer = await _train_again(ledger, trainer, config, step, diverged)
        on_step(batch, answer)
        policy = answer.version
    await ledger.flush()
    return Resumed(policy, pending, start)


async def _tell_again(
    ledger: RunLedger, trainer: TrainerClient, config: RunConfig, step: int, on_step: OnStep
) -> None:
    """The step that the trainer holds, where its controller died before it reported it: the trainer
    repeats its answer. One that was started again meanwhile has none."""
    if not ledger.state.steps[step].seconds:
        with suppress(OutOfOrderError):
            on_step(*await _train_again(ledger, trainer, config, step, diverged=False))


async def _stand_of(trainer: TrainerClient, timeout: float) -> PolicyVersion:
    """The trainer's version. The step that the last controller began may still be under way, and for
    a part of it there is no version: it is waited for, `timeout` seconds at most."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            policy, _ = await trainer.get_policy_version(timeout)
            return policy
        except OutOfOrderError as error:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"the trainer holds no version for {timeout:g} s (trainer.step_timeout): {error}"
                ) from None
            await asyncio.sleep(POLL_SECONDS)


async def open_groups(ledger: RunLedger, config: RunConfig) -> OpenGroups:
    """Which open groups are used as they are, and which are reissued.

    A scored group is used when its oldest token will be at most `run.max_lag` steps old as it
    trains. Any other open group is reissued.
    """
    state = ledger.state
    reused: list[ScoredGroup] = []
    reissued: dict[int, Reissue] = {}
    unissued = state.unissued
    for place, number in enumerate(sorted([*state.with_stage(*OPEN), *unissued])):
        if number in unissued:
            continue
        weights_step = state.step + place // config.run.groups_per_step
        scored = await _scored(ledger, number)
        if not scored:
            stage = state.groups[number].stage
            reissued[number] = Reissue(f"resumed: it was {stage} when the controller ended")
        elif weights_step - (oldest := _oldest_step(scored)) > config.run.max_lag:
            reissued[number] = Reissue(
                f"resumed: its tokens of step {oldest} would train on weights of step"
                f" {weights_step}, run.max_lag is {config.run.max_lag}"
            )
        else:
            reused.append(scored)
    return OpenGroups(tuple(reused), reissued, tuple(unissued))


def _begin(ledger: RunLedger, policy: PolicyVersion) -> None:
    version = policy.version
    if version.step:
        raise OutOfOrderError(
            f"the trainer stands at step {version.step}, but the run's ledger is empty;"
            " start a new run in a new folder"
        )
    ledger.record(Began(version, policy.root))


async def _train_again(
    ledger: RunLedger, trainer: TrainerClient, config: RunConfig, step: int, diverged: bool
) -> tuple[TrainingBatch, TrainAnswer]:
    """`diverged`: an earlier step of this replay has already opened a new lineage."""
    timeout, state = config.trainer.step_timeout, ledger.state
    entry = state.steps[step]
    again = await train_again(ledger.load, trainer, step, entry, state.lineage, timeout)
    answer = again.answer
    if not again.is_same and not diverged:
        difference = _difference(
            "the replay does not reach its recorded weights", ledger, answer.version
        )
        if config.run.deterministic:
            raise DivergedError(difference)
        logger.warning("%s; lineage %d opens", difference, state.lineage + 1)
        ledger.record(Branched(step, state.lineage + 1))
        # The same step again is the same answer, now as a version of the new lineage.
        answer = await trainer.train_batch(again.batch, timeout, state.lineage, entry.proofs)
        diverged = True
    if diverged:
        reached = answer.version
        ledger.record(Replayed(reached.version, reached.root, answer.nonfinite))
    return again.batch, answer


def _difference(what: str, ledger: RunLedger, policy: PolicyVersion) -> str:
    step = policy.version.step
    return f"{what}: {describe_difference(step, policy.root, ledger.state.root_at(step))}"


async def _scored(ledger: RunLedger, number: int) -> ScoredGroup | None:
    entry = ledger.state.groups[number]
    if entry.stage is not Stage.SCORED:
        return None
    return parse_scored_group(await ledger.load(entry.payload))


def _oldest_step(scored: ScoredGroup) -> int:
    return min(version.step for version, _ in scored.group.makers)
