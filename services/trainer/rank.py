"""One trainer rank: its policy, its step, what it answered, and the snapshot of its own shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from services.trainer.checkpoints.checkpoint import RankLayout, TrainedModel, TrainerState
from services.trainer.checkpoints.checkpoints import (
    LoadedCheckpoint,
    load_other,
    open_checkpoints,
    shared_folder,
)
from services.trainer.checkpoints.common_place import CommonPlace
from services.trainer.checkpoints.exporting import (
    Exportable,
    find_target,
    join_export,
    push_export,
    write_export,
)
from services.trainer.checkpoints.part_saver import PartSaver
from services.trainer.computation import Computation, Movable
from services.trainer.exchange.held import HeldShard, ShardedWeights
from services.trainer.exchange.host_copy import HostCopy
from services.trainer.exchange.provenance import check_proofs
from services.trainer.exchange.shared_batch import share_batch
from services.trainer.step.chosen_experts import check_experts
from services.trainer.step.learner import Policy, StepResult, train_step
from trimaran.clients import TrainAnswer
from trimaran.config import RunConfig
from trimaran.errors import InputError, InternalError, OutOfOrderError, UnavailableError
from trimaran.host.places import FolderPlace
from trimaran.model.folder import read_model_folder
from trimaran.model.tensor_names import is_adapter
from trimaran.run.context import RunContext
from trimaran.run.device_turns import trainer_turn
from trimaran.run.place import KEY, bucket_of
from trimaran.types import (
    Manifest,
    Offer,
    Peer,
    PolicyVersion,
    Proof,
    TrainingBatch,
    VersionId,
)
from trimaran.wire import health_note
from weights.sending.snapshot import Snapshot

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class ExportablePolicy(Policy, ShardedWeights, Exportable, Movable, Protocol):
    """What a rank needs of its policy beyond the learner. Between `put_away` and `bring_back` only `state` is
    asked."""

    @property
    def num_updates(self) -> int:
        """Updates of the optimizer since the run began."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds of this rank, by name."""
        ...

    def load_state(self, state: Mapping[str, torch.Tensor], num_updates: int) -> None:
        """What `state` gave after so many updates."""
        ...


class TrainerRank:
    """Makes a step's new weights, answers with their version, and offers them to weight sync.

    Example:
        rank = TrainerRank(config, run, rank=0)
        await rank.start(lambda: build_policy(config, run.folder, device, 0))
        answer = await rank.train(batch)
        await rank.close()
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunContext,
        rank: int,
        hold: Callable[[Snapshot | None], None] = lambda snapshot: None,
    ) -> None:
        """`hold` gets each snapshot once it is whole, and None before it is overwritten."""
        self.rank = rank
        self._hold = hold
        self._config = config
        self._run_id, self._folder = run.run_id, shared_folder(config, run)
        self._place = bucket_of(config, run.run_id)
        self._checkpoints = open_checkpoints(config, run, self._place)
        files = map(config.trainer.checkpoint_file, range(config.num_trainer_ranks))
        writers = [one for one, file in enumerate(files) if file is not None]
        self._common_place = CommonPlace(
            self._place or FolderPlace(self._folder, KEY), rank, writers
        )
        self.exports = config.trainer.layout.place(rank).sends
        """The others hold the same weights as one that does."""
        self._computation = Computation(
            rank, trainer_turn(config, run, rank), config.trainer.step_timeout
        )
        self.fail, self.until_failed = self._computation.fail, self._computation.until_failed
        self.saver = PartSaver(config, rank, self._checkpoints, self._copy)
        self._policy: ExportablePolicy
        self._model: TrainedModel
        self._held: HeldShard | None = None
        """None on a rank that does not export."""
        self._root = ""
        """The root of the step that is done, also while its snapshot is being replaced."""
        self._step = 0
        self._lineage = 0
        self._done = StepResult({})
        """The result of that step. Checkpoints have it without loads of experts: a controller has written these
        before it saves the step."""
        self._training: tuple[int, asyncio.Task[TrainAnswer | None]] | None = None
        self._ahead: StepResult | None = None
        """The next step's: its weights are made, and those of the step before are still the held version."""
        # A save begins with the weights that a step would change.
        self._weights = asyncio.Lock()
        self._exporting = asyncio.Lock()
        """An export goes on without its caller, which may ask again meanwhile."""

    async def start(self, build: Callable[[], ExportablePolicy]) -> None:
        """Build the policy, load the newest checkpoint if there is one, take the snapshot.

        Raises DeadlineError where the rollout has the device for longer than `start_timeout`.
        """
        await self._computation.start(lambda: self._start(build), self._config.start_timeout)

    async def close(self) -> None:
        self._computation.close()
        self.saver.close()

    @property
    def version(self) -> PolicyVersion:
        root = self._held.root if self._held else ""
        version = VersionId(self._lineage, self._step)
        return PolicyVersion(self._run_id, version, root)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the whole version. Raises OutOfOrderError while the next one is being made."""
        return self._own_shard.snapshot.manifest

    def offer(self, peer: Peer) -> tuple[PolicyVersion, Offer]:
        """What this rank can send through its door `peer`."""
        return self.version, self._own_shard.offer(peer)

    def check_batch(
        self,
        batch: TrainingBatch,
        proofs: Iterable[Proof],
        recorded_roots: Callable[[VersionId], frozenset[str]],
    ) -> None:
        """Raises InputError for one that cannot train, and UnprovenError for tokens that must not.

        Ask rank 0, before any rank hears of the batch."""
        want = self._config.run.groups_per_step
        if len(batch.groups) != want:
            raise InputError(f"step {batch.step} has {len(batch.groups)} groups; {want} are needed")
        if self._config.trainer.router.replay:
            check_experts(batch.groups, self._model.facts)
        check_proofs(batch, proofs, recorded_roots, self._config.run.proof)

    def check_ahead(self, step: int) -> None:
        """Raises OutOfOrderError for a step that was not trained ahead here. Ask rank 0, as `check_batch`."""
        if self.begins(step):
            raise OutOfOrderError(f"step {step} was not trained ahead here; train it")

    @property
    def _is_under_way(self) -> bool:
        """The next step: it trains, or was trained ahead."""
        return self._training is not None or self._ahead is not None

    def begins(self, step: int) -> bool:
        """Whether `train` would compute the step, in which all ranks then take part; else it is
        done or under way. Raises OutOfOrderError for any other."""
        under_way = self._is_under_way
        if under_way and step == self._step + 1:
            return False
        if step == self._step and self._done.metrics:
            return False
        if step != self._step + 1 or under_way:
            state = f"step {self._step + 1} is under way" if under_way else "none is under way"
            raise OutOfOrderError(
                f"step {step}: the trainer holds step {self._step} and {state};"
                f" send step {self._step + 1}"
            )
        return True

    async def agree(self, step: int) -> None:
        """On other ranks, before all begin a step. Waits for the step before it, which may have ended on
        rank 0 alone so far. Raises OutOfOrderError where this rank would not take part."""
        if self._training is not None and self._training[0] == step - 1:
            await asyncio.wait([self._training[1]])
        if not self.begins(step) and self._training is None:
            raise OutOfOrderError(f"step {step}: trainer rank {self.rank} has it already")

    async def train(self, batch: TrainingBatch, lineage: int = 0) -> TrainAnswer:
        """The next step runs; the same step answers again; any other raises OutOfOrderError.

        The answer is a version of `lineage`; a repeated step may so move to a newer one. On other ranks than
        0 the batch has no groups: rank 0 shares its own.

        A caller that goes away does not stop a step under way: a repeated call joins it.
        """
        while self._training is not None and self._training[0] == batch.step:
            if answer := await asyncio.shield(self._training[1]):
                return answer  # else it was trained ahead
        if (self._ahead and batch.step == self._step + 1) or self.begins(batch.step):
            task = asyncio.create_task(self._train(batch, lineage))
            self._training = (batch.step, task)
            return await asyncio.shield(task)
        self._lineage = max(self._lineage, lineage)
        return self._answer()

    async def train_ahead(self, batch: TrainingBatch) -> None:
        """As `train`, but that the version before stays the held one, and can be sent, until `train` is
        called for this step: that alone replaces its snapshot."""
        if self.begins(batch.step):
            self._training = (batch.step, asyncio.create_task(self._train_ahead(batch)))
        if self._training is not None and self._training[0] == batch.step:
            await asyncio.shield(self._training[1])

    async def make_version(self, step: int, lineage: int = 0) -> TrainAnswer:
        """As `train`, of the step that was trained ahead."""
        return await self.train(TrainingBatch(step, ()), lineage)

    def check_save(self, step: int) -> None:
        """Ask rank 0, before any rank hears of it. Raises OutOfOrderError for another step than the
        current one, and UnavailableError while the write of an earlier checkpoint hangs."""
        if step != self._step or self._is_under_way:
            beyond = f", and step {self._step + 1} is under way" if self._is_under_way else ""
            raise OutOfOrderError(
                f"checkpoint of step {step}: the trainer is at {self._step}{beyond}"
            )
        self.saver.check(step)

    def check_export(self, path: str) -> Path:
        """The target. Ask rank 0, which writes, before any rank hears of it: a rank that refused alone
        would leave the others waiting for its part of the weights.

        Raises UnavailableError where the model does not fit on the disk."""
        if self._is_under_way:
            raise OutOfOrderError(
                f"step {self._step + 1} is under way; export the model when it is done"
            )
        return find_target(self._folder, path, self.manifest.tensors)

    async def export_model(self, target: Path) -> str:
        """Every rank takes part; rank 0 writes a Hugging Face folder with the weights of `version`,
        and pushes it where `run.checkpoints` is a bucket. Where it lies."""
        # Shielded: a caller that goes away must not leave the device half taken.
        await asyncio.shield(asyncio.create_task(self._export_in_turn(target)))
        if self.rank or self._place is None:
            return str(target)
        return await asyncio.to_thread(push_export, self._place, self._folder, target, self._config)

    async def _export_in_turn(self, target: Path) -> None:
        async with self._exporting, self._computation.turn(self._policy):
            await self._computation.run(lambda: self._export(target))

    def _export(self, target: Path) -> None:
        if self.rank == 0:
            facts = self._model.facts
            tensors = [one for one in self.manifest.tensors if not is_adapter(one.name)]
            write_export(self._policy, self._config, facts, tensors, target)
        elif self.exports:
            join_export(self._policy, self._config)

    async def send(self, version: VersionId, send: Callable[[Snapshot], Result]) -> Result:
        """Run `send(snapshot)` beside the computation; the snapshot stays whole meanwhile."""
        held, shard = self.version, self._own_shard
        if version != held.version:
            raise OutOfOrderError(f"weights of {version}: the trainer holds {held.version}")

        def work() -> Result:
            # In the thread: a caller that goes away does not end the send.
            with shard.sending(held.root) as snapshot:
                return send(snapshot)

        return await asyncio.to_thread(work)

    async def _copy(self, step: int) -> tuple[TrainerState, HostCopy]:
        self.check_save(step)
        async with self._weights:
            copies = HostCopy({})
            if self.saver.writes:
                copies = await self._computation.run(lambda: HostCopy(self._policy.state()))
                if self._computation.shares_device:  # between turns the state moves
                    await self._computation.run(copies.detach)
            return self._describe_state(), copies

    def _describe_state(self) -> TrainerState:
        return TrainerState(
            step=self._step,
            lineage=self._lineage,
            num_updates=self._policy.num_updates,
            root=self.version.root,
            metrics=self._done.metrics,
            nonfinite=self._done.nonfinite,
            layout=self._layout,
            model=self._model,
            shards=(),
        )

    async def _train(self, batch: TrainingBatch, lineage: int) -> TrainAnswer:
        result, snapshot = await self._take_step(batch.step, lambda: self._compute_step(batch))
        self._step, self._done, self._ahead = batch.step, result, None
        self._adopt(snapshot)
        self._lineage = max(self._lineage, lineage)
        return self._answer()

    async def _train_ahead(self, batch: TrainingBatch) -> None:
        self._ahead = await self._take_step(batch.step, lambda: self._compute_weights(batch))

    async def _take_step(self, step: int, compute: Callable[[], Result]) -> Result:
        """What `compute` makes, on this rank's device."""
        try:
            async with self._weights, self._computation.turn(self._policy):
                try:
                    await self._computation.run(self.saver.detach)
                    return await self._computation.run(compute)
                except Exception as error:
                    self.fail(
                        f"step {step} failed: {error}"
                    )  # at once: nothing is put away after it
                    raise
        except Exception as error:
            self.fail(f"step {step} failed: {error}")
            raise
        finally:
            self._training = None

    def _compute_step(self, batch: TrainingBatch) -> tuple[StepResult, Snapshot | None]:
        result = self._ahead or self._compute_weights(batch)
        return result, self._take_snapshot()

    def _compute_weights(self, batch: TrainingBatch) -> StepResult:
        if self._config.num_trainer_ranks > 1:
            batch = share_batch(batch, self._policy.device)
        return train_step(self._policy, batch, self._config, self._done.metrics)

    def _answer(self) -> TrainAnswer:
        version, done = replace(self.version, root=self._root), self._done
        return TrainAnswer(version, dict(done.metrics), done.nonfinite)

    def _take_snapshot(self) -> Snapshot | None:
        return self._held.take() if self._held else None

    def _adopt(self, snapshot: Snapshot | None) -> None:
        if self._held and snapshot:
            self._held.adopt(snapshot)
            self._root = snapshot.manifest.root

    def _start(self, build: Callable[[], ExportablePolicy]) -> ExportablePolicy:
        if self.rank == 0:
            # The others look for a checkpoint once they have met this rank, in `build`.
            self._checkpoints.tidy()
        path = self._config.model.path
        self._model = TrainedModel(path.name, read_model_folder(path))
        self._policy = build()
        with self._among_the_others():
            self._common_place.check(self._policy.any_rank)
        logger.info("rank %d reads the model in %s and %s", self.rank, path, self._common_place)
        if self.exports:
            keep_delta = self._config.weight_sync.delta or self._config.trainer.sends_adapters
            self._held = HeldShard(self._policy, self._hold, keep_delta)
        lora = self._config.trainer.lora
        health_note.own.say("looks for a checkpoint and loads it")
        loaded = self._checkpoints.load(self._layout, self._model, self.rank, lora)
        if loaded:
            state = loaded.state
            self._policy.load_state(loaded.shard, state.num_updates)
            self._step, self._lineage = state.step, state.lineage
            self._done = StepResult(dict(state.metrics), state.nonfinite)
            self.saver.saved, self.saver.ledger = (state.step, loaded.place), state.ledger
            logger.info("continuing from %s", loaded.place)
        other = None
        if not loaded and self._config.trainer.load is not None:
            other = self._begin_with(self._config.trainer.load)
        health_note.own.say("makes the first snapshot of its weights")
        with self._among_the_others():
            self._adopt(self._take_snapshot())
        if loaded and self._held and self._held.root != loaded.state.root:
            raise InternalError(
                f"{loaded.place}: the weights have root {self._held.root},"
                f" recorded is {loaded.state.root}"
            )
        if other and self._held:
            self._check_begin(other)
        return self._policy

    @contextmanager
    def _among_the_others(self) -> Iterator[None]:
        """Where the ranks meet again after each has loaded its own weights."""
        try:
            yield
        except RuntimeError as error:  # as torch calls a collective that has failed
            raise UnavailableError(
                f"trainer rank {self.rank}: another rank was lost while the ranks loaded their weights"
                f" ({str(error).splitlines()[0]}); see the logs of the others"
            ) from error

    def _begin_with(self, path: Path) -> LoadedCheckpoint:
        section = self._config.trainer
        loaded = load_other(path, self._layout, self._model, self.rank, section.lora)
        num_updates = loaded.state.num_updates if section.load_optimizer else 0
        self._policy.load_state(loaded.shard, num_updates)
        what = f"weights and {num_updates} updates" if num_updates else "weights"
        logger.info("beginning with the %s of %s", what, loaded.place)
        return loaded

    def _check_begin(self, loaded: LoadedCheckpoint) -> None:
        """Raises InputError where the weights are not those of the checkpoint: what its run did not train
        came from another model."""
        state, held, own = loaded.state, self._own_shard, self._layout
        same = (state.layout.dtype, state.layout.merged) == (own.dtype, own.merged)
        if same and held.root != state.root:
            raise InputError(
                f"trainer.load: the weights with {loaded.place} have root {held.root}, and that run's had"
                f" {state.root}; what it did not train is not in its checkpoint: give model.path the model"
                " that it began with, and the same trainer.lora"
            )

    @property
    def _layout(self) -> RankLayout:
        return RankLayout(
            self._config.trainer.layout,
            dtype=self._config.model.dtype,
            updates_per_batch=self._config.algorithm.num_updates,
            distributed_optimizer=self._config.trainer.distributed_optimizer,
            virtual_stages=self._config.trainer.virtual_stages,
            merged=not self._config.trainer.sends_adapters,
        )

    @property
    def _own_shard(self) -> HeldShard:
        if self._held is None:
            ranks = ", ".join(str(one.rank) for one in self._config.trainer.layout.senders)
            raise InputError(f"trainer rank {self.rank} sends no weights; ask rank {ranks}")
        return self._held
