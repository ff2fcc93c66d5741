"""Replicas of one host: one takes a version, the others read it there."""

from dataclasses import replace

import pytest

from services.weight_sync.members.member import StagedCopy
from services.weight_sync.staging.sharing import (
    Lender,
    find_lenders,
    plan_shared,
    prefer_owners,
    take_turns,
)
from tests.weight_sync.fakes import version_of
from tests.weight_sync.staging.test_plan import ALL, MANIFEST, member, offer
from tests.weight_sync.test_coordinator import (
    join,
    names,
    publish,
    publish_all,
    running,
    until,
    without_proofs,
)
from trimaran.types import RelaySource

A, B, C = member("a", "here"), member("b", "here"), member("c", "there")
ALONE = member("d")
LENDER = Lender(A.peer, "/shadow/a")


def test_of_each_host_one_takes_the_version():
    assert take_turns([A, B, C, ALONE], {}, "auto") == ([A, C, ALONE], [B])
    assert take_turns([A, B, ALONE, replace(ALONE, incarnation=2)], {}, "auto")[1] == [B]


def test_only_a_copy_of_its_own_is_lent():
    copies = {A: "", B: "/shadow/b", C: "/shadow/c", ALONE: "/shadow/d"}
    assert find_lenders(copies, "auto") == {
        "here": Lender(B.peer, "/shadow/b"),
        "there": Lender(C.peer, "/shadow/c"),
    }


def test_what_cannot_be_read_there_is_pulled():
    offers = [offer(((0, 3),)), offer(((3, 5),), rank=1)]
    plan = plan_shared(MANIFEST, offers, [B, C], {"here": LENDER}, [A, C])
    peers = (A.peer, C.peer, offers[0].peer, offers[1].peer)
    assert plan.sources == {"b": (RelaySource(ALL, peers, None, "/shadow/a"),)}


def test_whose_engine_has_the_base_learns_what_the_delta_changed():
    offers = [offer(((0, 3),), delta_bytes=9), offer(((3, 5),), delta_bytes=9, rank=1)]
    with_base, without = replace(B, held=version_of(1)), replace(C, held=version_of(7))
    patched = find_lenders({A: "/shadow/a", ALONE: ""}, "auto", {"a"})
    lenders = patched | {"there": replace(patched["here"], path="/shadow/x")}
    plan = plan_shared(MANIFEST, offers, [with_base, without], lenders, [])
    peers = (A.peer, offers[0].peer, offers[1].peer)
    assert plan.sources == {
        "b": tuple(RelaySource(o.blocks, peers, o.delta, "/shadow/a") for o in offers),
        "c": (RelaySource(ALL, peers, None, "/shadow/x"),),
    }
    whole = {"here": replace(patched["here"], patched=False)}
    plan = plan_shared(MANIFEST, offers, [with_base], whole, [])
    assert plan.sources == {"b": (RelaySource(ALL, peers, None, "/shadow/a"),)}


def test_who_has_memory_takes_the_next_version_too():
    owner, faulty = (
        replace(B, copy=StagedCopy("root", "/b")),
        replace(C, copy=StagedCopy("root", "/c"), failures=1),
    )
    assert prefer_owners([A, owner, faulty, ALONE]) == [owner, A, ALONE, faulty]


def stages(world, step=1):
    found = [e for e in without_proofs(world.events) if f"stages 0.{step} " in e]
    return [event.replace(f" stages 0.{step}", "") for event in found]


@pytest.mark.parametrize("backend", ["gloo", "hccl"])
async def test_one_of_a_host_takes_the_version_and_the_others_read_it(world, tmp_path, backend):
    world.host, world.backend = "here", backend

    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a", "b", "c", host="here")
        await join(coordinator, world, "d", host="there")
        for step in (1, 2):
            _, metrics = await publish_all(coordinator, world, step)
            assert metrics["weight_sync/shared"] == 2
            assert metrics["weight_sync/bytes"] == 2 * 40
            assert metrics["weight_sync/relayed"] == 0
            assert metrics["weight_sync/replicas"] == 4
            assert stages(world, step)[2:] == ["b in the memory of a", "c in the memory of a"]
    assert set(world.keepers) == {"a"}


@pytest.mark.parametrize("fault", ["gone", "broken", "wrong"])
async def test_when_the_first_one_fails_another_takes_it_for_the_host(world, tmp_path, fault):
    async with running(world, tmp_path, first_retry=3600) as coordinator:
        await join(coordinator, world, "a", host="here", stage=fault)
        await join(coordinator, world, "b", "c", host="here")
        _, metrics = await publish(coordinator, world)
        await until(lambda: names(coordinator) == ["b", "c"])
        assert metrics["weight_sync/shared"] == 1
    assert {"b from trainer0", "c in the memory of b"} <= set(stages(world))


async def test_one_that_dies_with_the_version_leaves_its_neighbours_to_pull(world, tmp_path):
    async def die(name, version):
        if name == "a":
            world.replicas["a"].stage = world.replicas["a"].commit = "gone"

    world.hooks["staged"] = die

    async with running(world, tmp_path, first_retry=3600) as coordinator:
        await join(coordinator, world, "a", "b", host="here")
        await publish(coordinator, world)
        await until(lambda: names(coordinator) == ["b"])
    assert stages(world)[-1] == "b from trainer0"


async def test_who_has_memory_keeps_its_part_whatever_joins(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "b", host="here")
        await publish_all(coordinator, world, 1)
        await join(coordinator, world, "a", host="here")
        await until(lambda: names(coordinator) == ["a", "b"])
        assert stages(world, 1)[-1] == "a in the memory of b"
        await publish_all(coordinator, world, 2)
    assert stages(world, 2)[-1] == "a in the memory of b"


async def test_a_restart_of_weight_sync_forgets_no_owner(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "b", host="here")
        await publish_all(coordinator, world, 1)
    world.trainer = "gone"
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a", host="here")
        await until(lambda: names(coordinator) == ["a", "b"])
    assert stages(world, 1)[-1] == "a in the memory of b"


async def test_no_replica_is_sent_for_blocks_to_one_without_a_copy(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a", "b", host="here")
        await publish_all(coordinator, world)
        assert [m.name for m in coordinator._pool.holders()] == ["a"]
        world.trainer = "gone"
        await join(coordinator, world, "c", host="there")
        await until(lambda: names(coordinator) == ["a", "b", "c"])
    assert stages(world)[-1] == "c from a"


async def test_the_copy_of_one_with_a_wrong_block_is_as_good(world, tmp_path):
    """The block is wrong in its engine. Its neighbours, and it itself, have no other copy."""

    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a", "b", host="here")
        await publish_all(coordinator, world)
        world.trainer = "gone"
        for name in "ab":
            world.replicas[name].wrong = {2}
            await coordinator.verify([name])
            await until(lambda: names(coordinator) == ["a", "b"])
