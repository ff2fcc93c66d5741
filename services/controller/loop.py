"""The run, as a handful of coroutines.

                    _roll_out (one a slot)                     _train (one)                  _make_live
             ┌───────────────────────────────┐      ┌─────────────────────────────────┐ ┌──────────────────┐
    prompt ──▶ reserve ─▶ generate ─▶ score ─▶ put ─▶ take ─▶ prove ─▶ train ─▶ commit ─▶ publish ─▶ release ──┐
                ▲ ▲                                             │                  ▲                     │     │
                │ └────────── groups of unproven weights ◀──────┘                  └─ of the step before ┘     │
                └───────────────────────────── slots: the new weights are live ◀───────────────────────────────┘

    _roll_out    waits for a free slot, a replica with room, its completions, their scores, for the
                 end of a pause while too many answers cannot be scored, and for room in the quota
    _train       waits for a batch in prompt order, its proofs, the trainer, and before a commit until
                 the weights of the step before are live
    _make_live   waits for weight sync, and for a validation; of one step at a time

So a batch that is ready, as `run.max_lag` above 0 allows, trains while the weights before it are published.
The router follows which replicas are routable, also while nothing but a validation runs. Each
arrow is first written to the ledger. `_train` is the only loop that ends; it takes the others
with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from services.controller.buffer import Buffer
from services.controller.datasets import TrainingPrompts
from services.controller.episodes.maker import CompletionMaker
from services.controller.greedy import greedily
from services.controller.groups import PromptSkipped, sampling_seed
from services.controller.proofs import ProofCheck
from services.controller.reporting.group_spans import GroupLives
from services.controller.reporting.report import Reporter
from services.controller.reporting.step_metrics import describe_proofs
from services.controller.resuming.resume import open_groups
from services.controller.resuming.tainted import find_tainted
from services.controller.router import Router
from services.controller.saving import CheckpointSaver
from services.controller.scoring import Scorer, missing_signal
from services.controller.validation.validation import Validator
from trimaran.clients import TrainAnswer, TrainerClient, WeightSyncClient
from trimaran.config import RunConfig
from trimaran.data.prompts import UnusableImageError
from trimaran.errors import (
    DeadlineError,
    TrimaranError,
    UnavailableError,
    first_error,
)
from trimaran.ledger.ledger import RunLedger
from trimaran.ledger.records import (
    Committed,
    Consumed,
    Filtered,
    Generated,
    Issued,
    Reissue,
    Scored,
    Skipped,
    Timed,
)
from trimaran.ledger.retries import patiently
from trimaran.ledger.scores import rewards_of, terms_of
from trimaran.telemetry import scope, tracing
from trimaran.types import (
    PolicyVersion,
    Prompt,
    Proof,
    Sampling,
    ScoredGroup,
    TrainingBatch,
    VersionId,
    makers_of,
)
from trimaran.wire.messages import serialize_group, serialize_verdicts

logger = logging.getLogger(__name__)

T = TypeVar("T")

PUBLISH_MARGIN_SECONDS = 30.0
MAX_SKIPS_IN_A_ROW = 1000


@dataclass(slots=True)
class Loop:
    config: RunConfig
    prompts: TrainingPrompts
    ledger: RunLedger
    router: Router
    maker: CompletionMaker
    scorer: Scorer
    prover: ProofCheck
    trainer: TrainerClient
    weight_sync: WeightSyncClient
    validator: Validator | None
    reporter: Reporter
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set from outside: the run ends after the step under way; while it is held, at once."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set from outside besides: what nothing is trained of any more, a batch or a validation, is not waited for."""
    lives: GroupLives = field(default_factory=GroupLives)
    buffer: Buffer = field(init=False)
    saver: CheckpointSaver = field(init=False)
    reissues: dict[int, Reissue] = field(default_factory=dict)
    """Groups that wait in the buffer to be reissued, by number."""
    num_skips_in_a_row: int = 0
    num_nonfinite_in_a_row: int = 0
    """Steps, since this controller began."""
    num_faults: int = 0
    """How many of weight sync's faults were looked at since this controller began."""
    num_replaced: int = 0
    """Groups without a signal, since the last batch was consumed."""
    publishing: asyncio.Task[None] | None = None
    """The publication of the newest weights."""

    def __post_init__(self) -> None:
        self.saver = CheckpointSaver(self.config, self.ledger, self.trainer, self.reporter)

    async def run(self) -> None:
        """From the ledger's last committed step to the last step, or until it shall end. Checkpoints
        that were begun are written then, also where it fails."""
        await self._open_buffer()
        num_workers = (self.config.run.max_lag + 1) * self.config.run.groups_per_step
        try:
            async with asyncio.TaskGroup() as tasks:
                self.saver.take_up(tasks)
                helpers = [tasks.create_task(self._roll_out()) for _ in range(num_workers)]
                await self._train(tasks)
                for helper in helpers:
                    helper.cancel()
        except ExceptionGroup as errors:
            error = first_error(errors)
            await self.saver.ended_after(error)
            raise error from None
        finally:
            await self.saver.close()

    async def _open_buffer(self) -> None:
        """With the groups that the run's last controller left open."""
        run, state = self.config.run, self.ledger.state
        groups = await open_groups(self.ledger, self.config)
        self.reissues = dict(groups.reissued)
        self.buffer = Buffer(
            run.groups_per_step,
            run.max_lag,
            run.num_steps - state.step,
            state.next_number,
            [*groups.unissued, *groups.reissued],
            groups.reused,
        )

    async def _roll_out(self) -> None:
        """Prompts -> scored groups in the buffer."""
        while True:
            number = await self.buffer.reserve()
            with scope.about(group=number), tracing.in_group(number):
                scored = await self._make_group(number)
            if scored:
                await self.buffer.put(scored)
            else:
                await self.buffer.skip(number)

    async def _train(self, tasks: asyncio.TaskGroup) -> None:
        """Batches -> new weights. `tasks` make them live, and write checkpoints."""
        for step in range(self.ledger.state.step + 1, self.config.run.num_steps + 1):
            if self.ending.is_set():
                break
            taken = await self._next_batch()
            if not taken:
                break
            groups, proofs = taken
            batch = TrainingBatch(step, groups, self.config.run.num_steps)
            with self.lives.step(step, groups):
                await self.consume(batch, proofs)
                answer = await self.train(batch)
                self.publishing = tasks.create_task(self._make_live(batch, answer))
                if self._may_train_on(step):
                    continue
                await self._published()
            if step % self.config.run.checkpoint_every == 0:
                await self.saver.begin(tasks)
            if self.saver.is_nearly_full:
                await self.saver.make_room()
        await self._published()
        if not self.saver.is_saved:
            self.reporter.progress(f"writing the checkpoint of step {self.ledger.state.step}")

    async def _next_batch(self) -> tuple[tuple[ScoredGroup, ...], tuple[Proof, ...]] | None:
        """With its proofs; None when the run shall end. Its groups may wait for the room that a checkpoint of the
        step before makes."""
        while True:
            with self.reporter.phase("waiting"):
                taken = await self._unless_ended(self._take_proven())
            if not taken or self.cancelled.is_set():
                return None
            if taken[0]:
                return taken
            await self._published()
            await self.saver.make_room()

    def _may_train_on(self, step: int) -> bool:
        """Whether the next batch may train while the weights of `step` are published. Not where a checkpoint
        or a validation of them comes before it."""
        run, validation = self.config.run, self.config.validation
        validates = self.validator is not None and step % validation.every == 0
        # What is scored beside a publication and a step comes before the quota is looked at again.
        is_full = self.ledger.is_filled(0.5) or self.saver.is_nearly_full
        saves = step % run.checkpoint_every == 0 or is_full
        return run.max_lag > 0 and not validates and not saves

    async def _make_live(self, batch: TrainingBatch, answer: TrainAnswer) -> None:
        """New weights -> live weights, and free slots."""
        step, groups = batch.step, batch.groups
        with self.reporter.phase("syncing"), self.lives.publishing(groups):
            sync_metrics = await self.publish(answer.version)
        self.lives.committed(groups)
        self.router.cut_activities()
        self.report(batch, answer, sync_metrics)
        await self.reporter.written()
        if step == self.config.run.num_steps:  # before it is saved, as the others: for its score
            await self.validate(step, self.config.validation.final_samples)
        elif step % self.config.validation.every == 0:
            await self.validate(step, self.config.validation.samples)
        await self.buffer.release()

    async def _published(self) -> None:
        """Returns once the newest weights are live. What has trained from tainted ones is named here, where
        no batch is between its proofs and its record."""
        if self.publishing:
            await self.publishing
            self.publishing = None
            await self.name_tainted()

    async def _take_proven(self) -> tuple[tuple[ScoredGroup, ...], tuple[Proof, ...]]:
        """The next batch whose tokens are all proven; a group that is not is reissued before. Nothing where its
        groups wait for room."""
        while True:
            if not (groups := await self.buffer.take()):
                return (), ()
            proofs, unproven = await self.prover.prove(groups, lambda: self.router.live)
            if not unproven:
                return groups, proofs
            self.reissues |= {number: why.reissue for number, why in unproven.items()}
            await self.buffer.give_back(groups, unproven.keys())

    async def _make_group(self, number: int) -> ScoredGroup | None:
        """None when the prompt was skipped."""
        run, rollout, ledger = self.config.run, self.config.rollout, self.ledger
        entry = ledger.state.groups.get(number)
        first_attempt = entry.attempt + 1 if entry else 1
        try:
            prompt = await self.prompts.fetch(number)
        except UnusableImageError as error:
            ledger.record(Issued(number, first_attempt, error.prompt.prompt_id))
            self.lives.issued(number, first_attempt)
            self._record_skip(number, error.prompt, PromptSkipped(str(error)))
            return None
        seed = sampling_seed(run.seed, number)
        sampling = Sampling(rollout.temperature, rollout.max_tokens, rollout.group_size, seed)

        def on_issue(attempt: int, reissue: Reissue | None) -> None:
            ledger.record(Issued(number, attempt, prompt.prompt_id, reissue))
            self.lives.issued(number, attempt)

        try:
            async with greedily(self.config, self.maker, self.scorer, number, prompt) as greedy:
                with self.reporter.phase("generating"), tracing.span("generate"):
                    group = await self.maker.generate(
                        *(number, prompt, sampling, on_issue),
                        first_attempt=first_attempt,
                        reissue=self.reissues.pop(number, None),
                    )
                data = serialize_group(group)
                digest = hashlib.sha256(data)
                makers = _recorded(group.makers)
                ledger.record(Generated(number, group.attempt, digest.hexdigest(), makers))
                with self.reporter.phase("scoring"), tracing.span("score"):
                    scored = await self.scorer.score(group)
                if best := await greedy:
                    scored = replace(
                        scored, greedy_reward=best.reward, greedy_segments=best.segments
                    )
        except PromptSkipped as skip:
            self._record_skip(number, prompt, skip)
            return None
        if self._is_replaced(scored):
            return None
        verdicts = serialize_verdicts(scored)
        digest.update(verdicts)
        scored = replace(scored, payload=data + verdicts)
        await ledger.until_room(len(scored.payload), self.buffer.interrupt)
        payload = ledger.keep(scored.payload, digest.hexdigest())
        scores = rewards_of(scored.verdicts_G), terms_of(scored.verdicts_G)
        makers = _recorded(makers_of(scored.greedy_segments))
        ledger.record(Scored(number, group.attempt, payload, *scores, makers))
        await ledger.flush()
        self.lives.scored(number)
        self.num_skips_in_a_row = 0
        return scored

    def _is_replaced(self, scored: ScoredGroup) -> bool:
        """Whether another prompt's group takes the place of one without a signal. Bounded: where the
        policy has learned all of the data, further prompts are no better."""
        section, group = self.config.algorithm.dynamic_sampling, scored.group
        if section is None or not (missing := missing_signal(scored, section.term)):
            return False
        if self.num_replaced >= section.max_replaced * self.config.run.groups_per_step:
            return False
        reason = f"{missing} (algorithm.dynamic_sampling)"
        scores = rewards_of(scored.verdicts_G), terms_of(scored.verdicts_G)
        self.ledger.record(Filtered(group.number, group.attempt, reason, *scores))
        self.reporter.replaced()
        self.lives.skipped(group.number, reason)
        self.num_skips_in_a_row = 0  # it was generated and scored
        self.num_replaced += 1
        return True

    def _record_skip(self, number: int, prompt: Prompt, skip: PromptSkipped) -> None:
        end = Filtered if skip.filtered else Skipped
        self.ledger.record(end(number, self.ledger.state.groups[number].attempt, str(skip)))
        self.reporter.skipped(prompt, str(skip))
        self.lives.skipped(number, str(skip))
        self.num_skips_in_a_row += 1
        if self.num_skips_in_a_row >= min(len(self.prompts), MAX_SKIPS_IN_A_ROW):
            files = ", ".join(str(one.path) for one in self.config.data.train)
            raise TrimaranError(
                f"{self.num_skips_in_a_row} prompts of {files} in a row were"
                f" skipped, so nothing is left to train on; the last, {prompt.prompt_id}: {skip}"
            )

    async def consume(self, batch: TrainingBatch, proofs: Sequence[Proof]) -> None:
        """From here on the batch trains, also in a replay, with the proofs that it has now."""
        groups = tuple((scored.group.number, scored.group.attempt) for scored in batch.groups)
        self.ledger.record(Consumed(batch.step, groups, tuple(proofs)))
        self.num_replaced = 0
        await self.ledger.flush()

    async def leave_devices(self) -> None:
        """To the trainer, where the pools are colocated: the replicas sleep until `publish`. Nothing is
        generated then, at lag 0."""
        if not self.config.is_colocated:
            return
        sync = self.config.weight_sync
        # A replica that joins is read back, and so is the version.
        timeout = 2 * sync.prove_timeout + sync.commit_timeout + PUBLISH_MARGIN_SECONDS

        async def ask() -> None:
            try:
                await self.weight_sync.sleep_replicas(timeout)
            except DeadlineError as error:  # it is frozen: to us that is as good as away
                raise UnavailableError(str(error)) from None

        await patiently(ask, self.config.outage_timeout, "weight-sync")

    async def train(self, batch: TrainingBatch) -> TrainAnswer:
        """Train a consumed batch, and commit it once the weights before it are live: until then the
        trainer goes on holding those."""
        timeout, state = self.config.trainer.step_timeout, self.ledger.state
        lineage, proofs = state.lineage, state.steps[batch.step].proofs
        if self.publishing and not self.publishing.done():
            with self.reporter.training(batch.step):
                await self.trainer.train_ahead(batch, timeout, proofs)
            await self._published()
            with self.reporter.training(batch.step):
                answer = await self.trainer.make_version(batch.step, timeout, lineage)
        else:
            await self._published()
            with self.reporter.training(batch.step):
                await self.leave_devices()
                answer = await self.trainer.train_batch(batch, timeout, lineage, proofs)
        policy = answer.version
        self.ledger.record(Committed(policy.version, policy.root, answer.nonfinite))
        await self.ledger.flush()
        return answer

    async def train_pending(self, batch: TrainingBatch, held: PolicyVersion) -> TrainAnswer:
        """The batch that the controller before this one had consumed. `held`: what the trainer holds."""
        if self.config.run.max_lag and held.version.step < batch.step:
            await self.publish(held)  # it may be under way, and what the batch trains replaces it
        return await self.train(batch)

    def report(
        self, batch: TrainingBatch, answer: TrainAnswer, synced: Mapping[str, float]
    ) -> None:
        """The step's row, and its seconds for the summary of a run that may be resumed.

        Raises TrimaranError after too many steps in a row with numbers that are not finite.
        """
        proofs = self.ledger.state.steps[batch.step].proofs
        seconds = self.reporter.step(batch, answer, {**synced, **describe_proofs(batch, proofs)})
        self.ledger.record(Timed(batch.step, seconds))
        self.num_nonfinite_in_a_row = self.num_nonfinite_in_a_row + 1 if answer.nonfinite else 0
        if self.num_nonfinite_in_a_row >= self.config.trainer.max_nonfinite_steps:
            raise TrimaranError(
                f"{self.num_nonfinite_in_a_row} steps in a row had numbers that are not finite"
                f" (trainer.max_nonfinite_steps); the last, step {batch.step}: {answer.nonfinite}."
                " The weights are as before these updates. Fix the cause, then resume the run; where"
                " the cause is in the configuration, which a resumed run keeps, start a new one"
            )

    async def publish(self, version: PolicyVersion) -> dict[str, float]:
        """Returns weight sync's metrics once the version is live; waits for one that restarts."""
        sync = self.config.weight_sync
        # The senders answer, joiners and then the version before are read back, a replica joins, and where
        # no replica was proven yet one becomes routable.
        waits = 3 * sync.join_timeout + 3 * sync.prove_timeout
        timeout = waits + sync.stage_timeout + sync.commit_timeout + PUBLISH_MARGIN_SECONDS
        routing, metrics = await patiently(
            lambda: self.weight_sync.publish_version(version, timeout),
            self.config.outage_timeout,
            "weight-sync",
        )
        await self.router.update(routing)
        logger.info("version %s is live on %d replicas", version.version, len(routing.routable))
        return metrics

    async def name_tainted(self) -> None:
        """Record what has trained from weights in which weight sync has found a fault since."""
        known = max(self.num_faults, self.ledger.state.num_faults)

        async def ask() -> tuple[Proof, ...]:
            try:
                return await self.weight_sync.list_faults(known)
            except DeadlineError as error:  # it is frozen: to us that is as good as away
                raise UnavailableError(str(error)) from None

        faults = await patiently(ask, self.config.outage_timeout, "weight-sync")
        self.num_faults = known + len(faults)
        if not faults:
            return
        await self.ledger.flush()
        for record in await find_tainted(self.ledger, faults, self.num_faults):
            self.ledger.record(record)
            self.reporter.tainted(record)
        await self.ledger.flush()

    async def validate(self, step: int, num_samples: int) -> None:
        """On the live weights, before slots are freed: at lag 0 nothing else generates."""
        if self.validator:
            with self.reporter.validating(step) as so_far:
                validating = self.validator.validate(step, num_samples, so_far)
                validation = await self._unless_ended(validating)
            if validation:
                self.reporter.validation(step, validation)

    async def _unless_ended(self, work: Coroutine[Any, Any, T]) -> T | None:
        """None when the run is cancelled, or shall end while it is held: the work's groups may never be scored, or
        kept. A validation that is the whole run does not keep it from ending either."""

        async def ended() -> None:
            await self.ending.wait()
            if not self.config.validation.only:
                await _any_of(self.cancelled, self.scorer.paused, self.ledger.quota.short)

        working, ending = asyncio.ensure_future(work), asyncio.ensure_future(ended())
        tasks = (working, ending)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            await _end(tasks)


async def _any_of(*events: asyncio.Event) -> None:
    """Returns once one of them is set."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(tasks)


async def _end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _recorded(makers: Iterable[tuple[VersionId, str]]) -> tuple[tuple[str, str], ...]:
    """As the ledger's records name them."""
    return tuple(sorted((replica, str(version)) for version, replica in makers))
