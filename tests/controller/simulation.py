"""Whole lives of a run in virtual time: the controller's own loop between fakes that take random times,
fail, leave and come back, and controllers that are killed in between. Hours pass in milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from services.controller import proofs, router
from services.controller.groups import GroupMaker
from services.controller.proofs import ProofCheck
from services.controller.resuming import resume
from services.controller.router import Router
from services.controller.run import take_over
from services.controller.validation.validation import Validation
from tests.controller.fakes import (
    RUN_ID,
    FakeReporter,
    FakeTrainer,
    conduct,
    digest,
    make_config,
    make_loop,
)
from tests.controller.memory_store import MemoryAnchor, MemoryPayloads, MemoryStore
from tests.controller.virtual_time import now, run_virtually
from trimaran.clients import GroupAssembly, TrainAnswer
from trimaran.config import RunConfig
from trimaran.errors import (
    BehindError,
    DeadlineError,
    InternalError,
    OutOfOrderError,
    StaleEpochError,
    UnavailableError,
    first_error,
)
from trimaran.ledger import retries as patience
from trimaran.ledger.check import check_ledger
from trimaran.ledger.ledger import Retention, RunLedger
from trimaran.ledger.state import LedgerState
from trimaran.ledger.write_pause import HeldError, WritePause
from trimaran.types import (
    Caller,
    Completion,
    Faulted,
    Group,
    PolicyVersion,
    Prefix,
    Prompt,
    Proof,
    Replica,
    Routing,
    Sampling,
    Score,
    Segment,
    TrainingBatch,
    Verdict,
    VersionId,
)

DEADLINE = 20_000.0
"""Virtual seconds of one life of a controller: far more than any of them needs."""
MOST_LIVES = 12
GIB = 1 << 30
GROUP_BYTES = 4_000
"""Of a group's payload, unless the plan says otherwise."""
BYTES_PER_TOKEN = 17
"""Of both completions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in a run; all of it follows from the seed."""

    seed: int
    steps: int = 8
    groups_per_step: int = 2
    max_lag: int = 1
    checkpoint_every: int = 100
    keep_checkpoints: int = 1
    validate_every: int = 0
    """0: never."""
    replaced: float = 0.0
    """Share of groups without a signal, where dynamic sampling replaces them."""
    quota_steps: float | None = None
    """The quota, in steps of groups of GROUP_BYTES each."""
    spread: float = 1.0
    """How many times the largest group has as many bytes as the smallest."""
    large: Mapping[int, float] = field(default_factory=dict[int, float])
    """Groups of so many times GROUP_BYTES, by number."""
    times: tuple[float, ...] = (0.0, 1.0, 4.0)
    """Seconds: how long anything may take."""
    lives: tuple[float, ...] = ()
    """After how many seconds each controller but for the last is killed."""
    ends_at: float | None = None
    """In the last life: when an operator pauses or cancels it."""
    cancels: bool = True
    faults: float = 0.0
    """How often a call fails: of a replica, of the reward service, of weight sync, of the store."""
    moves: float = 0.0
    """How often a replica leaves or comes back, a second."""
    taints: float = 0.0
    """How often weight sync finds a fault in a version that a replica holds or has held, a second."""
    trainer_dies: bool = False
    """With a controller, now and then: it begins from its newest checkpoint again."""

    @property
    def config(self) -> RunConfig:
        quota = self.quota_steps
        run: dict[str, Any] = {
            "steps": self.steps,
            "groups_per_step": self.groups_per_step,
            "max_lag": self.max_lag,
            "checkpoint_every": self.checkpoint_every,
            "keep_checkpoints": self.keep_checkpoints,
            "hold_timeout": 600,
            "max_attempts": 3,
            "seed": self.seed,
        }
        if quota is not None:
            run["payload_quota_gib"] = quota * self.groups_per_step * GROUP_BYTES / GIB
        algorithm: dict[str, Any] = {}
        if self.replaced:
            algorithm["dynamic_sampling"] = {"max_replaced": 2}
        return make_config(
            run=run,
            algorithm=algorithm,
            rollout={"replicas": 2, "group_size": 2, "max_tokens": 4096},
            validation={"every": self.validate_every or 10_000},
            outage_timeout=60,
        )


def draw_plan(seed: int, *kinds: str) -> Plan:
    """Of all that may vary, and of `kinds` what else happens: "quota", "sampling", "kills", "faults", "moves"
    of replicas, "end" by a pause or a cancel."""
    rng = random.Random(seed)
    max_lag, keep_checkpoints = rng.randint(0, 3), rng.randint(1, 2)
    plan = Plan(
        seed=seed,
        steps=rng.randint(2, 12),
        groups_per_step=rng.randint(1, 4),
        max_lag=max_lag,
        checkpoint_every=rng.choice([1, 2, 3, 5, 100]),
        keep_checkpoints=keep_checkpoints,
        validate_every=rng.choice([0, 0, 1, 3]),
        times=rng.choice([(0.0, 1.0, 4.0), (0.0,), (0.0, 0.5, 30.0), (1.0,), (0.0, 0.0, 0.0, 5.0)]),
    )
    if "quota" in kinds:
        # The smallest in which a run can go on: the groups that are alive, those of a step, and of each
        # checkpoint but the newest one those of another; twice, since files hold groups of more than a step.
        spread, num_steps = rng.choice([1.0, 5.0]), max_lag + 1 + keep_checkpoints
        quota = 2 * num_steps * spread
        every = rng.choice([3, 100])
        plan = replace(plan, quota_steps=quota, spread=spread, checkpoint_every=every)
    if "sampling" in kinds:
        plan = replace(plan, replaced=rng.choice([0.3, 0.6]))
    if "kills" in kinds:
        lives = tuple(rng.uniform(0, 30) for _ in range(rng.randint(1, 4)))
        plan = replace(plan, lives=lives, trainer_dies=rng.random() < 0.5)
    if "faults" in kinds:
        plan = replace(plan, faults=rng.choice([0.01, 0.05]))
    if "moves" in kinds:
        plan = replace(plan, moves=rng.choice([0.01, 0.1]), taints=rng.choice([0.0, 0.02, 0.1]))
    if "end" in kinds:
        plan = replace(plan, ends_at=rng.uniform(0, 40), cancels=rng.random() < 0.7)
    return plan


@dataclass(slots=True)
class Report:
    """Outside of all lives."""

    lives: int = 0
    batches: dict[int, list[int]] = field(default_factory=dict)
    """By step, the groups that trained it first."""
    held: list[str] = field(default_factory=list)
    """For want of room."""
    failures: list[str] = field(default_factory=list)
    ended_at: int | None = None
    """Last step whose batch was consumed when an operator ended the run."""
    given_up: bool = False
    """Somebody ended it while a record was held, which is lost then."""
    ahead: int = 0
    lags: list[int] = field(default_factory=list)
    state: LedgerState = field(default_factory=LedgerState)


class Simulation:
    """One run, from its first controller to its last."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.config = plan, plan.config
        self.rng = random.Random(plan.seed)
        self.reported = Report()
        self.store, self.payloads, self.anchor = MemoryStore(), MemoryPayloads(), MemoryAnchor()
        self.proofs: dict[tuple[VersionId, str], Proof] = {}
        self.found: list[Proof] = []
        """Faults."""
        self.makers = {name: name for name in self._names}
        """By replica, what its tokens name."""
        self.live: PolicyVersion | None = None
        self.unroutable: dict[str, str] = {}
        self.drained: set[str] = set()
        self.epoch = 0
        self.events: list[Any] = []
        self.checkpoints: dict[int, str] = {0: "root-0"}
        self.trainer = SimulatedTrainer(self)
        self.weight_sync = self.reward = self
        self.validator = self if plan.validate_every else None
        self.ending, self.cancelled = asyncio.Event(), asyncio.Event()
        self.validations: dict[int, Validation] = {}
        self.is_dead = False

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.choice(self.plan.times))

    def fails(self) -> bool:
        return self.rng.random() < self.plan.faults

    async def run(self) -> Report:
        """To its end, or to the first life that hangs or fails for good."""
        for seconds in (*self.plan.lives, None):
            if await self._live(seconds):
                return self.reported
        # Faults may end a controller: the launcher starts it again.
        while self.reported.lives < MOST_LIVES:
            if await self._live(None):
                return self.reported
        raise AssertionError(f"{MOST_LIVES} controllers have failed: {self.reported.failures}")

    async def _live(self, seconds: float | None) -> bool:
        """Whether the run has come to its end."""
        self.reported.lives += 1
        self.epoch += 1
        self.is_dead = False
        life = asyncio.create_task(self._conduct(self.epoch))
        world = asyncio.create_task(self._move(seconds is None))
        try:
            done, _ = await asyncio.wait([life], timeout=seconds if seconds else DEADLINE)
            if not done and seconds is None:
                self.reported.failures.append(f"stands still: {self.describe()}")
                raise AssertionError(self.reported.failures[-1])
            if done:
                try:
                    return life.result()
                except HeldError:  # it is not started again where an operator has ended it
                    if not self.ending.is_set():
                        raise
                    self.reported.given_up = True
                    return True
                except (UnavailableError, DeadlineError, InternalError) as error:
                    self.reported.failures.append(f"{type(error).__name__}: {error}")
            return False
        finally:
            self.is_dead = True
            world.cancel()
            life.cancel()
            await asyncio.gather(life, world, return_exceptions=True)
            if self.plan.trainer_dies and self.rng.random() < 0.5:
                await self.trainer.die()

    async def _conduct(self, epoch: int) -> bool:
        fake: Any = self
        pause = WritePause(
            self.config.run.hold_timeout,
            self.ending,
            on_hold=lambda text, values: self.reported.held.append(f"{now():g}: {text}"),
        )
        retention = Retention(
            False, self.config.run.payload_quota_gib, self.rng.choice([15, 10_000])
        )
        one_life: Any = OneLife(self)
        ledger = await take_over(
            lambda: RunLedger.open(
                one_life,
                cast(Any, self.payloads),
                RUN_ID,
                anchor=cast(Any, self.anchor),
                retention=retention,
                pause=pause,
            ),
            one_life,
            Caller(RUN_ID, epoch),
            60.0,
        )
        try:
            route = Router(
                fake,
                connect=lambda address: fake.connect(address),
                max_concurrency=self.rng.choice([2, 4, 100]),
                patience=self.config.outage_timeout,
                on_lost=lambda name, reason: None,
                on_back=lambda name: None,
                on_busy=lambda name, start, end: None,
            )
            prover = ProofCheck(fake, self.config.outage_timeout)
            maker = GroupMaker(route, prover, self.config)
            reporter = FakeReporter(self.events, self.validations)
            self.loop = make_loop(self, ledger, route, prover, maker, reporter)
            await conduct(self.loop)
            await self.loop.saver.save()
        except ExceptionGroup as errors:
            raise first_error(errors) from None
        finally:
            await ledger.close()
            self.reported.state = ledger.state
        return True

    async def _move(self, is_last: bool) -> None:
        """Replicas leave and come back; in the last life, an operator cancels."""
        began, ends_at = now(), self.plan.ends_at
        names = self._names
        while True:
            await asyncio.sleep(1.0)
            if is_last and ends_at is not None and now() - began >= ends_at:
                self._end()
            if self.rng.random() < self.plan.moves:
                name = self.rng.choice(names)
                if name in self.unroutable or name in self.drained:
                    self.unroutable.pop(name, None)
                    self.drained.discard(name)
                elif self.rng.random() < 0.3:
                    self.drained.add(name)
                else:
                    self.unroutable[name] = "it is silent"
            if self.rng.random() < self.plan.taints:
                self._find_fault()
            # Whatever was reported or has left is back after a while, as repaired by weight sync.
            if self.rng.random() < 0.2:
                self.unroutable.clear()
                self.drained.clear()

    def _end(self) -> None:
        if self.ending.is_set():
            return
        if loop := getattr(self, "loop", None):
            self.reported.ended_at = max((0, *loop.ledger.state.steps))
        self.ending.set()
        if self.plan.cancels:
            self.cancelled.set()

    @property
    def _names(self) -> list[str]:
        return [f"rollout-{i}" for i in range(self.config.rollout.replicas)]

    def describe(self) -> str:
        loop = getattr(self, "loop", None)
        buffer = getattr(loop, "buffer", None)
        return f"{self.plan}; held {self.reported.held[-1:]}; {buffer and vars(buffer)}"

    # --- what the loop calls -----------------------------------------------------------------

    def connect(self, address: str) -> SimulatedRollout:
        return SimulatedRollout(address.removesuffix(":1"), self)

    async def score_group(self, group: Group, timeout: float) -> tuple[Verdict, ...]:
        await self.pause()
        if self.fails():
            kind = self.rng.randrange(3)
            if kind == 0:
                raise UnavailableError("reward: connection refused")
            if kind == 1:
                raise DeadlineError("reward: frozen")
            return tuple(Faulted("a worker died") for _ in group.completions_G)
        dull = random.Random(f"{self.plan.seed} {group.number}").random() < self.plan.replaced
        return tuple(Score(float(dull or index)) for index, _ in enumerate(group.completions_G))

    async def list_proofs(self, versions: Any) -> tuple[Proof, ...]:
        await self._ask()
        return tuple(p for (version, _), p in self.proofs.items() if version in versions)

    async def list_faults(self, after: int) -> tuple[Proof, ...]:
        await self._ask()
        return tuple(self.found[after:])

    async def get_routing(self) -> Routing:
        await self._ask()
        return self._routing()

    async def report_replica(self, name: str, reason: str) -> None:
        await self._ask()
        self.unroutable[name] = reason

    async def _ask(self) -> None:
        await asyncio.sleep(self.rng.choice([0.0, 0.0, 0.1]))
        if self.fails():
            raise UnavailableError("weight-sync: connection refused")

    def _routing(self) -> Routing:
        gone = self.unroutable.keys() | self.drained
        routable = tuple(Replica(name, f"{name}:1") for name in self._names if name not in gone)
        return Routing(self.live, routable, dict(self.unroutable), frozenset(self.drained))

    async def publish_version(
        self, version: PolicyVersion, timeout: float
    ) -> tuple[Routing, dict[str, float]]:
        assert self.live is None or version.version >= self.live.version
        assert version == self.trainer.policy, "the trainer no longer holds it"
        await self.pause()
        if self.fails():
            raise UnavailableError("weight-sync: restarts")
        assert version == self.trainer.policy, "the trainer no longer holds it"
        self.live = version
        for maker in self.makers.values():
            self._prove(maker)
        return self._routing(), {}

    def _prove(self, maker: str) -> None:
        if live := self.live:
            self.proofs.setdefault(
                (live.version, maker), Proof(live.version, maker, live.root, 4, 4)
            )

    def _find_fault(self) -> None:
        """And fix it at once: tokens from then on name another maker."""
        if not self.proofs:
            return
        key = self.rng.choice(sorted(self.proofs))
        self.proofs[key] = fault = replace(self.proofs[key], fault="block 3 differs")
        self.found.append(fault)
        name = fault.replica.partition("~")[0]
        self.makers[name] = f"{name}~{len(self.found)}"
        self._prove(self.makers[name])

    async def validate(self, step: int, num_samples: int, so_far: Any) -> Validation:
        assert self.live and self.live.version.step == step
        await self.pause()
        return Validation(0.5, 0.5, 0, 1.0)


class OneLife:
    """The run's store, as one controller sees it: after its end nothing of it gets through."""

    def __init__(self, world: Simulation) -> None:
        self._world, self._epoch = world, world.epoch

    async def extend(self, stream: str, values: Any, after: int | None = None) -> int:
        world = self._world
        await asyncio.sleep(world.rng.choice([0.0, 0.0, 0.02]))
        if world.is_dead or self._epoch != world.epoch:
            raise StaleEpochError("a controller that is dead has written")
        if world.fails():
            world.store.faults.append(world.rng.choice(["away", "answer lost"]))
        return await world.store.extend(stream, values, after)

    async def newest_epoch(self, run_id: str) -> int:
        return self._world.epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.store, name)


class SimulatedRollout:
    """Its groups have as many bytes as the plan says."""

    def __init__(self, name: str, world: Simulation) -> None:
        self.name, self.world = name, world

    async def generate(
        self,
        number: int,
        attempt: int,
        prompt: Prompt,
        sampling: Sampling,
        min_version: VersionId,
        assembly: GroupAssembly,
        idle_timeout: float,
        prefix: Prefix | None = None,
    ) -> Group:
        world = self.world
        live = world.live
        assert live and live.version >= min_version
        maker = world.makers[self.name]
        await world.pause()
        if world.fails():
            raise world.rng.choice([UnavailableError("Socket closed"), BehindError("behind")])
        draw = random.Random(f"{number} {world.plan.seed}").random()
        factor = world.plan.large.get(number, 1 + (world.plan.spread - 1) * draw)
        num_tokens = int(GROUP_BYTES * factor / BYTES_PER_TOKEN)
        segment = Segment(0, num_tokens, live.version, maker)
        completions = tuple(
            Completion(
                (int(digest(sampling.seed, index, live.root), 16) % 30000,) * num_tokens,
                (-0.5,) * num_tokens,
                "?",
                "stop",
                (segment,),
            )
            for index in range(sampling.num_samples)
        )
        return Group(number, attempt, replace(prompt, extras={}), (1, 2, 3), completions)

    async def close(self) -> None: ...


class SimulatedTrainer(FakeTrainer):
    """Goes on with its step while controllers come and go."""

    def __init__(self, world: Simulation) -> None:
        super().__init__(world.events, world.checkpoints)
        self.world = world
        self.training: dict[int, asyncio.Task[None]] = {}
        self.writing: asyncio.Task[None] | None = None

    async def die(self) -> None:
        """And start again."""
        tasks = [*self.training.values(), *([self.writing] if self.writing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        world = self.world
        fresh = SimulatedTrainer(world)
        fresh.has_answer = fresh.step == 0
        fresh.loaded = fresh.step
        fresh.lineage = self.lineage
        fresh.ledger = self.ledger
        world.trainer = fresh

    async def _train(self, batch: TrainingBatch) -> None:
        task = self.training.get(batch.step)
        if task is None:
            reported, world = self.world.reported, self.world
            numbers = [scored.group.number for scored in batch.groups]
            assert reported.batches.setdefault(batch.step, numbers) == numbers, "trained by others"
            self.batches.append(batch)
            reported.lags += [
                batch.step - 1 - version.step
                for scored in batch.groups
                for version, _ in scored.group.makers
            ]
            task = self.training[batch.step] = asyncio.create_task(world.pause())
        await asyncio.shield(task)
        self._fail_at_times("trainer: a rank died")

    def _fail_at_times(self, what: str) -> None:
        if self.world.fails():
            raise UnavailableError(what)

    async def train_batch(
        self, batch: TrainingBatch, timeout: float, lineage: int = 0, proofs: Any = ()
    ) -> TrainAnswer:
        answer = await super().train_batch(batch, timeout, lineage, proofs)
        self.training.pop(batch.step, None)
        self.has_answer = True
        return answer

    async def train_ahead(self, batch: TrainingBatch, timeout: float, proofs: Any = ()) -> None:
        self.world.reported.ahead += 1
        await super().train_ahead(batch, timeout, proofs)

    async def begin_checkpoint(
        self, step: int, timeout: float, ledger: Any, score: float | None = None
    ) -> None:
        if self.writing:
            await asyncio.wait([self.writing])
        assert step == self.step
        await asyncio.sleep(self.world.rng.choice([0.0, 0.5]))
        self._fail_at_times(f"checkpoint of step {step}: no room for a copy")
        self.copied = step, self.root, ledger, None
        self.writing = asyncio.create_task(self._write(step, self.root, ledger))

    async def _write(self, step: int, root: str, ledger: Any) -> None:
        await self.world.pause()
        self.checkpoints[step], self.ledger = root, ledger
        for old in sorted(self.checkpoints)[: -self.world.plan.keep_checkpoints]:
            del self.checkpoints[old]

    async def wait_checkpoint(self, step: int, timeout: float) -> str:
        if self.copied is None or self.copied[0] != step or self.writing is None:
            if self.loaded == step:
                return f"checkpoints/step-{step:05d}"
            raise OutOfOrderError(f"checkpoint of step {step}: no save of it has begun")
        await asyncio.shield(self.writing)
        self._fail_at_times(f"checkpoint of step {step}: a rank hangs")
        return f"checkpoints/step-{step:05d}"


@contextlib.contextmanager
def virtual_clock() -> Iterator[None]:
    """For who asks for the time by another name than the event loop's."""
    clock = SimpleNamespace(monotonic=now, time=now)
    with contextlib.ExitStack() as stack:
        for module in (patience, proofs, resume, router):
            stack.enter_context(patch.object(module, "time", clock))
        yield


def simulate(plan: Plan, check: Callable[[Report], None] = lambda reported: None) -> Report:
    """Raises AssertionError where the run stands still, ends at another step than it should, or its ledger
    does not add up."""
    with virtual_clock():
        world = Simulation(plan)
        reported = run_virtually(world.run())
    state = reported.state
    if plan.ends_at is None:
        assert state.step == plan.steps, f"ended at {state.step}"
        assert not state.has_pending_batch
    elif plan.cancels and reported.ended_at is not None:
        assert state.step <= reported.ended_at, (
            f"ended at {reported.ended_at}, trained to {state.step}"
        )
    assert max(reported.lags, default=0) <= plan.max_lag
    numbers = [number for step in sorted(reported.batches) for number in reported.batches[step]]
    assert numbers == sorted(set(numbers)), "out of order, or twice"
    assert set(range(1, state.step + 1)) <= set(reported.batches)
    findings = asyncio.run(
        check_ledger(cast(Any, world.store), cast(Any, world.payloads), RUN_ID, {})
    )
    assert not findings.faults, findings.faults
    assert findings.state.step == state.step or reported.given_up
    if plan.ends_at is None:
        assert not findings.state.groups and not findings.state.unissued
    check(reported)
    return reported
