"""The seeded fault driver of whole runs: `python -m tests.faults_runs --seed 1 --runs 2 --faults 10`.

Real processes, real gRPC, real ledger and weight plane; a stand-in engine and a stand-in policy. One
fault after another at random moments; the run must go on by itself and end as it should. What
`judge.py` finds wrong afterwards is reported, with exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults_runs import judge, moves
from tests.faults_runs.moves import Case, Done
from tests.faults_runs.site import DrivenRun, Setting, Site
from trimaran import rpc

RECOVERY_SECONDS = 60.0
"""For the next step to be trained and every process to be back. Longer is a hang."""
END_SECONDS = 120.0
"""For a run to end once nobody harms it any more."""
POLL_SECONDS = 0.1
MAX_DEATHS = 3
"""Of one process in one run: the launcher gives up one that dies again and again."""


class Broken(AssertionError):
    """The run does not do what it should."""


@dataclass(slots=True)
class Report:
    seed: int
    num_runs: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    num_missed: int = 0
    num_tokens: int = 0

    @property
    def num_faults(self) -> int:
        return sum(map(len, self.recoveries.values()))


async def drive(report: Report, arguments: argparse.Namespace, folder: Path) -> None:
    for number in range(arguments.runs):
        seed = arguments.seed * 1000 + number
        place = folder / f"run-{seed}"
        before = len(report.wrong)
        await drive_run(report, arguments, place, seed)
        if len(report.wrong) == before:
            shutil.rmtree(place)


async def drive_run(report: Report, arguments: argparse.Namespace, folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    setting = Setting(
        arguments.store, dice.choice((0, 1, 2)), dice.choice((1, 2)), dice.choice((2, 3))
    )
    site = Site(folder, seed)
    print(f"run {seed}: {setting}", flush=True)
    began = time.monotonic()
    try:
        run = site.start("r", setting, 3 * arguments.faults + 2)
        driven = Driven(site, run, dice, report, arguments.only)
        await driven.until_running()
        await driven.harm(arguments.faults)
        await driven.until_ended()
        wrong = await judge.find_wrong(site, run)
        report.wrong += [f"run {seed}: {what}" for what in wrong]
        await run.close()
    except Exception as error:
        traceback.print_exc()
        report.wrong.append(f"run {seed}: {type(error).__name__}: {error}")
    finally:
        left = await site.close()
        report.wrong += [f"run {seed}: left: {what}" for what in left]
    report.num_runs += 1
    print(f"run {seed}: {time.monotonic() - began:.1f} s", flush=True)


class Driven:
    def __init__(
        self, site: Site, run: DrivenRun, dice: random.Random, report: Report, only: str
    ) -> None:
        self._site, self._run, self._dice, self._report = site, run, dice, report
        self._deaths: Counter[str] = Counter()
        self._cases = [case for case in moves.CASES if only in str(case)]
        self._watching: set[asyncio.Task[None]] = set()

    async def until_running(self) -> None:
        await self._until(lambda: self._run.step > 0 or self._ended, "the first step")

    async def harm(self, count: int) -> None:
        made = 0
        while made < count:
            await asyncio.sleep(self._dice.uniform(0, 0.6))
            case = self._choose()
            if self._ended or case is None:
                break
            done = await case.act(self._site, self._run, case, self._dice)
            if done is None:
                self._report.num_missed += 1
                continue
            made += 1
            await self._run.read()
            step = self._run.step
            if case.kind.startswith(("kill", "freeze")):
                self._deaths[case.victim] += 1
            if case.kind == "kill launcher":
                await self._start_again()
            watching = asyncio.create_task(self._recover(case, done, step))
            self._watching.add(watching)
            if self._dice.random() < 0.75:
                await watching
        for watching in self._watching:
            await watching

    def _choose(self) -> Case:
        kinds = sorted(
            {case.kind for case in self._cases if self._deaths[case.victim] < MAX_DEATHS}
        )
        kind = self._dice.choice(kinds)
        return self._dice.choice([case for case in self._cases if case.kind == kind])

    async def _start_again(self) -> None:
        await self._until(lambda: not self._site.alive(self._run), "its processes to end")
        self._site.resume(self._run)

    async def _recover(self, case: Case, done: Done, step: int) -> None:
        await self._until(lambda: self._run.step > step or self._ended, f"a step after {done.what}")
        while not self._ended and not await self._whole():
            if time.monotonic() - done.begun > RECOVERY_SECONDS:
                raise Broken(
                    f"{RECOVERY_SECONDS:g} s after {done.what}: {self._missing()} is missing"
                )
            await asyncio.sleep(POLL_SECONDS)
        seconds = time.monotonic() - done.begun
        self._report.recoveries.setdefault(case.kind, []).append(round(seconds, 2))
        print(
            f"  {self._report.num_faults:4d} {case.kind}: {done.what}; {seconds:.2f} s", flush=True
        )

    def _missing(self) -> set[str]:
        return set(self._run.processes) - set(self._site.alive(self._run))

    async def _whole(self) -> bool:
        """Every process lives and answers."""
        await self._run.read()
        if self._missing():
            return False
        endpoints = self._run.config.endpoints
        addresses = [
            endpoints.controller,
            endpoints.reward,
            endpoints.weight_sync,
            *endpoints.trainer,
            *endpoints.rollout,
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                for address in addresses:
                    tasks.create_task(rpc.wait_until_serving(str(address), 1.0))
        except ExceptionGroup:
            return False
        return True

    async def until_ended(self) -> None:
        await self._until(lambda: self._ended, "the end of the run", END_SECONDS)

    @property
    def _ended(self) -> bool:
        return self._site.exit_code(self._run) is not None

    async def _until(self, condition, what: str, seconds: float = RECOVERY_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while True:
            await self._run.read()
            if condition():
                return
            if time.monotonic() > deadline:
                raise Broken(f"waited {seconds:g} s in vain for {what}")
            await asyncio.sleep(POLL_SECONDS)


def main(folder: Path) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults_runs", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--faults", type=int, default=10, help="in each run")
    parser.add_argument("--store", choices=("sqlite", "redis"), default="sqlite")
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    arguments = parser.parse_args()
    report = Report(arguments.seed)
    started = time.monotonic()
    asyncio.run(drive(report, arguments, folder))
    print(
        f"{report.num_faults} faults in {report.num_runs} runs, {time.monotonic() - started:.0f} s;"
        f" {report.num_missed} whose moment never came; seed {arguments.seed}"
    )
    for kind, seconds in sorted(report.recoveries.items()):
        ordered = sorted(seconds)
        print(f"  {len(ordered):4d} {kind}: median {ordered[len(ordered) // 2]}, max {ordered[-1]}")
    for what in report.wrong:
        print(f"WRONG: {what}")
    if report.wrong:
        print(f"see {folder}")
        return 1
    shutil.rmtree(folder)
    return 0
