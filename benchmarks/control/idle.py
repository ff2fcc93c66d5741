"""How long the trainer waits, at each `max_lag`: SIMULATED, with recorded lengths of answers.

The controller's own `Loop` and `Buffer` run in virtual time. Generation, training and publication
are waits: a completion takes its recorded number of tokens times a constant, a group as long as its
longest completion; engines have room for all groups that hold a slot.

The analytic bound: a group holds one of (max_lag + 1) x B slots while it is generated and until the
step that it trains in has ended. So a step takes at least
(mean latency + seconds of a step) / (max_lag + 1), whatever the order. How much of the difference
is the order's is found with `WindowBuffer`, which may take groups in any order within max_lag.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.control.record_trace import TRACE
from benchmarks.control.window import WindowBuffer
from benchmarks.results_file import Row
from services.controller.buffer import Buffer
from services.controller.loop import Loop
from tests.controller.virtual_time import now, run_virtually
from trimaran.clients import TrainAnswer
from trimaran.config import RunConfig, parse_config
from trimaran.ledger.payloads.quota import Quota
from trimaran.ledger.state import LedgerState
from trimaran.ledger.write_pause import WritePause
from trimaran.types import (
    Completion,
    Group,
    Message,
    PolicyVersion,
    Prompt,
    Routing,
    Score,
    ScoredGroup,
    Segment,
    VersionId,
)

GROUPS_PER_STEP = 32
SECONDS_PER_TOKEN = 0.02
LAGS = (0, 1, 2, 4)
PACES = (0.5, 1.0, 2.0)
"""Seconds of a step over the mean latency of a group."""
STEPS, WARMUP = 100, 20
SEEDS = (1, 2, 3)
EMPTY_SLOTS = (0.0, 0.25, 0.5, 1.0)
"""Of the window, in batches."""
MakeBuffer = Callable[..., Buffer]


def measure_idle(work: Path, quick: bool) -> tuple[list[Row], str]:
    trace = json.loads(TRACE.read_text(encoding="utf-8"))
    latencies = [SECONDS_PER_TOKEN * max(group["tokens"]) for group in trace["groups"]]
    paces, lags, seeds = ((1.0,), (0, 1), SEEDS[:1]) if quick else (PACES, LAGS, SEEDS)
    rows: list[Row] = []
    for pace, max_lag in itertools.product(paces, lags):
        name = f"lag_{max_lag}_step_{pace:g}_of_a_group"
        rows += _compare_orders(name, latencies, pace, max_lag, seeds)
    return rows, (
        f"SIMULATED: the real Loop and Buffer in virtual time, {STEPS - WARMUP} steps of"
        f" {GROUPS_PER_STEP} groups, {len(seeds)} seeds; latencies drawn from a trace"
        f" ({trace['what']}): the longest of a group's completions at {SECONDS_PER_TOKEN:g} s a token"
    )


def _compare_orders(
    name: str, latencies: list[float], pace: float, max_lag: int, seeds: Sequence[int]
) -> list[Row]:
    mean = statistics.fmean(latencies)
    seconds = pace * mean

    def simulate(make: MakeBuffer) -> tuple[float, float]:
        found = [_simulate(latencies, seconds, max_lag, seed, make) for seed in seeds]
        return statistics.median(idle for idle, _ in found), found[0][1]

    idle, lag = simulate(Buffer)
    possible = [empty for empty in EMPTY_SLOTS if empty <= max_lag]
    least_of_windows = min(simulate(partial(WindowBuffer, empty))[0] for empty in possible)
    against_best = (1 - least_of_windows) / (1 - idle)
    bound = _least_idle_share(mean, seconds, max_lag)
    return [
        Row(f"{name}_idle", idle, "share", None, False),
        Row(f"{name}_analytic_bound", bound, "share", None, False),
        Row(f"{name}_mean_lag", lag, "steps", None, False),
        Row(f"{name}_step_against_best_order", against_best, "ratio", 1.2, False),
    ]


def _least_idle_share(mean_latency: float, step_seconds: float, max_lag: int) -> float:
    period = max(step_seconds, (mean_latency + step_seconds) / (max_lag + 1))
    return 1 - step_seconds / period


def _simulate(
    latencies: list[float], step_seconds: float, max_lag: int, seed: int, make: MakeBuffer
) -> tuple[float, float]:
    """The trainer's idle share, and the mean lag of a group."""
    world = World(latencies, step_seconds, max_lag, seed)
    with patch("services.controller.loop.Buffer", make):
        run_virtually(world.loop.run())
    assert max(world.lags) <= max_lag
    seconds = world.ends[-1] - world.ends[WARMUP - 1]
    return 1 - (STEPS - WARMUP) * step_seconds / seconds, statistics.fmean(world.lags)


class World:
    """All that the loop calls."""

    def __init__(
        self,
        latencies: list[float],
        step_seconds: float,
        max_lag: int,
        seed: int,
        publish_seconds: float = 0.0,
        steps: int = STEPS,
        groups_per_step: int = GROUPS_PER_STEP,
    ) -> None:
        self._latencies, self._rng = latencies, random.Random(seed)
        self._step_seconds, self._publish_seconds = step_seconds, publish_seconds
        self._step = 0
        self._num_issued, self._groups_per_step = 0, groups_per_step
        self.most_alive = 0
        """Groups that were issued and whose weights were not live."""
        self.published: list[int] = []
        """Steps, in this order."""
        self.ahead: dict[int, TrainAnswer] = {}
        """By step: trained while the version before was being published."""
        self.ends: list[float] = []
        """When each step's weights were live."""
        self.lags: list[int] = []
        one: Any = self
        self.loop = Loop(
            config=_config(max_lag, steps, groups_per_step),
            prompts=one,
            ledger=_Ledger(),  # type: ignore[arg-type]
            router=one,
            maker=one,
            scorer=one,
            prover=one,
            trainer=one,
            weight_sync=one,
            validator=None,
            reporter=one,
        )

    async def fetch(self, number: int) -> Prompt:
        return Prompt("p", (Message("user", "?"),), "t", "1")

    async def generate(
        self, number: int, prompt: Prompt, sampling: Any, on_issue: Any, **_: Any
    ) -> Group:
        on_issue(1, None)
        self._num_issued += 1
        num_alive = self._num_issued - self._step * self._groups_per_step
        self.most_alive = max(self.most_alive, num_alive)
        version = self.live
        await asyncio.sleep(self._rng.choice(self._latencies))
        answer = Completion((1,), (0.0,), "", "stop", (Segment(0, 1, version, "rollout-0"),))
        return Group(number, 1, prompt, (1,), (answer,))

    async def score(self, group: Group) -> ScoredGroup:
        return ScoredGroup(group, (Score(1.0),))

    @property
    def live(self) -> VersionId:
        return VersionId(0, self._step)

    async def prove(self, groups: Any, live: Any) -> tuple[tuple[()], dict[int, Any]]:
        return (), {}

    async def list_faults(self, after: int) -> tuple[()]:
        return ()

    async def train_batch(self, batch: Any, *_: Any) -> TrainAnswer:
        for scored in batch.groups:
            [(version, _)] = scored.group.makers
            self.lags.append(batch.step - 1 - version.step)
        await asyncio.sleep(self._step_seconds)
        return TrainAnswer(_policy(batch.step), {})

    async def train_ahead(self, batch: Any, *_: Any) -> None:
        self.ahead[batch.step] = await self.train_batch(batch)

    async def make_version(self, step: int, *_: Any) -> TrainAnswer:
        assert self._step == step - 1, "the version before is not live"
        return self.ahead[step]

    def training(self, step: int) -> nullcontext[None]:
        return nullcontext()

    def progress(self, text: str) -> None: ...

    async def written(self) -> None: ...

    async def publish_version(self, version: PolicyVersion, timeout: float) -> Any:
        await asyncio.sleep(self._publish_seconds)
        self._step = version.version.step
        self.published.append(self._step)
        self.ends.append(now())
        return Routing(version, ()), {}

    async def update(self, routing: Routing) -> None: ...

    def cut_activities(self) -> None: ...

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def step(self, *_: Any) -> float:
        return 0.0

    @property
    def paused(self) -> asyncio.Event:
        return asyncio.Event()


class _Ledger:
    """In memory: virtual time has no threads."""

    def __init__(self) -> None:
        self.state = LedgerState()
        self.quota = Quota(None, WritePause(0))

    def record(self, record: Any) -> None:
        self.state.apply(record)

    def keep(self, data: bytes, digest: str = "") -> str:
        return ""

    def is_filled(self, share: float, num_groups: float = 0) -> bool:
        return False

    async def until_room(self, num_bytes: int, ask: Any) -> None: ...

    async def flush(self) -> None: ...


def _config(max_lag: int, steps: int, groups_per_step: int) -> RunConfig:
    return parse_config(
        {
            "run": {
                "steps": steps,
                "groups_per_step": groups_per_step,
                "max_lag": max_lag,
                "checkpoint_every": steps + 1,
            },
            "model": {"path": "unused"},
            "data": {"train": "unused"},
            "reward": {"rules": {"exact_match": 1.0}},
        }
    )


def _policy(step: int) -> PolicyVersion:
    return PolicyVersion("run", VersionId(0, step), f"root-{step}")
