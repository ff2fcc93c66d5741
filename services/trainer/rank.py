"""One trainer rank: its policy, its step, what it answered, and its snapshot.

All computation runs in one thread of its own, so that the event loop stays free.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from services.trainer import checkpoint
from services.trainer.checkpoint import Layout, TrainerState
from services.trainer.learner import Policy, train_step
from services.trainer.model_files import write_model_folder
from services.weight_sync.flat import tensor_bytes, typed_view
from services.weight_sync.snapshot import Snapshot, take_snapshot
from trimaran.clients import TrainAnswer
from trimaran.config import RunConfig
from trimaran.errors import InputError, InternalError, OutOfOrderError, UnavailableError
from trimaran.types import Manifest, PolicyVersion, TrainingBatch, VersionId, VersionState

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class ExportablePolicy(Policy, Protocol):
    """What a rank needs of its policy beyond the learner."""

    def export(self) -> Iterator[tuple[str, torch.Tensor]]: ...
    def state(self) -> dict[str, torch.Tensor]: ...
    def load_state(self, state: dict[str, torch.Tensor], num_updates: int) -> None: ...


class TrainerRank:
    """Make it with `start`; `close` ends its thread."""

    def __init__(self, config: RunConfig, run_folder: Path, rank: int) -> None:
        self.rank = rank
        self._config = config
        self._run_folder = run_folder
        self._tensor_rank = rank % config.trainer.tensor_parallel
        self._exports = rank < config.trainer.tensor_parallel
        """Data-parallel rank 0: the others hold the same weights."""
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._policy: ExportablePolicy
        self._snapshot: Snapshot | None = None
        self._num_sends = 0
        # A send takes the snapshot in the event loop, its replacement is decided in the compute thread.
        self._handing_over = threading.Lock()
        self._step = 0
        self._lineage = 0
        self._metrics: dict[str, float] = {}
        self._training: tuple[int, asyncio.Task[TrainAnswer]] | None = None
        self._failure = ""

    async def start(self, build: Callable[[], ExportablePolicy]) -> None:
        """Build the policy, load the newest checkpoint if there is one, take the snapshot."""
        await self._run(lambda: self._start(build))

    async def close(self) -> None:
        self._compute.shutdown(wait=False, cancel_futures=True)

    @property
    def version(self) -> PolicyVersion:
        root = self._snapshot.manifest.root if self._snapshot else ""
        version = VersionId(self._lineage, self._step)
        # Live only once weight sync has brought it to the replicas.
        return PolicyVersion(self._run_folder.name, version, root, VersionState.STAGING)

    @property
    def manifest(self) -> Manifest:
        return self._whole_snapshot().manifest

    async def train(self, batch: TrainingBatch, lineage: int = 0) -> TrainAnswer:
        """The next step runs; the same step answers again; any other raises OutOfOrderError.

        The answer is a version of `lineage`; a repeated step may so move to a newer one.

        A caller that goes away does not stop a step under way: who asks again joins it.
        """
        if self._training is not None and self._training[0] == batch.step:
            return await asyncio.shield(self._training[1])
        if batch.step == self._step and self._metrics:
            self._lineage = max(self._lineage, lineage)
            return TrainAnswer(self.version, dict(self._metrics))
        under_way = self._training is not None
        if batch.step != self._step + 1 or under_way:
            state = f"step {self._step + 1} is under way" if under_way else "none is under way"
            raise OutOfOrderError(
                f"step {batch.step}: the trainer holds step {self._step} and {state};"
                f" send step {self._step + 1}"
            )
        self._check(batch)
        task = asyncio.create_task(self._train(batch, lineage))
        self._training = (batch.step, task)
        return await asyncio.shield(task)

    async def save_checkpoint(self, step: int) -> Path:
        """Every rank takes part. Idempotent; any step but the current raises OutOfOrderError."""
        if step != self._step or self._training is not None:
            raise OutOfOrderError(f"checkpoint of step {step}: the trainer is at {self._step}")
        return await self._run(self._save)

    async def export_model(self, path: str) -> Path:
        """Rank 0 writes the snapshot as a Hugging Face folder inside the run folder."""
        target = (self._run_folder / path).resolve()
        if not target.is_relative_to(self._run_folder.resolve()) or target == self._run_folder:
            raise InputError(f"{path}: a model is exported into the run folder {self._run_folder}")
        snapshot = self._whole_snapshot()
        tensors = (
            (info.name, typed_view(piece, info))
            for info, piece in tensor_bytes(snapshot.buffer, snapshot.manifest.tensors)
        )
        model = self._config.model
        await self._run(lambda: write_model_folder(target, model.path, tensors, model.dtype))
        return target

    async def send(self, version: VersionId, send: Callable[[Snapshot], Result]) -> Result:
        """Run `send(snapshot)` beside the computation; the snapshot stays whole meanwhile."""
        held = self.version.version
        if version != held:
            raise OutOfOrderError(f"weights of {version}: the trainer holds {held}")
        with self._handing_over:
            snapshot = self._whole_snapshot()
            self._num_sends += 1
        try:
            return await asyncio.to_thread(send, snapshot)
        finally:
            self._num_sends -= 1

    def fail(self, reason: str) -> None:
        """After a failure in the middle of a step the ranks no longer agree: refuse all work."""
        self._failure = self._failure or reason

    def _check(self, batch: TrainingBatch) -> None:
        want = self._config.run.groups_per_step
        if len(batch.groups) != want:
            raise InputError(f"step {batch.step} has {len(batch.groups)} groups; {want} are needed")

    async def _train(self, batch: TrainingBatch, lineage: int) -> TrainAnswer:
        try:
            metrics, snapshot = await self._run(lambda: self._compute_step(batch))
        except Exception as error:
            self.fail(f"step {batch.step} failed: {error}")
            raise
        else:
            self._step, self._metrics, self._snapshot = batch.step, metrics, snapshot
            self._lineage = max(self._lineage, lineage)
            return TrainAnswer(self.version, dict(metrics))
        finally:
            self._training = None

    def _compute_step(self, batch: TrainingBatch) -> tuple[dict[str, float], Snapshot | None]:
        metrics = train_step(self._policy, batch, self._config)
        return metrics, self._take_snapshot()

    def _take_snapshot(self) -> Snapshot | None:
        if not self._exports:
            return None
        if self.rank:
            for _ in self._policy.export():
                pass  # its part of the gathers
            return None
        with self._handing_over:
            reuse = None if self._num_sends else self._snapshot
            # From here on the old version cannot be sent any more.
            self._snapshot = None
        return take_snapshot(self._policy.export(), reuse)

    def _start(self, build: Callable[[], ExportablePolicy]) -> None:
        self._policy = build()
        if self.rank == 0:
            checkpoint.discard_unfinished(self._run_folder)
        state = None
        if (folder := checkpoint.newest(self._run_folder)) is not None:
            state = checkpoint.read_state(folder, self._layout)
            shard = checkpoint.read_shard(folder, self._tensor_rank)
            self._policy.load_state(shard, state.num_updates)
            self._step, self._lineage = state.step, state.lineage
            self._metrics = dict(state.metrics)
            logger.info("continuing from %s", folder)
        self._snapshot = self._take_snapshot()
        if state and self._snapshot and self._snapshot.manifest.root != state.root:
            raise InternalError(
                f"{folder}: the weights have root {self._snapshot.manifest.root},"
                f" recorded is {state.root}"
            )

    def _save(self) -> Path:
        folder = checkpoint.folder_of(self._run_folder, self._step)
        if self._exports:
            checkpoint.write_shard(
                self._run_folder, self._step, self._tensor_rank, self._policy.state()
            )
        if self._config.num_trainer_ranks > 1:
            dist.barrier()
        if self.rank:
            return folder
        state = TrainerState(
            step=self._step,
            lineage=self._lineage,
            num_updates=self._step * self._config.algorithm.updates_per_batch,
            root=self.version.root,
            metrics=self._metrics,
            layout=self._layout,
        )
        return checkpoint.publish(self._run_folder, state, self._config.run.keep_checkpoints)

    @property
    def _layout(self) -> Layout:
        section = self._config.trainer
        return Layout(
            tensor_parallel=section.tensor_parallel,
            data_parallel=section.data_parallel,
            dtype=self._config.model.dtype,
            updates_per_batch=self._config.algorithm.updates_per_batch,
        )

    def _whole_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            raise OutOfOrderError(f"the weights after step {self._step} are being replaced")
        return self._snapshot

    async def _run(self, function: Callable[[], Any]) -> Any:
        if self._failure:
            raise UnavailableError(
                f"trainer rank {self.rank}: {self._failure}; resume the run from its checkpoint"
            )
        return await asyncio.get_running_loop().run_in_executor(self._compute, function)
