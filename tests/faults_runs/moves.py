"""What is done to a running run: to whom, and when it is over."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults import orders
from tests.faults_runs.lives import Life
from tests.faults_runs.site import FROZEN_SECONDS, DrivenRun, Site

CALL_SECONDS = 3.0
"""In which a call must come for which there is an order; else its moment never came."""


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

    def __str__(self) -> Done | None:
        return f"{self.kind} {self.method}".strip()


async def kill(site: Site, run: DrivenRun, case: Case, dice: random.Random) -> Done | None:
    life = _pick(site, run, case.victim, dice)
    if life is None:
        return None
    life.send(signal.SIGKILL)
    return Done(life.name, time.monotonic())


async def freeze(site: Site, run: DrivenRun, case: Case, dice: random.Random) -> Done | None:
    """It may go on before anybody notices, or be killed for it."""
    life = _pick(site, run, case.victim, dice)
    if life is None:
        return None
    seconds = dice.uniform(0.2, 1.5 * FROZEN_SECONDS)
    begun = time.monotonic()
    life.send(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    outcome = "goes on" if life.alive else "was killed"
    life.send(signal.SIGCONT)
    return Done(f"{life.name} for {seconds:.1f} s; it {outcome}", begun)


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
    deadline = asyncio.get_running_loop().time() + CALL_SECONDS
    while orders.is_open(folder, life.name):
        if asyncio.get_running_loop().time() > deadline:
            orders.withdraw(folder, life.name)
            return None
        await asyncio.sleep(0.05)
    return Done(f"{life.name}: {case.method}, {case.action}{number}", time.monotonic())


def _pick(site: Site, run: DrivenRun, kind: str, dice: random.Random) -> Life | None:
    names = {
        name: life
        for name, life in site.alive(run).items()
        if name.removeprefix(f"{run.name}.").rstrip("-0123456789") == kind
    }
    return names[dice.choice(sorted(names))] if names else None


CALLS = {
    "reward": ("ScoreGroup",),
    "trainer": ("TrainBatch", "GetPolicyVersion", "GetOffer", "SaveCheckpoint", "SendWeights"),
    "rollout": ("Generate", "StageWeights", "CommitWeights", "ReadBack"),
    "weight-sync": (
        "RegisterReplica",
        "Heartbeat",
        "PublishVersion",
        "GetRouting",
        "ListProofs",
    ),
}
ACTIONS = ("drop", "lose", "delay", "twice", "again")
VICTIMS = ("rollout", "reward", "weight-sync", "trainer", "controller", "launcher")
CASES = (
    *(Case(f"kill {victim}", victim, kill) for victim in VICTIMS),
    *(Case(f"freeze {victim}", victim, freeze) for victim in VICTIMS),
    *(
        Case(f"{action} call", victim, harm_call, method, action)
        for victim, methods in CALLS.items()
        for method in methods
        for action in ACTIONS
    ),
    Case("cut call", "rollout", harm_call, "Generate", "cut"),
)
