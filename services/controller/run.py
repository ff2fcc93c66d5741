"""One run from start to summary: wait for the services, resume, validate, loop, save."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from services.controller.datasets import HeldOutPrompts, TrainingPrompts, open_prompts
from services.controller.episodes.maker import CompletionMaker, EpisodeMaker
from services.controller.episodes.room import EnvironmentRoom
from services.controller.faulted import FaultedGate
from services.controller.goals import Goals
from services.controller.greedy import FIRST_NUMBER
from services.controller.groups import GroupMaker
from services.controller.loop import Loop
from services.controller.proofs import ProofCheck
from services.controller.reporting.events import RunLog
from services.controller.reporting.kept_files import bring_back_metrics, keep_files
from services.controller.reporting.report import Reporter
from services.controller.reporting.services_doing import followed
from services.controller.reporting.step_metrics import describe_proofs
from services.controller.resuming.resume import replay
from services.controller.resuming.run_plan import plan
from services.controller.router import Router
from services.controller.scoring import Scorer
from services.controller.validation.validation import Validation, Validator
from trimaran.clients import (
    EnvironmentClient,
    RewardClient,
    RolloutClient,
    TrainAnswer,
    TrainerClient,
    WeightSyncClient,
)
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, InternalError, StaleEpochError
from trimaran.host.places import Place
from trimaran.ledger.anchor import AnchorFile
from trimaran.ledger.disk import naming_full_disk
from trimaran.ledger.ledger import Retention, RunLedger
from trimaran.ledger.payloads.files import claim_payloads, open_payloads
from trimaran.ledger.records import Opened, Reissue, Retried
from trimaran.ledger.retries import patiently
from trimaran.ledger.write_pause import HeldError, WritePause
from trimaran.run.context import RunContext
from trimaran.run.directory import Directory, named_addresses
from trimaran.run.environment import environment_names
from trimaran.run.place import run_place
from trimaran.run.runs import Goal, RunState, endpoints_key
from trimaran.store import Store
from trimaran.telemetry.exposition import Exposition
from trimaran.telemetry.other_names import OtherNames, facts_of
from trimaran.telemetry.run_files import (
    METRICS_NAME,
    MetricsWriter,
    TimelineWriter,
    read_json_lines,
)
from trimaran.telemetry.series import CONTROLLER_GROUPS
from trimaran.telemetry.sinks import About, close_sinks, open_sinks
from trimaran.trust.access import Trust
from trimaran.types import Caller, TrainingBatch
from trimaran.wire import rpc

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Services:
    """Clients to everything that the controller calls."""

    weight_sync: WeightSyncClient
    reward: RewardClient
    trainer: TrainerClient
    environments: tuple[EnvironmentClient, ...]
    """One a process; none where the run has no environment."""


async def conduct(
    config: RunConfig,
    run: RunContext,
    caller: Caller,
    store: Store,
    log: RunLog,
    goals: Goals,
    metrics: Exposition,
    afterwards: AsyncExitStack,
) -> RunState:
    """Run to the goal. Returns SUCCEEDED, CANCELLED or PAUSED; every failure is raised.

    `afterwards`: what is closed only when the run's end is recorded, because it may take long.
    """
    began = time.monotonic()
    prompts, held_out = await open_prompts(config)
    config = config.model_copy(update={"run": config.run.counted(len(prompts))})
    log.run = replace(log.run, num_steps=config.run.num_steps)
    async with AsyncExitStack() as stack:
        pause = WritePause(
            config.run.hold_timeout,
            goals.ending,
            on_hold=lambda text, values: reporter.held(text, values, by="record"),
            on_free=lambda text, values: reporter.released(text, values, by="record"),
        )
        is_new_here = not read_json_lines(run.folder / METRICS_NAME)
        place = run_place(config, run.run_id)
        reporter, rows = await asyncio.to_thread(
            _open_reporter, config, run.folder, log, pause, stack, afterwards
        )
        if is_new_here:
            await bring_back_metrics(store, run.run_id, rows)
        ledger = await _open_ledger(config, run, caller, store, pause, stack)
        if text := plan(ledger, config):
            reporter.progress(text)
        metrics.show(CONTROLLER_GROUPS, lambda: ledger.state.count_stages())
        directory = Directory(store, run.run_id, named_addresses(config))
        services = await _connect(config, directory, caller, run.trust, stack)
        loop = _assemble(
            *(config, run, prompts, held_out, ledger, services, reporter, pause, caller, place)
        )
        stack.push_async_callback(loop.router.close)
        loop.ending, loop.cancelled = goals.ending, goals.cancelled
        if config.is_colocated:
            # A trainer that was started again waits for its devices, which replicas may have since a
            # controller before this one.
            place_of_sync = directory.place("weight-sync")
            await rpc.wait_until_serving(place_of_sync, config.start_timeout, run.trust)
            await loop.leave_devices()
        with reporter.doing("waiting for the services") as so_far:
            async with followed(so_far, store, run):
                await _wait_for_services(config, run, store, services, directory, reporter)
        try:
            return await _conduct(loop, run, store, goals, pause, place, began)
        except HeldError:
            if not goals.ending.is_set():
                raise
            return (
                RunState.PAUSED if goals.goal is Goal.PAUSE else RunState.CANCELLED
            )  # what could not be written is made again by a resume


async def _open_ledger(
    config: RunConfig,
    run: RunContext,
    caller: Caller,
    store: Store,
    pause: WritePause,
    stack: AsyncExitStack,
) -> RunLedger:
    payloads = open_payloads(config.run.payloads, run.folder, run.run_id)
    stack.push_async_callback(payloads.close)
    if place := config.run.payloads:
        await pause.until_written(
            lambda: claim_payloads(payloads, place, run.run_id, caller.epoch, store)
        )
    anchor = AnchorFile(run.folder)
    stack.callback(anchor.close)
    retention = Retention(config.run.keep_payloads == "all", config.run.payload_quota_gib)

    def read() -> Awaitable[RunLedger]:
        return RunLedger.open(
            store, payloads, run.run_id, anchor=anchor, retention=retention, pause=pause
        )

    ledger = await take_over(read, store, caller, config.outage_timeout)
    stack.push_async_callback(ledger.close)
    return ledger


async def take_over(
    read: Callable[[], Awaitable[RunLedger]], store: Store, caller: Caller, patience: float
) -> RunLedger:
    """The ledger, with the record that this controller has taken over: an older one, which was frozen
    and goes on, can write no more from then on. What it still wrote while we read is read as well.

    Raises StaleEpochError when a newer one has come, or after `patience` seconds, which is
    `outage_timeout`.
    """
    deadline = time.monotonic() + patience
    while True:
        ledger = await read()
        ledger.record(Opened(caller.epoch))
        try:
            await ledger.flush()
            return ledger
        except StaleEpochError:
            await ledger.close()
            if (
                time.monotonic() > deadline
                or await store.newest_epoch(caller.run_id) > caller.epoch
            ):
                raise
        except BaseException:
            await ledger.close()
            raise


async def _conduct(
    loop: Loop,
    run: RunContext,
    store: Store,
    goals: Goals,
    pause: WritePause,
    place: Place | None,
    began: float,
) -> RunState:
    config, reporter, state = loop.config, loop.reporter, loop.ledger.state
    rows = read_json_lines(run.folder / METRICS_NAME)
    written = {row["step"] for row in rows if row["kind"] == "step"}

    def on_step(batch: TrainingBatch, answer: TrainAnswer) -> None:
        """A crash between a step's commit and its row leaves the row to us."""
        so_far(f"step {batch.step} of {state.step} is trained again")
        if batch.step not in written:
            proofs = state.steps[batch.step].proofs
            reporter.step(batch, answer, describe_proofs(batch, proofs))

    await loop.leave_devices()  # a controller before this one may have woken the replicas
    with reporter.doing("going on from the ledger") as so_far:
        version, pending, came_at = await replay(loop.ledger, loop.trainer, config, on_step)
    loop.saver.came_at = came_at
    reporter.running(state.step, goals.state(RunState.RUNNING))
    if pending:
        reporter.start_clock()
        answer = await loop.train_pending(pending, version)
        version = answer.version
        loop.report(pending, answer, {})
    bringing = f"bringing the weights of step {state.step} to the replicas"
    reporter.progress(bringing)
    with reporter.doing(bringing):
        await loop.publish(version)
    async with loop.router.watching():
        if config.validation.only:
            await loop.validate(state.step, config.validation.final_samples)
        else:
            await _train_and_validate(loop, run.run_id, store)
    ended = _end_state(loop, goals.goal)
    if ended is RunState.PAUSED:
        return ended
    model = ""
    if not config.validation.only:
        await loop.leave_devices()
        reporter.progress("exporting the model")
        with reporter.doing("exporting the model") as so_far:
            async with followed(so_far, store, run, "trainer-0"):
                model = await pause.until_written(lambda: _export(loop))
    before = await _asked(config, lambda: store.get(_heldout_key(run.run_id)))
    wall_seconds = time.monotonic() - began
    summary = _summary(loop, run.folder, model, before and before.value, wall_seconds)
    reporter.progress("writing the summary")
    await reporter.written()
    with reporter.doing("writing the summary"):
        await pause.until_written(lambda: asyncio.to_thread(_conclude, run.folder, summary, place))
    return ended


async def _export(loop: Loop) -> str:
    """The model's place. Raises InternalError for a trainer that was started again since the last step, and
    may have loaded an older one: the next controller trains it to its end."""
    timeout, step = loop.config.trainer.step_timeout, loop.ledger.state.step
    held, _ = await loop.trainer.get_policy_version(timeout)
    if held.version.step != step:
        raise InternalError(
            f"model: the trainer was started again and holds step {held.version.step}, the run is at step"
            f" {step}; resume the run, which trains the rest again"
        )
    return await loop.trainer.export_model("model", timeout)


def _end_state(loop: Loop, goal: Goal) -> RunState:
    """The state of a run that trains no more, or that has validated. A last validation that was given up is left to a
    resume."""
    step = loop.ledger.state.step
    is_done = loop.config.validation.only or step == loop.config.run.num_steps
    if loop.validator is not None:
        is_done = is_done and step in loop.reporter.validations
    if is_done:
        return RunState.SUCCEEDED
    return RunState.PAUSED if goal is Goal.PAUSE else RunState.CANCELLED


async def _train_and_validate(loop: Loop, run_id: str, store: Store) -> None:
    config, reporter, state = loop.config, loop.reporter, loop.ledger.state
    heldout_before = _heldout_key(run_id)
    is_asked = config.validation.before_train and state.step == 0
    if is_asked and await _asked(config, lambda: store.get(heldout_before)) is None:
        await loop.validate(0, config.validation.final_samples)
        if rewards := _rewards(reporter.validations.get(0)):  # else it was given up
            await _asked(config, lambda: store.put(heldout_before, rewards))
    reporter.start_clock()
    await loop.run()
    if state.step == config.run.num_steps and state.step not in reporter.validations:
        # A controller before this one has trained the last step.
        await loop.validate(state.step, config.validation.final_samples)
    await loop.saver.save()


async def _asked(config: RunConfig, call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Once the run is under way a store that is away is waited for: another start of the controller
    would validate or export again."""
    return await patiently(call, config.outage_timeout, "the run's store")


def _heldout_key(run_id: str) -> str:
    return f"heldout_before/{run_id}"


async def _connect(
    config: RunConfig, directory: Directory, caller: Caller, trust: Trust, stack: AsyncExitStack
) -> Services:
    weight_sync, reward, trainer = map(directory.place, ("weight-sync", "reward", "trainer-0"))
    environments = [
        await stack.enter_async_context(EnvironmentClient(directory.place(name), caller, trust))
        for name in environment_names(config)
    ]
    return Services(
        await stack.enter_async_context(WeightSyncClient(weight_sync, caller, trust)),
        await stack.enter_async_context(RewardClient(reward, caller, trust)),
        await stack.enter_async_context(TrainerClient(trainer, caller, trust)),
        tuple(environments),
    )


def _open_reporter(
    config: RunConfig,
    run_folder: Path,
    log: RunLog,
    pause: WritePause,
    stack: AsyncExitStack,
    afterwards: AsyncExitStack,
) -> tuple[Reporter, MetricsWriter]:
    section = config.metrics
    others = OtherNames(section.also, facts_of(config)) if section.also else None
    sinks = open_sinks(section.sinks, About.of(config, run_folder))
    afterwards.push_async_callback(asyncio.to_thread, close_sinks, sinks)
    metrics = MetricsWriter(run_folder, others, sinks)
    timeline = TimelineWriter(run_folder)
    for file in (metrics, timeline):
        stack.callback(file.close)
    return Reporter(config, metrics, timeline, log, pause), metrics


def _assemble(
    config: RunConfig,
    run: RunContext,
    prompts: TrainingPrompts,
    held_out: HeldOutPrompts,
    ledger: RunLedger,
    services: Services,
    reporter: Reporter,
    pause: WritePause,
    caller: Caller,
    place: Place | None,
) -> Loop:
    router = Router(
        services.weight_sync,
        connect=lambda address: RolloutClient(address, caller, run.trust),
        max_concurrency=config.rollout.max_concurrency,
        patience=config.outage_timeout,
        on_lost=reporter.replica_lost,
        on_back=reporter.replica_back,
        on_busy=reporter.replica_busy,
    )
    prover = ProofCheck(
        services.weight_sync,
        config.outage_timeout,
        needed=config.run.proof,
        prove_timeout=config.weight_sync.prove_timeout,
    )
    turns = GroupMaker(router, prover, config)
    maker: CompletionMaker = turns
    if config.environment:
        room = EnvironmentRoom(services.environments, config.environment.max_episodes)
        maker = EpisodeMaker(turns, room, config, partial(record_retry, ledger))
    gate = FaultedGate(config, reporter.held, reporter.released)
    scorer = Scorer(services.reward, gate, config)
    validator = None
    if len(held_out):
        validator = Validator(held_out, maker, scorer, config, run.folder, pause, place)
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


def record_retry(
    ledger: RunLedger, number: int, attempt: int, episode: int, reissue: Reissue
) -> None:
    """Groups of validations and greedy answers have no records."""
    if number < FIRST_NUMBER:
        ledger.record(Retried(number, attempt, episode, reissue.cause, reissue.replica))


async def _wait_for_services(
    config: RunConfig,
    run: RunContext,
    store: Store,
    services: Services,
    directory: Directory,
    reporter: Reporter,
) -> None:
    """Until all answer and the replicas have registered. Raises DeadlineError naming who is missing.

    Of replicas `rollout.replicas`, or fewer where the launcher has given some up.
    """
    timeout = config.start_timeout
    trainers = [f"trainer-{rank}" for rank in range(config.num_trainer_ranks)]
    record = await store.get(endpoints_key(run.run_id))
    named: dict[str, str] = record.value if record else {}
    num_started = sum(name.startswith("rollout-") for name in named) or config.rollout.replicas
    num_wanted = min(num_started, config.rollout.replicas)

    async def wait_for(name: str) -> None:
        await rpc.wait_until_serving(directory.place(name), timeout, run.trust)
        reporter.progress(f"{name} is ready")

    async with asyncio.TaskGroup() as tasks:
        for name in ("weight-sync", "reward", *environment_names(config), *trainers):
            tasks.create_task(wait_for(name))
    deadline = time.monotonic() + timeout
    names = set[str]()
    while True:
        routing = await services.weight_sync.get_routing()
        known, names = names, {each.name for each in routing.routable} | set(routing.unroutable)
        for name in sorted(names - known):
            reporter.progress(f"{name} is ready")
        if len(names) >= num_wanted:
            return
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"only {len(names)} of {num_wanted} rollout replicas have registered"
                f" with weight sync after {timeout:g} s ({', '.join(sorted(names)) or 'none'})"
            )
        await asyncio.sleep(POLL_SECONDS)


def _rewards(validation: Validation | None) -> dict[str, float | None] | None:
    return validation and {"greedy": validation.greedy, "sampled": validation.sampled}


def _summary(
    loop: Loop, run_folder: Path, model: str, heldout_before: Any, wall_seconds: float
) -> dict[str, Any]:
    config, reporter, state = loop.config, loop.reporter, loop.ledger.state
    totals = state.totals
    seconds, samples = totals.timed_seconds, totals.timed_groups * config.rollout.group_size
    last = max(reporter.validations, default=None)
    pace = reporter.num_tokens / reporter.seconds if reporter.seconds else 0.0
    return {
        "heldout_before": heldout_before,
        "heldout_after": None if last is None else _rewards(reporter.validations[last]),
        "validation": None if last is None else reporter.validations[last].values(),
        "steps": state.step,
        "seconds": seconds,
        "wall_seconds": wall_seconds,
        "samples_per_second": samples / seconds if seconds else 0.0,
        "tokens_per_second": pace,
        "tokens_per_second_per_device": pace / config.num_devices,
        "num_devices": config.num_devices,
        "seed": config.run.seed,
        "skipped": reporter.num_skipped,
        "replaced": reporter.num_replaced,
        "nonfinite_steps": totals.nonfinite_steps,
        "tainted_groups": totals.tainted_groups,
        "faulted_share": reporter.faulted_share,
        "indigestible_share": reporter.indigestible_share,
        "lineage": state.lineage,
        "run_folder": str(run_folder),
        "model": model,
    }


def _conclude(run_folder: Path, summary: dict[str, Any], place: Place | None) -> None:
    """Raises UnavailableError; it may be done again."""
    with naming_full_disk(run_folder):
        _write_json(run_folder / "summary.json", summary)
    if place is not None:
        keep_files(run_folder, place)


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
