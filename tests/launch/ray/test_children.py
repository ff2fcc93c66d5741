"""What a launcher makes of what Ray reports; the services are real, Ray is not."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from commands.launch.joining.registration import NameTakenError, ServiceRegistration
from commands.launch.joining.service_records import ServiceRecord
from commands.launch.ray.children import RayChildren
from commands.launch.ray.naming import own_prefix
from commands.launch.service_process import Exit, ServiceProcess
from tests.launch.ray.fake_cluster import NODES, FakeCluster
from tests.launch.services import STAND_IN, is_alive, pid_of
from tests.trimaran.run.ray.test_placing import configure
from trimaran.run.context import RunContext
from trimaran.run.directory import find_address
from trimaran.run.exits import BAD_INPUT, TRY_AGAIN
from trimaran.run.ray.cluster import Cluster
from trimaran.run.runs import replicas_key, service_key
from trimaran.store import Store, open_store
from trimaran.trust.access import Trust, make_token

pytestmark = pytest.mark.timeout(120)


class Stage:
    """A run with RayChildren on a fake cluster."""

    def __init__(self, folder: Path, store: Store, url: str, cluster: FakeCluster) -> None:
        self.folder, self.store, self.cluster = folder, store, cluster
        self.run = RunContext("demo-1", folder, url, Trust(make_token(folder)), "ray")
        self.run.write()
        self.notes: list[str] = []
        self.children = self.make_children()

    def make_children(self, **how: Any) -> RayChildren:
        cluster = cast(Cluster, self.cluster)
        config = how.pop("config", None) or configure({"data_parallel": 2})
        return RayChildren(cluster, self.run, config, self.store, self.notes.append, **how)

    async def reopen(self, **how: Any) -> None:
        await self.children.close()
        self.children = self.make_children(**how)
        await self.children.open()

    def service(self, name: str, what: str = "run") -> ServiceProcess:
        kind, _, index = name.rpartition("-")
        mark = self.folder / name
        return ServiceProcess(
            name,
            (sys.executable, str(STAND_IN), what, str(mark)),
            {},
            self.folder / "logs" / f"{name}.log",
            kind=kind or name,
            index=int(index) if kind else 0,
        )

    async def start(self, name: str, what: str = "run") -> int:
        """Its process id, once it is up."""
        (self.folder / name).unlink(missing_ok=True)
        await self.children.start(self.service(name, what))
        pid = await asyncio.to_thread(pid_of, self.folder / name)
        while self.children.alive[name].report is None:
            await asyncio.sleep(0.02)
        return pid

    async def next_exit(self) -> Exit:
        return await self.children.exits.get()


@asynccontextmanager
async def staged(folder: Path, cluster: FakeCluster | None = None) -> AsyncGenerator[Stage]:
    (folder / "logs").mkdir(parents=True)
    url = f"sqlite:{folder / 'store.sqlite'}"
    store = await open_store(url)
    stage = Stage(folder, store, url, cluster or FakeCluster())
    try:
        await stage.children.open()
        yield stage
    finally:
        await stage.children.close()
        await stage.children.close()
        await store.close()


async def test_each_service_has_an_actor_that_ends_with_it(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for name in ("reward", "trainer-0", "trainer-1", "rollout-0", "rollout-1"):
            await stage.start(name)
        where = {n.split("/")[1]: actor.where for n, actor in stage.cluster.actors.items()}
        assert {where[f"rollout-{i}"].node_id for i in (0, 1)} == {"n1", "n2"}
        assert [where[f"trainer-{i}"].bundle for i in (0, 1)] == [0, 1]
        assert list(stage.cluster.groups.values()) == [[{"CPU": 1.0}] * 2]
        assert list(where["reward"].resources) == ["node:10.0.0.1"]
        await stage.children.end(["rollout-0", "nobody"], 20.0)
        assert "rollout-0" not in stage.children.alive and stage.children.exits.empty()
        assert len(stage.cluster.actors) == 4
        await stage.children.close()
        assert not stage.cluster.actors and not stage.cluster.groups
        assert not stage.cluster.is_connected


PARTS = ("rollout-0", "follower-0")


ON_TWO_HOSTS = configure(tensor_parallel=4, hosts=2)


async def test_the_parts_of_a_replica_have_a_group_of_their_own_all_or_none(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.reopen(config=ON_TWO_HOSTS)
        devices = [f"10.0.0.{node}/{slot}" for node in (2, 1) for slot in (0, 1)]
        await stage.store.put(replicas_key("demo-1"), {"wanted": 1, "devices": {"0": devices}})
        for name in PARTS:
            await stage.start(name)
        [(group, bundles)] = stage.cluster.groups.items()
        assert group in stage.cluster.spread and "/rollout-0/" in group
        assert [bundle.keys() for bundle in bundles] == [
            {"CPU", f"node:10.0.0.{node}"} for node in (2, 1)
        ]
        where = {n.split("/")[1]: actor.where for n, actor in stage.cluster.actors.items()}
        assert [(where[name].group, where[name].bundle) for name in PARTS] == [
            (group, 0),
            (group, 1),
        ]
        assert all(one.resources == {"CPU": 2.0} for one in where.values())
        await stage.children.close()
        assert not stage.cluster.groups


async def test_a_replicas_group_ends_with_its_last_part_and_a_lost_part_makes_a_new_one(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path) as stage:
        await stage.reopen(config=ON_TWO_HOSTS)
        for name in (*PARTS, "rollout-1"):
            await stage.start(name)
        own, other = sorted(stage.cluster.groups, key=lambda name: "rollout-1" in name)
        await stage.children.end(["rollout-0"], 20.0)
        await stage.start("rollout-0")  # alone: the other is there
        assert set(stage.cluster.groups) == {own, other}
        [lost] = [a for n, a in stage.cluster.actors.items() if "follower-0" in n]
        lost.is_dead = True
        assert (await stage.next_exit()).service.name == "follower-0"
        await stage.children.end(["rollout-0"], 20.0)
        assert set(stage.cluster.groups) == {other}
        for name in PARTS:
            await stage.start(name)
        assert len(stage.cluster.groups) == 2 and own not in stage.cluster.groups
        await stage.children.end(PARTS, 20.0)  # the run needs it no more
        assert set(stage.cluster.groups) == {other}


async def test_no_secret_lies_in_rays_own_store(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.start("reward")
        token = (stage.folder / "token").read_text().strip()
        assert stage.cluster.given and token not in repr(stage.cluster.given)


async def test_a_death_reports_its_exit_code_and_its_last_lines(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.children.start(stage.service("reward", "die2"))
        ended = await stage.next_exit()
        assert (ended.code, ended.last_lines()) == (2, ["error: the engine has no wings"])
        assert not stage.cluster.actors


async def test_a_dead_actor_is_a_death_and_the_next_life_is_another(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.start("rollout-0")
        first = stage.children.alive["rollout-0"].incarnation
        [actor] = stage.cluster.actors.values()
        stage.cluster.kill(actor)
        ended = await stage.next_exit()
        assert ended.code == -signal.SIGKILL and "actor on 10.0.0.1 is gone" in ended.how
        await stage.start("rollout-0")
        assert stage.children.alive["rollout-0"].incarnation != first


async def test_an_actor_that_is_silent_for_a_moment_lives_and_for_long_is_dead(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path) as stage:
        await stage.reopen(lapse_seconds=2.0, ask_seconds=0.5)
        await stage.start("rollout-0")
        [actor] = stage.cluster.actors.values()
        actor.is_silent = True
        await asyncio.sleep(1.0)
        actor.is_silent = False
        await asyncio.sleep(1.5)
        assert stage.children.exits.empty()
        actor.is_silent = True
        assert (await stage.next_exit()).code == -signal.SIGKILL


async def test_without_room_it_waits_and_then_says_what_it_wanted(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.reopen(place_seconds=0.3, tell_seconds=0.1)
        stage.cluster.has_room = False
        await stage.children.start(stage.service("rollout-0"))
        ended = await stage.next_exit()
        assert ended.code == TRY_AGAIN and "CPU 1" in ended.how
        assert stage.notes[0] == "rollout-0 waits for a node with room for CPU 1"
        assert not stage.cluster.actors


async def test_one_that_waits_for_room_can_be_ended(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.cluster.has_room = False
        await stage.children.start(stage.service("rollout-0"))
        await stage.children.start(stage.service("rollout-1"))
        await asyncio.sleep(0.2)
        await stage.children.end(["rollout-0"], 5.0)
        stage.children.kill("rollout-1")
        ended = await stage.next_exit()
        assert (ended.service.name, ended.code) == ("rollout-1", -signal.SIGKILL)
        assert not stage.children.alive and not stage.cluster.actors


async def test_processes_on_a_node_that_leaves_are_ended_in_order(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.start("rollout-0")
        await stage.start("rollout-1")
        leaving = replace(NODES[1], is_leaving=True)
        stage.cluster.known = (NODES[0], leaving)
        ended = await stage.next_exit()
        assert ended.service.name == "rollout-1" and "10.0.0.2 leaves" in ended.how
        await stage.start("rollout-1")
        [where] = [a.where for n, a in stage.cluster.actors.items() if "/rollout-1/" in n]
        assert where.node_id == "n1"


async def test_a_trainer_group_is_made_again_after_a_rank_is_lost(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.start("trainer-0")
        [group] = stage.cluster.groups
        [actor] = stage.cluster.actors.values()
        stage.cluster.kill(actor)
        await stage.next_exit()
        await stage.start("trainer-0")
        [again] = stage.cluster.groups
        assert again != group


async def test_what_an_earlier_launcher_left_is_ended_first(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        pid = await stage.start("rollout-0")
        own = await own_prefix(stage.store, "demo-1")
        stage.cluster.groups[f"{own}trainer/old"] = []
        stage.cluster.groups["demo-10/trainer/other"] = []
        second = stage.make_children()
        await second.open()
        try:
            assert not is_alive(pid) and not stage.cluster.actors
            assert list(stage.cluster.groups) == ["demo-10/trainer/other"]
        finally:
            await second.close()


async def test_a_run_of_the_same_id_in_another_store_is_left_alone(tmp_path: Path) -> None:
    async with staged(tmp_path / "ours") as ours:
        pid = await ours.start("trainer-0")
        held = set(ours.cluster.actors), set(ours.cluster.groups)
        async with staged(tmp_path / "theirs", ours.cluster) as theirs:
            await theirs.start("trainer-0")
            assert (len(ours.cluster.actors), len(ours.cluster.groups)) == (2, 2)
        assert is_alive(pid) and ours.children.exits.empty()
        assert (set(ours.cluster.actors), set(ours.cluster.groups)) == held


async def test_the_manager_says_on_which_node_a_replica_stands(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        wish = {"wanted": 1, "devices": {"0": ["10.0.0.2/3"]}}
        await stage.store.put(replicas_key("demo-1"), wish)
        await stage.start("rollout-0")
        [actor] = stage.cluster.actors.values()
        assert actor.where.node_id == "n2"


async def test_its_address_is_what_this_life_has_registered(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:

        async def register(incarnation: str, address: str, is_up: bool = True) -> None:
            record = ServiceRecord("rollout-0", incarnation, address, is_up=is_up)
            await stage.store.put(service_key("demo-1", "rollout-0"), record.to_tree())

        await register("an earlier one", "10.0.0.2:1")
        await asyncio.sleep(1.5)
        await stage.start("rollout-0")
        await asyncio.sleep(1.5)
        assert stage.children.alive["rollout-0"].address == ""
        await register(
            "this one", "10.0.0.2:1", is_up=False
        )  # it has the name, not yet its address
        await asyncio.sleep(1.5)
        assert stage.children.alive["rollout-0"].address == ""
        await register("this one", "10.0.0.2:2")
        while not stage.children.alive["rollout-0"].address:
            await asyncio.sleep(0.05)
        assert stage.children.alive["rollout-0"].address == "10.0.0.2:2"


async def test_a_life_that_ray_has_lost_is_called_no_more_and_ends_itself(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:

        async def register(name: str) -> ServiceRegistration:
            registered = await ServiceRegistration.claim(stage.store, "demo-1", [name], timeout=5.0)
            await registered.move("10.0.0.2:1")
            return registered

        await stage.start("trainer-0")
        lost, other = await register("trainer-0"), await register("rollout-0")
        [actor] = stage.cluster.actors.values()
        stage.cluster.kill(actor)
        await stage.next_exit()
        assert await find_address(stage.store, "demo-1", "trainer-0") == ""
        assert await find_address(stage.store, "demo-1", "rollout-0") == "10.0.0.2:1"
        with pytest.raises(NameTakenError, match="this process ends"):
            await lost.move("10.0.0.2:1")
        again = await register("trainer-0")  # at once: it is known that the name is free
        second = stage.make_children()
        await second.open()
        try:
            for earlier in (again, other):
                with pytest.raises(NameTakenError):
                    await earlier.move("10.0.0.2:2")
        finally:
            await second.close()


async def test_a_store_that_other_nodes_cannot_reach_is_bad_input(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.reopen()
        for mark in stage.folder.glob("launcher-*"):  # as seen from a node with a disk of its own
            mark.unlink()
        await stage.children.start(stage.service("rollout-0"))
        ended = await stage.next_exit()
        assert ended.code == BAD_INPUT and "--store redis://" in ended.last_lines()[0]


async def test_every_launcher_of_a_run_has_its_prefix_whatever_it_calls_the_store(
    tmp_path: Path,
) -> None:
    (tmp_path / "by-another-name").symlink_to(tmp_path)

    first = await open_store(f"sqlite:{tmp_path}/run.sqlite")
    second = await open_store(f"sqlite:{tmp_path}/by-another-name/run.sqlite")
    other = await open_store(f"sqlite:{tmp_path}/other.sqlite")
    try:
        at_once = await asyncio.gather(own_prefix(first, "demo-1"), own_prefix(second, "demo-1"))
        assert set(at_once) == {await own_prefix(second, "demo-1")}
        assert at_once[0].startswith("demo-1~") and at_once[0].endswith("/")
        assert await own_prefix(other, "demo-1") not in at_once
    finally:
        for store in (first, second, other):
            await store.close()
