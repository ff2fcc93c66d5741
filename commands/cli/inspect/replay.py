"""`trimaran replay`: trains a run again from its ledger, and compares the weights of every step."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from commands.cli.inspect.recorded import Recorded, recorded
from commands.launch.local.endpoints import fill_endpoints
from commands.launch.processes import Processes
from commands.launch.run_services import run_services
from services.controller.resuming.retraining import (
    DivergedError,
    Replayable,
    Retrained,
    describe_difference,
    find_replayable,
    recorded_steps,
    train_again,
)
from trimaran.clients import TrainerClient
from trimaran.config import RunConfig
from trimaran.errors import InputError, first_error
from trimaran.host.machine import read_machine
from trimaran.host.places import FolderPlace, fetch_file
from trimaran.ledger.ledger import read_trees
from trimaran.ledger.records import Tree
from trimaran.run.context import RunContext
from trimaran.run.folder import locked, write_config
from trimaran.run.placement import place
from trimaran.store import entries, open_store, store_in
from trimaran.trust.access import Trust, make_token
from trimaran.types import Caller
from trimaran.wire import rpc

DIGEST = re.compile(r"-[0-9a-f]{32}(?=\.safetensors)")
"""In the name of a part of a checkpoint that lies in a bucket."""
FOLDER = "replay"
"""In the run folder: what the replay's trainers leave behind, until the next replay."""


def replay(options: argparse.Namespace) -> int:
    """One line a step. Returns 1 at the first step with other weights."""
    try:
        return asyncio.run(_replay(options.run, options.start))
    except ExceptionGroup as errors:
        error = first_error(errors)
    except DivergedError as diverged:
        error = diverged
    if not isinstance(error, DivergedError):
        raise error
    print(f"DIFFERENT: {error}")
    return 1


async def _replay(run: str, start: int) -> int:
    async with recorded(run) as record:
        with locked(record.run.folder):
            plan = await find_replayable(_trees(record), record.payloads, start)
            config, context = _prepare(record, start)
            async with _trainer(record, config, context) as trainer:
                await _compare(record, trainer, plan, start)
    print(f"the same: {plan.num_steps - start} steps reached their recorded weights again")
    return 0


async def _compare(record: Recorded, trainer: TrainerClient, plan: Replayable, start: int) -> None:
    """Raises DivergedError at the first difference."""
    timeout = record.config.trainer.step_timeout
    policy, _ = await trainer.get_policy_version(timeout)
    if policy.root != plan.start_root:
        raise DivergedError(describe_difference(start, policy.root, plan.start_root))
    run_id = record.run.run_id
    async for step, entry in recorded_steps(run_id, _trees(record), plan.replayed):
        if step <= start:
            continue
        began, version = time.monotonic(), entry.version
        assert version  # it is committed
        again = await train_again(
            record.payloads.read, trainer, step, entry, version.lineage, timeout
        )
        print(_line(again, time.monotonic() - began), flush=True)
        if not again.is_same:
            root = again.answer.version.root
            raise DivergedError(describe_difference(step, root, again.recorded_root))


def _line(again: Retrained, seconds: float) -> str:
    policy = again.answer.version
    verdict = "same" if again.is_same else "DIFFERENT"
    groups = len(again.batch.groups)
    return (
        f"step {again.batch.step:>5}  version {policy.version!s:<8} root {policy.root}  {verdict}"
        f"  {groups} groups  {seconds:.1f} s"
    )


def _trees(record: Recorded) -> AsyncIterator[tuple[int, Tree]]:
    return read_trees(record.store, record.payloads, record.run.run_id)


def _prepare(record: Recorded, start: int) -> tuple[RunConfig, RunContext]:
    """A folder of its own for the replay's trainers, with all that they begin with."""
    run = record.run.folder
    folder = run / FOLDER
    if folder.exists():
        shutil.rmtree(folder)
    (folder / "logs").mkdir(parents=True)
    if start:
        _bring_checkpoint(record, start, folder)
    own = record.config.run.model_copy(update={"checkpoints": None})
    config = record.config.model_copy(update={"run": own})
    config = fill_endpoints(config, move_busy=True)
    write_config(folder, config)
    run_id = f"{record.run.run_id}-{FOLDER}"
    trust = Trust(make_token(folder))
    context = RunContext(run_id, folder, store_in(folder), trust)
    context.write()
    return config, context


def _bring_checkpoint(record: Recorded, step: int, folder: Path) -> None:
    """Into the replay's folder, from wherever the run's lie."""
    if step not in (known := record.kept_checkpoints()):
        kept = ", ".join(map(str, known)) or "none"
        raise InputError(f"--from {step}: no checkpoint of that step is kept (kept: {kept})")
    target = folder / "checkpoints" / f"step-{step:05d}"
    name = target.relative_to(folder).as_posix()
    saved = record.place or FolderPlace(record.run.folder, "run.folder")
    if isinstance(saved, FolderPlace):
        target.parent.mkdir()
        target.symlink_to(Path(saved.url) / name)
        return
    for found in saved.sizes(name):
        fetch_file(saved, found, target / DIGEST.sub("", Path(found).name))


@asynccontextmanager
async def _trainer(
    record: Recorded, config: RunConfig, run: RunContext
) -> AsyncGenerator[TrainerClient]:
    """All ranks, started here and ended here; the client speaks to rank 0."""
    store = await open_store(run.store_url)
    try:
        # The roots of the versions behind the tokens, as the run's trainers made them.
        async for _, version in entries(record.store, f"versions/{record.run.run_id}"):
            await store.extend(f"versions/{run.run_id}", [version])
        caller = Caller(run.run_id, await store.next_epoch(run.run_id))
    finally:
        await store.close()
    placement = place(config, read_machine(os.environ))
    services = run_services(config, run.folder, placement)
    ranks = [service for service in services if service.name.startswith("trainer-")]
    async with Processes(ranks) as processes, asyncio.TaskGroup() as tasks:
        dying = tasks.create_task(processes.wait(print))  # raises when a rank dies
        for address in config.endpoints.trainer:
            await rpc.wait_until_serving(address, config.start_timeout, run.trust)
        async with TrainerClient(config.endpoints.trainer[0], caller, run.trust) as client:
            yield client
        dying.cancel()
