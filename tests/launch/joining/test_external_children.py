"""Services that register: awaited, taken in, lost, and asked to end. The records are written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from commands.launch.joining.external_children import ExternalChild, ExternalChildren
from commands.launch.joining.service_records import ServiceRecord
from commands.launch.service_process import Exit, ServiceDiedError, ServiceProcess
from trimaran.run.runs import service_key, stop_key
from trimaran.store import Store, open_store

RUN = "demo-1"


@dataclass
class Site:
    """Example: `await site.put("rollout-0", "life-1")`"""

    store: Store
    children: ExternalChildren

    async def open(self) -> None:
        """And has looked around once: what writes from now on is heard."""
        await self.children.open()
        await self.looks()

    async def put(self, name: str, life: str, **more: object) -> None:
        record = ServiceRecord(name, life, "10.0.0.7:1", is_up=True)
        record = replace(record, **more)  # type: ignore[arg-type]
        await self.store.put(service_key(RUN, name), record.to_tree())

    async def start(self, name: str, *beside: str) -> None:
        """`beside`: the other processes of a replica on several hosts."""
        expendable = name.startswith(("rollout", "follower"))
        others = frozenset(beside)
        await self.children.start(
            ServiceProcess(name, (), {}, Path(name), expendable=expendable, takes_along=others)
        )

    async def up(self, name: str, life: str, *beside: str) -> None:
        """Started, registered and taken in."""
        await self.start(name, *beside)
        await self.put(name, life)
        await self.here(name, life)

    async def here(self, name: str, life: str) -> ExternalChild:
        while name not in self.children.alive or self.children.alive[name].incarnation != life:
            await asyncio.sleep(0.01)
        return self.children.alive[name]

    async def looks(self, count: int = 3) -> None:
        await asyncio.sleep(0.05 * count)

    async def exit(self) -> Exit:
        return await self.children.exits.get()


@asynccontextmanager
async def opened(folder: Path, start_timeout: float = 20.0) -> AsyncGenerator[Site]:
    store = await open_store(f"sqlite:{folder / 'run.sqlite'}")
    children = ExternalChildren(store, RUN, start_timeout, look=0.05)
    try:
        async with asyncio.timeout(30):
            yield Site(store, children)
    finally:
        await children.close()
        await store.close()


async def test_who_never_registers_has_not_started_and_that_is_said(tmp_path: Path) -> None:
    async with opened(tmp_path, 0.1) as site:
        await site.open()
        await site.start("trainer-0")
        ended = await site.exit()
        assert (ended.code, ended.left) == (127, False)
        text = str(ServiceDiedError(ended, started=False))
        assert "trainer-0 died at start (it has not registered for 0.1 s" in text
        assert "its whole log: that of trainer-0 on its host" in text


async def test_a_replica_that_does_not_come_back_leaves_without_a_strike(tmp_path: Path) -> None:
    async with opened(tmp_path, 0.5) as site:
        await site.open()
        await site.up("rollout-0", "life-1")
        await site.put("rollout-0", "life-1", code=1, lines=("error: no memory",))
        ended = await site.exit()
        assert (ended.code, ended.left, ended.last_lines()) == (1, False, ["error: no memory"])
        await site.start("rollout-0")
        ended = await site.exit()
        assert ended.left and "has not registered" in ended.how


async def test_a_replica_that_its_engine_takes_away_has_left(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        await site.open()
        for name in ("rollout-0", "reward"):
            await site.up(name, f"life of {name}")
            await site.put(name, f"life of {name}", code=-15)
        exits = {ended.service.name: ended for ended in [await site.exit(), await site.exit()]}
        assert exits["rollout-0"].left and not exits["reward"].left
        assert exits["reward"].how == "killed by SIGTERM"


async def test_a_replica_on_several_hosts_leaves_as_one_on_a_single_host_does(
    tmp_path: Path,
) -> None:
    """`Processes` ends the others, and takes it in again when all of them are back."""
    async with opened(tmp_path, 0.5) as site:
        await site.open()
        await site.up("follower-0", "life-1", "rollout-0")
        await site.put("follower-0", "life-1", code=-15)
        assert (await site.exit()).left
        assert not site.children.can_start("follower-0")
        await site.start("follower-0", "rollout-0")
        assert (await site.exit()).left  # it did not come back
        await site.put("follower-0", "life-2")
        while not site.children.can_start("follower-0"):
            await asyncio.sleep(0.01)


async def test_a_record_from_before_counts_once_its_holder_is_heard(tmp_path: Path) -> None:
    """A launcher that was started again goes on with who lives, and with none that is dead."""
    async with opened(tmp_path) as site:
        await site.put("reward", "alive")
        await site.put("rollout-0", "dead")
        await site.put("rollout-1", "alive")
        await site.children.open()
        for name in ("reward", "rollout-0"):
            await site.start(name)
        await site.looks()
        assert not any(child.incarnation for child in site.children.alive.values())
        assert not site.children.can_start("rollout-1")
        await site.put("reward", "alive")
        await site.put("rollout-1", "alive")
        child = await site.here("reward", "alive")
        assert child.address == "10.0.0.7:1"
        while not site.children.can_start("rollout-1"):  # it may join the run
            await asyncio.sleep(0.01)
        assert not site.children.alive["rollout-0"].incarnation


async def test_another_life_under_the_name_is_the_death_of_the_one_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        await site.open()
        await site.up("controller", "life-1")
        first = ServiceRecord("controller", "life-1", code=2, lines=("error: no such file",))
        await site.put("controller", "life-2", former=first)
        ended = await site.exit()
        assert (ended.code, ended.last_lines()) == (2, ["error: no such file"])
        await site.start("controller")
        await site.here("controller", "life-2")
        await site.put("controller", "life-3", former=ServiceRecord("controller", "life-2"))
        ended = await site.exit()  # killed: it left no word
        assert ended.code == -9 and "started another in its place" in ended.how


async def test_who_was_asked_to_end_is_not_taken_in_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        await site.open()
        await site.up("trainer-0", "life-1")
        await site.children.end(["trainer-0"], 0.2)  # deaf
        asked = await site.store.get(stop_key(RUN, "trainer-0"))
        assert asked and asked.value == {"incarnation": "life-1"}
        await site.start("trainer-0")
        await site.put("trainer-0", "life-1")
        await site.looks()
        assert not site.children.alive["trainer-0"].incarnation
        await site.put("trainer-0", "life-2")
        await site.here("trainer-0", "life-2")
        assert site.children.exits.empty()


async def test_who_registered_with_the_launcher_before_is_asked_though_it_was_not_heard_yet(
    tmp_path: Path,
) -> None:
    """A launcher that takes over a run that shall pause ends the controller before the others."""
    async with opened(tmp_path) as site:
        await site.put("controller", "life-1")
        await site.put("reward", "ended", code=0)
        await site.children.open()
        for name in ("controller", "reward"):
            await site.start(name)
        ending = asyncio.create_task(site.children.end(["controller", "reward"], 20.0))
        while (asked := await site.store.get(stop_key(RUN, "controller"))) is None:
            await asyncio.sleep(0.01)
        assert asked.value["incarnation"] == "life-1"
        await site.looks()
        assert not ending.done()
        await site.put("controller", "life-1", code=0)
        await ending
        assert await site.store.get(stop_key(RUN, "reward")) is None


async def test_who_stood_still_and_comes_back_is_asked_to_end(tmp_path: Path) -> None:
    """It was taken for dead, and another one waits for its name."""
    async with opened(tmp_path) as site:
        await site.open()
        await site.up("trainer-0", "life-1")
        ended = await site.exit()
        assert ended.code == -9 and ended.how == "it was not heard for 8 s"
        await site.start("trainer-0")
        await site.looks()
        assert await site.store.get(stop_key(RUN, "trainer-0")) is None
        await site.put("trainer-0", "life-1")
        while (asked := await site.store.get(stop_key(RUN, "trainer-0"))) is None:
            await asyncio.sleep(0.01)
        assert asked.value == {"incarnation": "life-1"}
        assert not site.children.alive["trainer-0"].incarnation


async def test_an_address_that_moves_is_followed(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        await site.open()
        await site.start("reward")
        await site.put("reward", "life-1", is_up=False)  # the address of the life before
        assert not (await site.here("reward", "life-1")).address
        await site.put("reward", "life-1")
        while site.children.alive["reward"].address != "10.0.0.7:1":
            await asyncio.sleep(0.01)


async def test_all_that_registered_are_asked_to_end_at_the_close(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        await site.open()
        await site.put("rollout-1", "life-1")  # nothing has taken it in
        await site.put("rollout-2", "life-1", code=0)
        await site.looks()
        await site.children.close()
        asked = await site.store.get(stop_key(RUN, "rollout-1"))
        assert asked and asked.value == {"incarnation": "life-1"}
        assert await site.store.get(stop_key(RUN, "rollout-2")) is None
