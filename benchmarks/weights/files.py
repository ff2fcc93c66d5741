"""A whole sync on one host, against a safetensors file that vLLM reloads: on disk and in /dev/shm.

Ours: snapshot, STAGE through shared memory with every block verified, COMMIT. Theirs: the trainer
saves (and syncs the disk, or another process could read half a file), vLLM reloads by its own path
while it is paused. The file's reader has it in the page cache, which favours the file.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.results_file import Row
from benchmarks.weights.engine import call_worker, running_engine
from benchmarks.weights.versions import (
    LIMITS,
    change_all,
    load_model,
    policy_of,
    snapshot_of,
)
from trimaran.config import WeightSyncSection
from trimaran.types import MemorySource

if TYPE_CHECKING:
    import torch

    from services.rollout.vllm.engine import VllmEngine

ROUNDS = 5
SHARED_MEMORY = Path("/dev/shm")

Taken = tuple[float, float]
"""Seconds in all, and of these while the engine is paused."""


def measure_reload(model: Path, work: Path) -> tuple[list[Row], str]:
    return asyncio.run(_measure(model, work))


async def _measure(model: Path, work: Path) -> tuple[list[Row], str]:
    in_memory = SHARED_MEMORY / f"trimaran-bench-{os.getpid()}"
    folders = {"disk": work / "model", "shm": in_memory}
    for folder in folders.values():
        _copy_without_weights(model, folder)
    tensors = load_model(model)
    versions = [tensors, change_all(tensors)]
    totals: dict[str, list[float]] = {side: [] for side in ("ours", *folders)}
    pauses: dict[str, list[float]] = {side: [] for side in totals}
    try:
        async with running_engine(model) as engine:
            ours = _Ours(model, engine)
            for number in range(ROUNDS + 1):
                version = versions[number % 2]
                taken = {"ours": await ours.sync(version, number)}
                for side, folder in folders.items():
                    taken[side] = await _sync_by_file(engine, folder, version, side == "disk")
                if number:  # the first warms up
                    for side, (total, pause) in taken.items():
                        totals[side].append(total)
                        pauses[side].append(pause)
            ours.close()
    finally:
        shutil.rmtree(in_memory, ignore_errors=True)
    total = {side: statistics.median(seconds) for side, seconds in totals.items()}
    pause = {side: statistics.median(seconds) for side, seconds in pauses.items()}
    rows = [
        *(Row(f"sync_seconds_{side}", total[side], "s", None, False) for side in total),
        *(Row(f"sync_pause_seconds_{side}", pause[side], "s", None, False) for side in pause),
        Row("sync_by_disk_against_ours", total["disk"] / total["ours"], "times", None, True),
        Row("sync_by_shm_against_ours", total["shm"] / total["ours"], "times", None, True),
        Row("pause_by_shm_against_ours", pause["shm"] / pause["ours"], "times", None, True),
    ]
    return rows, f"median of {ROUNDS} interleaved rounds, SmolLM2-135M in bf16, one vLLM replica"


class _Ours:
    """Sender, receiver and engine of one host; the real ones, in one process."""

    def __init__(self, model: Path, engine: VllmEngine) -> None:
        from trimaran.host.device import pick
        from weights.receiving.receiver import WeightReceiver

        self._model = model
        self._engine = engine
        self._snapshot = None
        self._receiver = WeightReceiver(pick("cpu"), 0, WeightSyncSection())
        self._receiver.start()

    async def sync(self, version: dict[str, torch.Tensor], step: int) -> Taken:
        begin = time.perf_counter()
        self._snapshot = snapshot = snapshot_of(self._model, version, self._snapshot)
        policy = policy_of(snapshot, step)
        blocks = ((0, snapshot.manifest.num_blocks),)
        source = MemorySource(blocks, snapshot.path)
        self._receiver.stage(policy, snapshot.manifest, [source], LIMITS)
        staged = self._receiver.staged
        assert staged is not None
        pause = await self._engine.load_weights(staged.shadow, policy.version)
        self._receiver.keep(policy.version)
        return time.perf_counter() - begin, pause

    def close(self) -> None:
        self._receiver.close()


async def _sync_by_file(
    engine: VllmEngine, folder: Path, version: dict[str, torch.Tensor], on_disk: bool
) -> Taken:
    from safetensors.torch import save_file

    begin = time.perf_counter()
    path = folder / "model.safetensors"
    save_file(version, path, {"format": "pt"})
    if on_disk:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    paused = time.perf_counter()
    await engine.llm.pause_generation(mode="keep", clear_cache=True)
    await call_worker(engine, "reload_file", str(folder))
    await engine.llm.resume_generation()
    end = time.perf_counter()
    return end - begin, end - paused


def _copy_without_weights(model: Path, folder: Path) -> None:
    folder.mkdir()
    for path in model.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copyfile(path, folder / path.name)
