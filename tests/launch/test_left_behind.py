"""Whose restarts it costs when a rank ends because another one was replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest

from commands.launch.children import Child
from commands.launch.processes import Processes
from commands.launch.restarts import Restarts
from commands.launch.service_process import Exit, ServiceDiedError, ServiceProcess
from tests.launch.services import make_services
from trimaran.run.exits import LEFT_BEHIND, TRY_AGAIN

TWICE = partial(Restarts, first_pause=0.0, max_in_a_row=2)
RANKS = ("trainer-0", "trainer-1", "trainer-2")


class Report:
    """Children that end as the test says."""

    def __init__(self) -> None:
        self.exits: asyncio.Queue[Exit] = asyncio.Queue()
        self.alive: dict[str, Child] = {}

    async def open(self) -> None: ...

    async def start(self, service: ServiceProcess) -> None: ...

    def can_start(self, name: str) -> bool:
        return True

    async def end(self, names: Iterable[str], seconds: float) -> None: ...

    def kill(self, name: str) -> None: ...

    def kill_all(self) -> None: ...

    async def close(self) -> None: ...


def live_through(folder: Path, ends: Sequence[tuple[str, int]]) -> None:
    """Raises ServiceDiedError where the run does not outlive all of them."""

    async def run() -> None:
        children = Report()
        services = make_services(folder, dict.fromkeys(("controller", *RANKS), "run"))
        by_name = {service.name: service for service in services}
        async with Processes(services, restarts=TWICE, children=children) as processes:
            processes.running = True
            for name, code in (*ends, ("controller", 0)):
                children.exits.put_nowait(Exit(by_name[name], code, 1.0, lines=()))
            await processes.wait(print)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_deaths_of_others_cost_a_rank_nothing(tmp_path: Path) -> None:
    others = [("trainer-0", TRY_AGAIN), ("trainer-2", TRY_AGAIN)] * 2
    behind = [("trainer-1", LEFT_BEHIND)] * 2
    own = ("trainer-1", TRY_AGAIN)
    ends = [each for other in others for each in (other, *behind)]
    live_through(tmp_path, [*ends, own, own])
    with pytest.raises(ServiceDiedError, match=f"trainer-1 died .exit code {TRY_AGAIN}"):
        live_through(tmp_path, [*ends, own, own, own])


def test_ranks_that_leave_each_other_behind_for_ever_end_the_run(tmp_path: Path) -> None:
    behind = [("trainer-0", LEFT_BEHIND), ("trainer-1", LEFT_BEHIND)]
    live_through(tmp_path, behind * 2)
    with pytest.raises(ServiceDiedError, match=f"trainer-0 died .exit code {LEFT_BEHIND}"):
        live_through(tmp_path, behind * 3)
