"""What the world sees of a run: each event in the store's stream, and how the run stands, a record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from services.controller.reporting.step_clock import StepClock
from trimaran.errors import UnavailableError, first_error
from trimaran.ledger.retries import patiently
from trimaran.run.events import FencedStream, make_event
from trimaran.run.runs import (
    EventKind,
    Run,
    RunEvent,
    RunState,
    checkpoint_key,
    event_to_tree,
    events_stream,
    run_key,
    run_to_tree,
)
from trimaran.store import Store
from trimaran.telemetry.metrics import GREEDY_REWARD, REWARD_MEAN, STEP_SECONDS

logger = logging.getLogger(__name__)

LAST_SECONDS = 2.0
"""When the controller is asked to end, for what is not yet written."""
KEPT_EVENTS = 20_000
"""The newest events of a run. A watcher that asks for older ones learns up to which they are gone."""
TRIM_EVERY = 1000
"""So many more than that may stand there."""
DOING_SECONDS = 1.0
PROGRESS = (EventKind.STEP, EventKind.VALIDATION, EventKind.RELEASED)
SAVES = (EventKind.CHECKPOINT, EventKind.CHECKPOINT_FAILED)
WARNINGS = (
    EventKind.SKIPPED,
    EventKind.REPLICA_LOST,
    EventKind.HELD,
    EventKind.INDIGESTIBLE,
    EventKind.NONFINITE,
    EventKind.CHECKPOINT_FAILED,
    EventKind.TAINTED,
)


class RunLog:
    """Takes events at once and writes them beside the run, all that have gathered at a time. The
    process's log gets a line for each.

    Example:
        log = RunLog(store, run, epoch, patience=300.0)
        async with log.writing():
            log.emit(EventKind.SKIPPED, text="train.jsonl:7: prompt too long")
    """

    def __init__(
        self,
        store: Store,
        run: Run,
        epoch: int,
        patience: float,
        patience_when_full: float = 0.0,
    ) -> None:
        """`patience`: `outage_timeout`, for which a store that is away is asked again;
        `patience_when_full`: `run.hold_timeout`, for one that has no room."""
        self.run = run
        self._store, self._epoch, self._patience = store, epoch, patience
        self._patience_when_full = patience_when_full
        self.step: Mapping[str, float] = {}
        """Metrics of the last one, as of the last validation."""
        self.validation: Mapping[str, float] = {}
        self.progress_at = time.time()
        """When something last showed that the run goes on; unix seconds."""
        self._clock = StepClock()
        self._stream = FencedStream(store, events_stream(run.run_id), run.run_id, epoch)
        self._trimmed = 0
        self._waiting: list[dict[str, Any]] = []
        self._changed, self._idle = asyncio.Event(), asyncio.Event()
        self._said = asyncio.Event()
        self._idle.set()

    def emit(
        self,
        kind: EventKind,
        values: Mapping[str, float] | None = None,
        text: str = "",
        *,
        step: int | None = None,
        state: RunState | None = None,
        error: str = "",
        remedy: str = "",
        held: str | None = None,
        root: str = "",
    ) -> None:
        state = state or self.run.state
        if kind is EventKind.STEP:
            self.step = values or {}
            self._clock.step_done(self.run.step if step is None else step, time.time())
        elif kind is EventKind.VALIDATION:
            self.validation = values or {}
        if kind in PROGRESS:
            self.progress_at = time.time()
        run = replace(
            self.run,
            step=self.run.step if step is None else step,
            state=state,
            error=error or self.run.error,
            remedy=remedy or self.run.remedy,
            held=self.run.held if held is None else held,
            ended_at=time.time() if state.has_ended else 0.0,
            reward=_finite(self.step, REWARD_MEAN, self.run.reward),
            held_out=_finite(self.validation, GREEDY_REWARD, self.run.held_out),
            devices=self.run.devices if state.has_processes else 0,
            doing=self.run.doing if state.has_processes else "",
            ends_at=self._clock.ends_at(self.run.num_steps),
        )
        event = make_event(kind, run, text, values, root)
        is_bad = kind in WARNINGS or state is RunState.FAILED
        logger.log(logging.WARNING if is_bad else logging.INFO, "%s", _describe(event))
        self._waiting.append(event_to_tree(event))
        if kind in SAVES:  # it may be of an earlier step than that of the run
            run = replace(run, step=self.run.step)
        self.run = run
        self._changed.set()
        self._idle.clear()

    def doing(self, text: str) -> None:
        """What takes long; empty where nothing does. It changes often, so it is no event."""
        if text != self.run.doing:
            self.run = replace(self.run, doing=text)
            self._said.set()

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        """Inside, what is emitted is written.

        Raises StaleEpochError once another controller has taken over, and UnavailableError when the
        store is away for longer than the patience.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write_on())
                pacer = tasks.create_task(self._write_doing())
                try:
                    yield
                finally:
                    if not writer.done():
                        await self.written(LAST_SECONDS)
                    writer.cancel()
                    pacer.cancel()
        except ExceptionGroup as errors:
            raise first_error(errors) from None

    async def written(self, timeout: float | None = None) -> None:
        """Returns when all that was emitted is written, or after `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle.wait()

    async def _write_doing(self) -> None:
        """Lets the record be written for it, not more often than every `DOING_SECONDS`."""
        while True:
            await self._said.wait()
            self._said.clear()
            self._changed.set()
            await asyncio.sleep(DOING_SECONDS)

    async def _write_on(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            batch, run = list(self._waiting), self.run
            # First: a controller that dies behind its event does not save the checkpoint again.
            if saved := {checkpoint_key(run.run_id, step): value for step, value in _saved(batch)}:
                await self._patiently(
                    lambda saved=saved, run=run: self._store.put_fenced(
                        saved, run.run_id, self._epoch
                    )
                )
            # Each by itself: what is written is not written again because the next thing failed.
            if batch:
                await self._patiently(lambda batch=batch: self._stream.extend(batch))
            await self._patiently(
                lambda run=run: self._store.put_fenced(
                    {run_key(run.run_id): run_to_tree(run)}, run.run_id, self._epoch
                )
            )
            await self._trim()
            del self._waiting[: len(batch)]
            if not self._waiting:
                self._idle.set()

    async def _patiently(self, call: Callable[[], Awaitable[object]]) -> None:
        await patiently(
            call,
            self._patience,
            "the run's store",
            patience_when_full=self._patience_when_full,
        )

    async def _trim(self) -> None:
        """What is kept too long does no harm: the next batch tries again."""
        old = self._stream.last - KEPT_EVENTS
        if old < self._trimmed + TRIM_EVERY:
            return
        try:
            await self._store.trim(events_stream(self.run.run_id), old)
        except UnavailableError as error:
            logger.warning("events up to %d are kept for now: %s", old, error)
        else:
            self._trimmed = old


def _finite(values: Mapping[str, float], key: str, before: float | None) -> float | None:
    """The last finite one: NaN is equal to nothing, so a run with it would seem to change at each look."""
    value = values.get(key, math.nan)
    return value if math.isfinite(value) else before


def _describe(event: RunEvent) -> str:
    """The event's line in the log."""
    run, text = event.run, event.text or event.run.error
    step = f"step {run.step} of {run.num_steps}"
    match event.kind:
        case EventKind.PROCESS:
            return text
        case EventKind.STEP:
            reward, seconds = (
                event.values.get(key, math.nan) for key in (REWARD_MEAN, STEP_SECONDS)
            )
            return f"{step}: reward {reward:.4g}, {seconds:.1f} s"
        case EventKind.VALIDATION:
            facts = (f"{key} {value:.4g}" for key, value in event.values.items())
            return f"{step}: {', '.join(facts)}"
        case EventKind.STATE | EventKind.FINISHED:
            return f"run {run.state}, {step}{text and f': {text}'}"
        case kind:
            return f"{kind.replace('_', ' ')}: {text}"


def _saved(batch: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Step and record of each checkpoint that the events name."""
    for tree in batch:
        if tree["kind"] == EventKind.CHECKPOINT:
            where = {"path": tree["text"], "root": tree.get("root", "")}
            yield tree["run"]["step"], where | {"saved_at": tree["time"]}
