"""One run from start to summary: wait for the services, resume, validate, loop, save."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.controller.datasets import load_prompts
from services.controller.events import RunLog
from services.controller.faulted import FaultedGate
from services.controller.groups import GroupMaker
from services.controller.ledger import RunLedger
from services.controller.loop import Loop
from services.controller.payloads import PayloadStore
from services.controller.proofs import ProofCheck
from services.controller.records import Opened
from services.controller.report import Reporter
from services.controller.resume import replay
from services.controller.router import Router
from services.controller.scoring import Scorer
from services.controller.step_metrics import count_devices
from services.controller.validation import Validation, Validator
from trimaran import rpc
from trimaran.clients import (
    RewardClient,
    RolloutClient,
    TrainAnswer,
    TrainerClient,
    WeightSyncClient,
)
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, InputError
from trimaran.run_context import RunContext
from trimaran.runs import RunState
from trimaran.store import Store
from trimaran.telemetry import MetricsWriter, TimelineWriter, read_json_lines
from trimaran.types import Caller, Prompt, TrainingBatch

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Services:
    """Clients to everything that the controller calls."""

    weight_sync: WeightSyncClient
    reward: RewardClient
    trainer: TrainerClient


async def conduct(
    config: RunConfig,
    run: RunContext,
    store: Store,
    log: RunLog,
    cancelled: asyncio.Event,
) -> RunState:
    """Run to the end. Returns SUCCEEDED or CANCELLED; every failure is raised."""
    began = time.monotonic()
    prompts, held_out = await asyncio.to_thread(_load_prompts, config)
    caller = Caller(run.run_id, await store.next_epoch(run.run_id))
    async with AsyncExitStack() as stack:
        payloads = PayloadStore(run.folder / "payloads")
        ledger = await RunLedger.open(store, payloads, caller.run_id)
        stack.push_async_callback(ledger.close)
        # The record that this controller has taken over: an older one can write no more.
        ledger.record(Opened(caller.epoch))
        await ledger.flush()
        services = await _connect(config, caller, stack)
        reporter = await asyncio.to_thread(_open_reporter, config, run.folder, log, stack)
        loop = _assemble(config, run.folder, prompts, held_out, ledger, services, reporter, caller)
        stack.push_async_callback(loop.router.close)
        loop.cancelled = cancelled
        await _wait_for_services(config, services)
        return await _conduct(loop, run, store, services, began)


async def _conduct(
    loop: Loop, run: RunContext, store: Store, services: Services, began: float
) -> RunState:
    config, reporter, state = loop.config, loop.reporter, loop.ledger.state
    rows = read_json_lines(run.folder / "metrics.jsonl")
    written = {row["step"] for row in rows if row["kind"] == "step"}

    def on_step(batch: TrainingBatch, answer: TrainAnswer) -> None:
        """A crash between a step's commit and its row leaves the row to us."""
        if batch.step not in written:
            reporter.step(batch, answer, {})

    version, pending = await replay(loop.ledger, loop.trainer, config, on_step)
    reporter.running(state.step)
    if pending:
        reporter.start_clock()
        answer = await loop.train(pending)
        version = answer.version
        loop.report(pending, answer, {})
    await loop.publish(version)
    async with loop.router.watching():
        await _train_and_validate(loop, run.run_id, store)
    await loop.trainer.export_model(str(run.folder / "model"), config.trainer.step_timeout)
    before = await store.get(_heldout_key(run.run_id))
    summary = _summary(loop, run.folder, before and before.value, time.monotonic() - began)
    await asyncio.to_thread(_write_json, run.folder / "summary.json", summary)
    await asyncio.to_thread(_draw_figures, run.folder)
    return RunState.SUCCEEDED if state.step == config.run.steps else RunState.CANCELLED


async def _train_and_validate(loop: Loop, run_id: str, store: Store) -> None:
    config, reporter, state = loop.config, loop.reporter, loop.ledger.state
    heldout_before = _heldout_key(run_id)
    if state.step == 0 and await store.get(heldout_before) is None:
        await loop.validate(0, config.validation.final_samples)
        await store.put(heldout_before, _rewards(reporter.validations.get(0)))
    reporter.start_clock()
    await loop.run()
    await loop.save_checkpoint()
    if state.step == config.run.steps:
        await loop.validate(state.step, config.validation.final_samples)


def _heldout_key(run_id: str) -> str:
    return f"heldout_before/{run_id}"


def _load_prompts(config: RunConfig) -> tuple[list[Prompt], list[Prompt]]:
    data = config.data
    held_out = load_prompts(data.validation, data) if data.validation else []
    return load_prompts(data.train, data), held_out[: config.validation.max_prompts]


async def _connect(config: RunConfig, caller: Caller, stack: AsyncExitStack) -> Services:
    endpoints = config.endpoints
    if not (endpoints.weight_sync and endpoints.reward and endpoints.trainer):
        raise InputError("endpoints: weight_sync, reward, trainer and rollout must be named")
    return Services(
        await stack.enter_async_context(WeightSyncClient(endpoints.weight_sync, caller)),
        await stack.enter_async_context(RewardClient(endpoints.reward, caller)),
        await stack.enter_async_context(TrainerClient(endpoints.trainer[0], caller)),
    )


def _open_reporter(
    config: RunConfig, run_folder: Path, log: RunLog, stack: AsyncExitStack
) -> Reporter:
    metrics, timeline = MetricsWriter(run_folder), TimelineWriter(run_folder)
    stack.callback(metrics.close)
    stack.callback(timeline.close)
    return Reporter(config, metrics, timeline, log)


def _assemble(
    config: RunConfig,
    run_folder: Path,
    prompts: Sequence[Prompt],
    held_out: Sequence[Prompt],
    ledger: RunLedger,
    services: Services,
    reporter: Reporter,
    caller: Caller,
) -> Loop:
    router = Router(
        services.weight_sync,
        connect=lambda address: RolloutClient(address, caller),
        max_concurrency=config.rollout.max_concurrency,
        patience=config.outage_timeout,
        on_lost=reporter.replica_lost,
        on_back=reporter.replica_back,
        on_busy=reporter.replica_busy,
    )
    prover = ProofCheck(services.weight_sync, config.outage_timeout)
    maker = GroupMaker(router, prover, config)
    gate = FaultedGate(config, reporter.held, reporter.released)
    scorer = Scorer(services.reward, gate, config)
    validator = Validator(held_out, maker, scorer, config, run_folder) if held_out else None
    return Loop(
        config=config,
        prompts=prompts,
        ledger=ledger,
        router=router,
        maker=maker,
        scorer=scorer,
        prover=prover,
        trainer=services.trainer,
        weight_sync=services.weight_sync,
        validator=validator,
        reporter=reporter,
    )


async def _wait_for_services(config: RunConfig, services: Services) -> None:
    """Until all answer and all replicas have registered. Raises DeadlineError naming who is missing."""
    timeout, endpoints = config.start_timeout, config.endpoints
    addresses = [endpoints.weight_sync, endpoints.reward, *endpoints.trainer, *endpoints.rollout]
    async with asyncio.TaskGroup() as tasks:
        for address in addresses:
            assert address
            tasks.create_task(rpc.wait_until_serving(address, timeout))
    deadline = time.monotonic() + timeout
    while True:
        routing = await services.weight_sync.get_routing()
        names = {replica.name for replica in routing.routable} | set(routing.unroutable)
        if len(names) >= config.rollout.replicas:
            return
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"only {len(names)} of {config.rollout.replicas} rollout replicas have registered"
                f" with weight sync after {timeout:g} s ({', '.join(sorted(names)) or 'none'})"
            )
        await asyncio.sleep(POLL_SECONDS)


def _rewards(validation: Validation | None) -> dict[str, float | None] | None:
    return validation and {"greedy": validation.greedy, "sampled": validation.sampled}


def _summary(
    loop: Loop, run_folder: Path, heldout_before: Any, wall_seconds: float
) -> dict[str, Any]:
    config, reporter, state = loop.config, loop.reporter, loop.ledger.state
    # A step whose controller died before it could time it counts in neither.
    done = [entry for entry in state.steps[: state.step] if entry.seconds]
    seconds = sum(entry.seconds for entry in done)
    samples = sum(len(entry.groups) for entry in done) * config.rollout.group_size
    last = max(reporter.validations, default=None)
    pace = reporter.num_tokens / reporter.seconds if reporter.seconds else 0.0
    return {
        "heldout_before": heldout_before,
        "heldout_after": None if last is None else _rewards(reporter.validations[last]),
        "steps": state.step,
        "seconds": seconds,
        "wall_seconds": wall_seconds,
        "samples_per_second": samples / seconds if seconds else 0.0,
        "tokens_per_second": pace,
        "tokens_per_second_per_device": pace / count_devices(config),
        "seed": config.run.seed,
        "skipped": reporter.num_skipped,
        "nonfinite_steps": sum(bool(entry.nonfinite) for entry in state.steps),
        "faulted_share": reporter.faulted_share,
        "indigestible_share": reporter.indigestible_share,
        "lineage": state.lineage,
        "run_folder": str(run_folder),
    }


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _draw_figures(run_folder: Path) -> None:
    # Late: matplotlib takes a second that a run need not pay at its start.
    from services.controller.figures import draw_curve, draw_timeline

    draw_curve(run_folder)
    draw_timeline(run_folder)
