"""The seeded fault driver of whole runs: `python -m tests.faults_runs --seed 1 --runs 2 --faults 10`.

A real manager with real launchers, processes, gRPC, ledgers and weight plane; a stand-in engine and a
stand-in policy. One fault after another at random moments; the runs must go on by themselves and end
as they should. What `judge.py` finds wrong afterwards is reported, with exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.contract_run.results import commit
from tests.faults.replaced import Broken
from tests.faults_runs import judge, moves, results
from tests.faults_runs.moves import Case, Done
from tests.faults_runs.reported import Harm
from tests.faults_runs.site import REDIS, DrivenRun, Setting, Site
from trimaran.wire import rpc

RECOVERY_SECONDS = 90.0
"""For the next step to be trained and every process to be back. Longer is a hang."""
END_SECONDS = 120.0
"""For the runs to end once nothing harms them any more."""
POLL_SECONDS = 0.1
MAX_DEATHS = 3
"""Of one kind of process in one run: who dies again and again is given up."""
PAUSE_SECONDS = 2.5
"""At most, between a recovery, which ends as a step is committed, and the next fault: it shall fall
anywhere in a step."""
DEADLY = ("kill", "freeze", "frozen")
STEPS_PER_FAULT = 8
"""More than there are between two faults: a run must not end before the last of them."""
CANCELLED = 0.15
"""Share of the sites where a run is cancelled in the end."""
PATIENCE = 0.75
"""Share of the faults whose recovery is waited for before the next comes."""


@dataclass(slots=True)
class Report:
    seed: int
    store: str
    commit: str
    """Of the code, as it was when the driver began."""
    num_runs: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    """Kind of fault -> seconds of each."""
    chosen: Counter[str] = field(default_factory=Counter)
    """How often each kind was chosen: the rarest come first."""
    wrong: list[str] = field(default_factory=list)
    num_tokens: int = 0
    """Trained, and each compared with the weights that made it."""
    num_steps: int = 0

    @property
    def num_faults(self) -> int:
        return sum(map(len, self.recoveries.values()))


async def drive(report: Report, arguments: argparse.Namespace, folder: Path) -> None:
    """One site after the other, with one or two runs each."""
    number = 0
    began = time.monotonic()
    while report.num_runs < arguments.runs and time.monotonic() - began < arguments.seconds:
        seed = arguments.seed * 1000 + number
        dice = random.Random(seed)
        num_runs = min(dice.choice((1, 1, 2)), arguments.runs - report.num_runs)
        place, before = folder / f"site-{seed}", len(report.wrong)
        await drive_site(report, arguments, place, seed, dice, num_runs)
        if arguments.results:
            results.add(arguments.results, report)
        if len(report.wrong) == before:
            shutil.rmtree(place)
        number += 1


async def drive_site(
    report: Report,
    arguments: argparse.Namespace,
    folder: Path,
    seed: int,
    dice: random.Random,
    num_runs: int,
) -> None:
    site = Site(folder, seed, report.store)
    began = time.monotonic()
    wrong: list[str] = []
    try:
        await site.open()
        for _ in range(num_runs):
            lag, ranks, replicas = dice.choice((0, 1, 2)), dice.choice((1, 2)), dice.choice((2, 3))
            setting, harm = (
                Setting(lag, ranks, replicas),
                dice.choice(("", "drop", "lose", "twice")),
            )
            run = await site.submit(setting, STEPS_PER_FAULT * arguments.faults + 2, harm)
            print(f"site {seed}: {run.name}: {report.store}, {run.setting}", flush=True)
        driver = Driver(site, dice, report, arguments.only)
        await driver.until(
            lambda: all(run.step or run.has_ended for run in site.runs), "the first steps"
        )
        await driver.harm(arguments.faults * num_runs)
        site.set_pace(0)
        if dice.random() < CANCELLED:
            await driver.cancel(dice.choice(site.runs))
        await driver.until(
            lambda: all(run.has_ended for run in site.runs), "the runs' ends", END_SECONDS
        )
        names = [run.run_id async for run in site.client.list_runs()]
        if sorted(names) != sorted(run.name for run in site.runs):
            wrong.append(f"the manager has the runs {names}")
        for run in site.runs:
            wrong += await judge.find_wrong(site, run, report)
    except Exception as error:
        traceback.print_exc()
        wrong.append(f"{type(error).__name__}: {error}")
    finally:
        wrong += [f"left: {what}" for what in await site.close()]
    if all(run.has_ended for run in site.runs):
        wrong += judge.find_left(site)
    report.wrong += [f"site {seed}: {what}" for what in wrong]
    report.num_runs += num_runs
    print(f"site {seed}: {time.monotonic() - began:.1f} s", *wrong, sep="\n  ", flush=True)


class Driver:
    """Harms the runs of one site."""

    def __init__(self, site: Site, dice: random.Random, report: Report, only: str) -> None:
        self._site, self._dice, self._report = site, dice, report
        self._deaths: Counter[tuple[str, str]] = Counter()
        self._seen = report.chosen
        self._cases = [
            case
            for case in moves.CASES
            if only in str(case) and (case.victim != REDIS or site.redis)
        ]
        self._watching: set[asyncio.Task[None]] = set()

    async def harm(self, count: int) -> None:
        try:
            await self._harm_all(count)
            for watching in self._watching:
                await watching
        finally:
            for watching in self._watching:
                watching.cancel()
            await asyncio.gather(*self._watching, return_exceptions=True)

    async def _harm_all(self, count: int) -> None:
        made = 0
        while made < count:
            await asyncio.sleep(self._dice.uniform(0, PAUSE_SECONDS))
            await self._site.look()
            going = [run for run in self._site.runs if not run.has_ended]
            if not going:
                break
            made += await self._harm(self._dice.choice(going))

    async def _harm(self, run: DrivenRun) -> bool:
        case = self._choose(run)
        run.harms.append(Harm(case.kind, time.time()))
        done = await case.act(self._site, run, case, self._dice)
        if done is None:  # its moment never came
            return False
        if case.kind.startswith(DEADLY):
            self._deaths[run.name, case.victim] += 1
        await self._site.look()
        watching = asyncio.create_task(self._recover(run, case, done, run.step))
        self._watching.add(watching)
        if self._dice.random() < PATIENCE:
            await watching
        return True

    async def cancel(self, run: DrivenRun) -> None:
        if done := await moves.cancel(self._site, run):
            await self.until(lambda: run.has_ended, "the end of a run that was cancelled")
            self._note("cancel", done)

    def _choose(self, run: DrivenRun) -> Case:
        good = [case for case in self._cases if self._deaths[run.name, case.victim] < MAX_DEATHS]
        if not good:
            raise Broken("no fault is left to make; give fewer --faults or no --only")
        kinds = sorted({case.kind for case in good})
        rarest = min(self._seen[kind] for kind in kinds)
        kind = self._dice.choice([kind for kind in kinds if self._seen[kind] == rarest])
        self._seen[kind] += 1
        return self._dice.choice([case for case in good if case.kind == kind])

    async def _recover(self, run: DrivenRun, case: Case, done: Done, step: int) -> None:
        await self.until(lambda: run.step > step or run.has_ended, f"a step after {done.what}")
        while not run.has_ended and not await self._is_whole(run):
            if time.monotonic() - done.begun > RECOVERY_SECONDS:
                raise Broken(
                    f"{done.what}: after {RECOVERY_SECONDS:g} s {self._missing(run)} is missing"
                )
            await asyncio.sleep(POLL_SECONDS)
            await self._site.look()
        self._note(case.kind, done)

    def _note(self, kind: str, done: Done) -> None:
        seconds = time.monotonic() - done.begun
        self._report.recoveries.setdefault(kind, []).append(round(seconds, 2))
        number = self._report.num_faults
        print(f"  {number:4d} {kind}: {done.what}; {seconds:.2f} s", flush=True)

    def _missing(self, run: DrivenRun) -> set[str]:
        return {"manager", *run.processes} - set(self._site.alive(run))

    async def _is_whole(self, run: DrivenRun) -> bool:
        """Every process lives and answers."""
        if self._missing(run):
            return False
        endpoints = run.config.endpoints
        addresses = [
            endpoints.controller,
            endpoints.reward,
            endpoints.weight_sync,
            *endpoints.trainer,
            *endpoints.rollout[: run.setting.num_replicas],
        ]
        trust = run.context.trust
        answers = await asyncio.gather(
            rpc.is_serving(self._site.address, 1.0),
            *(rpc.is_serving(str(address), 1.0, trust) for address in addresses),
        )
        return all(answers)

    async def until(
        self, condition: Callable[[], bool], what: str, seconds: float = RECOVERY_SECONDS
    ) -> None:
        """Raises Broken: a hang."""
        deadline = time.monotonic() + seconds
        while True:
            await self._site.look()
            if condition():
                return
            if time.monotonic() > deadline:
                states = [f"{run.name} {run.run.state} at {run.step}" for run in self._site.runs]
                raise Broken(f"waited {seconds:g} s in vain for {what}: {', '.join(states)}")
            await asyncio.sleep(POLL_SECONDS)


def main(folder: Path) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults_runs", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--faults", type=int, default=10, help="in each run")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="after which no further run begins"
    )
    parser.add_argument("--store", choices=("sqlite", "redis"), default="sqlite")
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument("--results", type=Path, help="a JSON file to which the figures are added")
    arguments = parser.parse_args()
    figures = Path("benchmarks/results")  # they change meanwhile
    report = Report(arguments.seed, arguments.store, commit(figures))
    started = time.monotonic()
    asyncio.run(drive(report, arguments, folder))
    print(
        f"{report.num_faults} faults in {report.num_runs} runs, {time.monotonic() - started:.0f} s;"
        f" seed {arguments.seed}, {arguments.store}; {report.num_steps} steps, {report.num_tokens} tokens"
    )
    print(*results.table(report.recoveries), sep="\n")
    for what in report.wrong:
        print(f"WRONG: {what}")
    if report.wrong:
        print(f"see {folder}")
        return 1
    shutil.rmtree(folder)
    return 0
