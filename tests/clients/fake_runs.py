"""Runs as a manager has them, without stores or processes: what is asked for happens at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from services.manager.run_data.choice import ALL, Choice
from services.manager.run_data.log_files import LogLines
from services.manager.run_data.metric_rows import RowCursor, RowPage
from services.manager.run_data.past_events import PastEvents
from services.manager.run_data.timeline import Span, Timeline
from trimaran.errors import InputError, NotFoundError, StateError, UnavailableError
from trimaran.run.answers import Checkpoint, LedgerAnswer, RunSample, RunSamples
from trimaran.run.runs import (
    TRANSITIONS,
    EventKind,
    Replicas,
    Run,
    RunEvent,
    RunState,
    metric_rows,
)
from trimaran.run.weights import ReplicaWeights, RunWeights
from trimaran.types import PolicyVersion, Proof, ScoredGroup, VersionId, VersionRecord


@dataclass
class FakeRuns:
    """`calls` records what was asked, with the client that asked."""

    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    reported: dict[str, list[RunEvent]] = field(default_factory=dict[str, list[RunEvent]])
    calls: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    configs: dict[str, str] = field(default_factory=dict[str, str])
    requests: dict[str, str] = field(default_factory=dict[str, str])
    logged: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """By process."""
    more_samples: tuple[RunSample, ...] = ()
    """Of every step, beside two."""
    images: dict[str, Sequence[bytes]] = field(default_factory=dict[str, Sequence[bytes]])
    """Of held-out prompts, by their ids."""
    trained_steps: tuple[int, ...] = (1, 2)
    with_log: tuple[str, ...] = ("controller", "rollout-0")
    scored: dict[int, ScoredGroup] = field(default_factory=dict[int, ScoredGroup])
    """Groups whose tokens are kept."""
    lives: dict[int, LedgerAnswer] = field(default_factory=dict[int, LedgerAnswer])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, run_id: str, state: RunState = RunState.RUNNING, **facts: Any) -> Run:
        """A run with its first event."""
        run = Run(run_id, state, **{"step": 0, "num_steps": 4, "name": run_id} | facts)
        self.runs[run_id], self.reported[run_id] = run, []
        self.tell(run_id, EventKind.STATE)
        return self.runs[run_id]

    def tell(
        self,
        run_id: str,
        kind: EventKind,
        values: Mapping[str, float] | None = None,
        text: str = "",
        **facts: Any,
    ) -> None:
        self.runs[run_id] = run = replace(self.runs[run_id], **facts)
        events = self.reported[run_id]
        number = len(events) + 1
        events.append(RunEvent(number, kind, run, values or {}, text, 1000.0 + number))
        self.changed.set()
        self.changed = asyncio.Event()

    def step(self, run_id: str, step: int, reward: float) -> None:
        self.tell(run_id, EventKind.STEP, {"reward/completion/mean": reward}, step=step)

    def finish(self, run_id: str, state: RunState = RunState.SUCCEEDED, **facts: Any) -> None:
        for log in self.logged.values():
            log.append(f"now {state.value}")
        self.tell(run_id, EventKind.FINISHED, state=state, **facts)

    def _find(self, run_id: str) -> Run:
        if run_id not in self.runs:
            raise NotFoundError(f"run_id: there is no run {run_id!r}")
        return self.runs[run_id]

    async def create(
        self, client: Any, request_id: str, config: str, overrides: Sequence[str], priority: int
    ) -> Run:
        self.calls.append(("create", client, request_id, tuple(overrides), priority))
        if request_id not in self.requests:
            await self.check(client, config, overrides, priority)
            run_id = f"run-{len(self.runs) + 1}"
            self.requests[request_id], self.configs[run_id] = run_id, config
            self.add(run_id, RunState.QUEUED, priority=priority)
        return self.runs[self.requests[request_id]]

    async def check(
        self, client: Any, config: str, overrides: Sequence[str], priority: int
    ) -> None:
        try:
            tree = yaml.safe_load(config)
        except yaml.YAMLError as error:
            raise InputError(f"config: not YAML: {error}") from None
        if not isinstance(tree, dict):
            raise InputError("config: must hold sections such as model:, data:, reward:")

    async def get(self, client: Any, run_id: str) -> Run:
        return self._find(run_id)

    async def list(
        self,
        client: Any,
        states: Sequence[RunState] = (),
        owner: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> tuple[list[Run], str]:
        self.calls.append(("list", client, tuple(states), owner, page_size, page_token))
        runs = [
            run
            for run in reversed(self.runs.values())
            if (not states or run.state in states) and (not owner or run.owner == owner)
        ]
        if page_token and not page_token.isdecimal():
            raise InputError("page_token: not one of this manager's")
        start = int(page_token or 0)
        end = start + (page_size or 100)
        return runs[start:end], str(end) if end < len(runs) else ""

    async def events(
        self, client: Any, run_id: str, after: int, follow: bool = True
    ) -> AsyncIterator[RunEvent]:
        self.calls.append(("events", client, run_id, after, follow))
        self._find(run_id)
        while True:
            changed = self.changed
            is_over = (
                not follow or self.runs[run_id].state.has_ended
            )  # it may end while events go out
            for event in self.reported[run_id][after:]:
                yield event
                after = event.sequence
            if is_over:
                return
            await changed.wait()

    async def metric_rows(self, client: Any, run_id: str, after: RowCursor) -> RowPage:
        self._find(run_id)
        rows = [row for event in self.reported[run_id] for row in metric_rows([event])]
        found = rows[after.position : after.position + 100]
        end = after.position + len(found)
        share = end / len(rows) if rows else 1.0
        return RowPage(found, RowCursor("events", end), after.position == 0, share)

    async def past_events(
        self,
        client: Any,
        run_id: str,
        before: int = 0,
        kinds: Collection[EventKind] = (),
        limit: int = 100,
    ) -> PastEvents:
        self._find(run_id)
        past = self.reported[run_id][: before - 1 if before else None]
        found = [event for event in reversed(past) if not kinds or event.kind in kinds]
        page = tuple(found[:limit])
        return PastEvents(page, len(past), page[-1].sequence if len(found) > limit else 0)

    async def _move(self, client: Any, call: str, run_id: str, state: RunState) -> Run:
        self.calls.append((call, client, run_id))
        run = self._find(run_id)
        if run.state is not state:
            if state not in TRANSITIONS[run.state]:
                raise StateError(f"run_id: {run_id} is {run.state.value}, not to {call} now")
            kind = EventKind.FINISHED if state.has_ended else EventKind.STATE
            self.tell(run_id, kind, state=state)
        return self.runs[run_id]

    async def pause(self, client: Any, run_id: str) -> Run:
        waits = self._find(run_id).state is RunState.QUEUED
        state = RunState.PAUSED if waits else RunState.PAUSING
        return await self._move(client, "pause", run_id, state)

    async def resume(self, client: Any, run_id: str) -> Run:
        return await self._move(client, "resume", run_id, RunState.QUEUED)

    async def cancel(self, client: Any, run_id: str) -> Run:
        waits = self._find(run_id).state in (RunState.QUEUED, RunState.PAUSED)
        state = RunState.CANCELLED if waits else RunState.CANCELLING
        return await self._move(client, "cancel", run_id, state)

    async def delete(self, client: Any, run_id: str) -> None:
        self.calls.append(("delete", client, run_id))
        if not self._find(run_id).state.has_ended:
            raise StateError(f"run_id: {run_id} has not ended; cancel it first")
        del self.runs[run_id], self.reported[run_id]

    async def scale(self, client: Any, run_id: str, min_replicas: int, max_replicas: int) -> Run:
        self.calls.append(("scale", client, run_id, min_replicas, max_replicas))
        self._find(run_id)
        if not 1 <= min_replicas <= max_replicas:
            raise InputError(f"min_replicas: {min_replicas}; give 1 to max_replicas")
        self.tell(
            run_id, EventKind.PROCESS, text="scaled", replicas=Replicas(min_replicas, max_replicas)
        )
        return self.runs[run_id]

    async def config(self, client: Any, run_id: str) -> Mapping[str, Any]:
        self._find(run_id)
        return {
            "run": {"steps": 4},
            "model": {"path": "/models/tiny"},
            "data": {"train": "/data/train.jsonl"},
            "reward": {"rules": {"gsm8k": 1.0}},
            "trainer": {"learning_rate": 1e-5},
        }

    async def checkpoints(self, client: Any, run_id: str) -> tuple[Checkpoint, ...]:
        self._find(run_id)
        return (Checkpoint(2, "/runs/run/checkpoints/2", "aa", True),)

    async def sample_steps(
        self, client: Any, run_id: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        self._find(run_id)
        return (0, 2), self.trained_steps

    async def samples(
        self,
        client: Any,
        run_id: str,
        validation_step: int | None = None,
        trained_step: int | None = None,
        limit: int = 0,
        offset: int = 0,
        choice: Choice = ALL,
    ) -> RunSamples:
        self.calls.append(("samples", client, run_id, validation_step, trained_step, limit, offset))
        self._find(run_id)
        right = RunSample("rows:1", "What is 2 + 3?", "It is 5.", "5", 1.0, {"last_integer": 1.0})
        fault = RunSample("rows:2", "What is 1 + 1?", "[two]", "2", 0.0, {}, "worker gone")
        known = (right, fault, *self.more_samples)
        samples = [replace(sample, place=place) for place, sample in enumerate(known)]
        samples = [one for one in samples if one.fault or not choice.faulted]
        step = trained_step if validation_step is None else validation_step
        page = tuple(samples[offset : offset + limit])
        return RunSamples(
            (0, 2), self.trained_steps, page, len(samples), 2 if step is None else step
        )

    async def question_images(self, client: Any, run_id: str, prompt_id: str) -> Sequence[bytes]:
        return self.images.get(prompt_id, ())

    async def logs(
        self,
        client: Any,
        run_id: str,
        process: str,
        lines: int,
        follow: bool,
        after: int | None = None,
    ) -> AsyncIterator[LogLines]:
        self.calls.append(("logs", client, run_id, process, lines, follow))
        self._find(run_id)
        if process not in ("", *self.with_log):
            raise NotFoundError(f"process: {run_id} has no {process!r}; there are: rollout-0")
        name = process or "launcher"
        begun = [f"line {number} of {name}" for number in range(min(lines or 3, 3))]
        log = self.logged.setdefault(name, begun)
        position = len(log)
        yield LogLines(log[-lines:] if after is None else log[after:], position)
        while follow:
            changed, is_over = self.changed, self.runs[run_id].state.has_ended
            if position < len(log):
                yield LogLines(log[position:], len(log))
                position = len(log)
            elif is_over:
                return
            else:
                await changed.wait()

    def log(self, name: str, line: str) -> None:
        """Writes it."""
        self.logged[name].append(line)
        self.changed.set()
        self.changed = asyncio.Event()

    async def log_names(self, client: Any, run_id: str) -> tuple[str, ...]:
        self._find(run_id)
        return self.with_log

    async def scored_group(self, client: Any, run_id: str, group: int) -> ScoredGroup:
        self._find(run_id)
        if group not in self.scored:
            raise NotFoundError(f"group {group}: its tokens are not there")
        return self.scored[group]

    async def ledger_group(self, client: Any, run_id: str, group: int) -> LedgerAnswer:
        self._find(run_id)
        usual = LedgerAnswer((f"group {group}: issued, trained in step 2",), {"group": group})
        return self.lives.get(group, usual)

    async def ledger_verify(self, client: Any, run_id: str) -> LedgerAnswer:
        self._find(run_id)
        return LedgerAnswer(("the chain is broken at record 7",), {"broken_at": 7}, sound=False)

    async def weights(self, client: Any, run_id: str) -> RunWeights:
        self._find(run_id)
        version = VersionId(0, 7)
        proof = Proof(version, "rollout-0~1", "aa", 10, 3)
        live = VersionRecord(PolicyVersion(run_id, version, "aa"), 10, 1000, 1000.0, (proof,))
        late = ReplicaWeights("rollout-1", "rollout-1", VersionId(0, 6), "no answer")
        return RunWeights(live, (ReplicaWeights("rollout-0", "rollout-0~1", version, ""), late))

    async def timeline(self, client: Any, run_id: str, seconds: float, until: float) -> Timeline:
        self._find(run_id)
        return Timeline((Span("rollout-0", "generating", 1000.0, 1004.0, 1),), 995.0, 1005.0, 900.0)

    async def processes(self, client: Any, run_id: str) -> Mapping[str, str]:
        return {"rollout-0": "here:1", "controller": "here:2"} if run_id == "run" else {}

    async def restarts(self, client: Any, run_id: str) -> Mapping[str, int]:
        return {"rollout-0": 2, "controller": 7}

    async def process_metrics(self, client: Any, run_id: str, process: str) -> str:
        self._find(run_id)
        if process == "controller":
            raise UnavailableError("here:2: nobody answers")
        if process not in await self.processes(client, run_id):
            raise NotFoundError(f"process: {run_id} has no {process!r}")
        return "up 1\n"
