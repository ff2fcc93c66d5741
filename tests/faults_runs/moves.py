"""What is done to the processes, the calls and the goals of a run."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.manager.reconcile import TIMES
from services.manager.serve import WAIT_SECONDS
from tests.faults import orders
from tests.faults.replaced import Broken
from tests.faults_runs.lives import Life
from tests.faults_runs.site import (
    FROZEN_SECONDS,
    LAUNCHER,
    MANAGER,
    REDIS,
    START_SECONDS,
    DrivenRun,
    Site,
)
from trimaran.errors import StateError, TrimaranError
from trimaran.run.lease import LEASE_SECONDS
from trimaran.run.runs import RunState

CALL_SECONDS = 3.0
"""In which a call must come for which there is an order; else its moment never came."""
BUSY_SECONDS = 8.0
"""What two busy cores add to the times that the product states."""
AWAY_SECONDS = (0.1, 2.0)
"""Until who supervises the manager or Redis has started it again."""


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was made."""

    what: str
    begun: float
    """On the monotonic clock."""


Act = Callable[[Site, DrivenRun, "Case", random.Random], Awaitable[Done | None]]
"""None when the moment for it never came."""


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    """As the table of recovery times has it."""
    victim: str
    """A kind of process."""
    act: Act
    method: str = ""
    action: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.method}".strip()


async def kill(site: Site, run: DrivenRun, case: Case, dice: random.Random) -> Done | None:
    if case.victim == REDIS:
        return await _kill_redis(site, dice)
    life = _pick(site, run, case.victim, dice)
    if life is None:
        return None
    begun = time.monotonic()
    life.send(signal.SIGKILL)
    if case.victim == MANAGER:
        await asyncio.sleep(dice.uniform(*AWAY_SECONDS))
        site.start_manager()
    return Done(life.name, begun)


async def _kill_redis(site: Site, dice: random.Random) -> Done:
    assert site.redis
    begun = time.monotonic()
    await asyncio.to_thread(site.redis.kill)
    await asyncio.sleep(dice.uniform(*AWAY_SECONDS))
    await asyncio.to_thread(site.redis.start)
    return Done(REDIS, begun)


async def freeze(site: Site, run: DrivenRun, case: Case, dice: random.Random) -> Done | None:
    """It may go on before anybody notices, or be killed for it."""
    begun, seconds = time.monotonic(), dice.uniform(0.2, 1.5 * FROZEN_SECONDS)
    if case.victim == REDIS:
        assert site.redis
        site.redis.freeze()
        await asyncio.sleep(seconds)
        site.redis.thaw()
        return Done(f"{REDIS} for {seconds:.1f} s", begun)
    life = _pick(site, run, case.victim, dice)
    if life is None:
        return None
    life.send(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    outcome = "goes on" if life.alive else "was killed"
    life.send(signal.SIGCONT)
    return Done(f"{life.name} for {seconds:.1f} s; it {outcome}", begun)


async def stay_frozen(site: Site, run: DrivenRun, case: Case, dice: random.Random) -> Done | None:
    """Nothing lets it go on. Raises Broken unless it is found and killed in time."""
    life = _pick(site, run, case.victim, dice)
    if life is None:
        return None
    begun, limit = time.monotonic(), await _noticed_seconds(site, run, life, case.victim)
    life.send(signal.SIGSTOP)
    while life.alive:
        if time.monotonic() - begun > limit:
            raise Broken(f"{life.name} is {life.status} after {limit:g} s: nobody has noticed")
        await asyncio.sleep(0.1)
    return Done(f"{life.name} was killed after {time.monotonic() - begun:.1f} s", begun)


async def _noticed_seconds(site: Site, run: DrivenRun, life: Life, victim: str) -> float:
    """In which it must be killed that stays frozen from now on."""
    if victim == MANAGER:
        return site.supervisor.patience + BUSY_SECONDS
    if victim != LAUNCHER:
        return 1.5 * FROZEN_SECONDS + BUSY_SECONDS  # a round of questions is half as long
    if not await run.has_lease(life):
        return TIMES.first_lease + BUSY_SECONDS
    # Who notices may just be started again itself, from a fault before.
    return LEASE_SECONDS + TIMES.lapse + WAIT_SECONDS + BUSY_SECONDS


async def harm_call(site: Site, run: DrivenRun, case: Case, dice: random.Random) -> Done | None:
    life = _pick(site, run, case.victim, dice)
    if life is None:
        return None
    number = {
        "delay": f" {dice.uniform(0.2, 3):.2f}",
        "again": f" {dice.uniform(0.05, 2):.2f}",
        "cut": f" {dice.randrange(1, 20)}",
    }.get(case.action, "")
    folder = site.folder / "orders"
    orders.give(folder, life.name, case.method, case.action + number, dice.randrange(3))
    deadline = time.monotonic() + CALL_SECONDS
    while orders.is_open(folder, life.name):
        if time.monotonic() > deadline:
            orders.withdraw(folder, life.name)
            return None
        await asyncio.sleep(0.05)
    return Done(f"{life.name}: {case.method}, {case.action}{number}", time.monotonic())


async def pause(site: Site, run: DrivenRun, case: Case, dice: random.Random) -> Done | None:
    """Paused, and after a moment resumed."""
    begun = time.monotonic()
    try:
        await _insist(lambda: site.client.pause_run(run.name))
        async with asyncio.timeout(2 * START_SECONDS):
            while run.run.state not in (RunState.PAUSED, RunState.SUCCEEDED):
                await asyncio.sleep(0.1)
                await site.look()
        await asyncio.sleep(dice.uniform(0, 1))
        await _insist(lambda: site.client.resume_run(run.name))
    except StateError:
        return None  # it has just ended
    return Done(f"{run.name} is paused and resumed", begun)


async def cancel(site: Site, run: DrivenRun) -> Done | None:
    """The last that happens to a run; None where it has ended before."""
    begun = time.monotonic()
    try:
        await _insist(lambda: site.client.cancel_run(run.name))
    except StateError:
        return None
    run.wanted = (RunState.CANCELLED, RunState.SUCCEEDED)  # the step under way may be the last one
    return Done(f"{run.name} is cancelled", begun)


async def scale(site: Site, run: DrivenRun, case: Case, dice: random.Random) -> Done | None:
    begun, number = time.monotonic(), dice.choice((1, 2, 3, 4))
    try:
        await _insist(lambda: site.client.scale_run(run.name, number, number))
    except StateError:
        return None
    run.setting.num_replicas = number
    return Done(f"{run.name} has {number} replicas", begun)


async def _insist(ask: Callable[[], Awaitable[object]]) -> None:
    """The manager may be away."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                await ask()
                return
            except StateError:
                raise
            except TrimaranError:
                await asyncio.sleep(0.2)


def _pick(site: Site, run: DrivenRun, kind: str, dice: random.Random) -> Life | None:
    names = {
        name: life for name, life in site.alive(run).items() if name.rstrip("-0123456789") == kind
    }
    return names[dice.choice(sorted(names))] if names else None


CALLS = {
    MANAGER: ("GetRun",),
    "controller": ("GetStatus", "SetGoal"),
    "reward": ("ScoreGroup",),
    "trainer": (
        "Train",
        "TrainAhead",
        "MakeVersion",
        "GetPolicyVersion",
        "GetOffer",
        "SaveCheckpoint",
        "WaitCheckpoint",
        "SendWeights",
    ),
    "rollout": ("Generate", "StageWeights", "CommitWeights", "ReadBack"),
    "weight-sync": (
        "RegisterReplica",
        "Heartbeat",
        "PublishVersion",
        "GetRouting",
        "ListProofs",
        "ListFaults",
    ),
}
ACTIONS = ("drop", "lose", "delay", "twice", "again")
VICTIMS = ("rollout", "reward", "weight-sync", "trainer", "controller", LAUNCHER, MANAGER, REDIS)
CASES = (
    *(Case(f"kill {victim}", victim, kill) for victim in VICTIMS),
    *(Case(f"freeze {victim}", victim, freeze) for victim in VICTIMS),
    *(Case(f"frozen {victim}", victim, stay_frozen) for victim in VICTIMS[:7]),
    *(
        Case(f"{action} call", victim, harm_call, method, action)
        for victim, methods in CALLS.items()
        for method in methods
        for action in ACTIONS
    ),
    Case("cut call", "rollout", harm_call, "Generate", "cut"),
    Case("pause and resume", "", pause),
    Case("scale", "", scale),
)
