"""The processes of a replica on several hosts find each other, and notice when one was started again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.rollout.hosts import HostMeeting, HostPlace
from tests.configs import configure
from tests.extending.memory_store import MemoryStore
from trimaran.errors import DeadlineError, LeftBehindError
from trimaran.wire.health_note import Notes, read_note

SECONDS = 10.0


def meeting(kind: str, index: int, seconds: float = SECONDS) -> HostMeeting:
    rollout = {"replicas": 2, "tensor_parallel": 6, "hosts": 3}
    config = configure(rollout=rollout, start_timeout=seconds)
    return HostMeeting(config, "run", kind, index, look=0.01)


async def gather(store: MemoryStore, *followers: HostMeeting, leader: HostMeeting) -> list[Any]:
    coming = [follower.follow(store) for follower in followers]
    return await asyncio.gather(leader.lead(store, "10.0.0.7:2000"), *coming)


async def test_the_hosts_of_each_replica_meet_by_themselves() -> None:
    """Followers 2 and 3 are the second replica's."""

    store = MemoryStore()
    first = gather(
        store, meeting("follower", 0), meeting("follower", 1), leader=meeting("rollout", 0)
    )
    second = gather(
        store, meeting("follower", 3), meeting("follower", 2), leader=meeting("rollout", 1)
    )
    places, others = await asyncio.gather(first, second)
    assert [place.rank for place in places] == [0, 1, 2]
    assert [place.rank for place in others] == [0, 2, 1]
    assert len({place.meeting for place in places}) == 1
    assert places[0].meeting != others[0].meeting
    same = HostPlace(1, 3, "10.0.0.7:2000", places[0].meeting)
    assert places[1] == same


async def test_who_has_met_has_its_time_to_start_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the others came late: health checks of a container wait for that long from now on."""
    path = tmp_path / "health.json"
    notes = Notes("rollout-0", path)
    notes.wait("starts", SECONDS)
    monkeypatch.setattr("trimaran.wire.health_note.own", notes)

    store = MemoryStore()
    leading = asyncio.create_task(meeting("rollout", 0).lead(store, "10.0.0.7:2000"))
    await asyncio.sleep(0.3)
    before = read_note(path)
    await asyncio.gather(leading, *(meeting("follower", n).follow(store) for n in (0, 1)))
    after = read_note(path)
    assert before and after and after.until > before.until + 0.2
    assert after.doing == "starts its engine"


async def test_what_an_earlier_process_left_takes_no_process_in() -> None:
    """The leader of a former life has called and is dead; a follower of a former life has answered."""

    store = MemoryStore()
    with pytest.raises(DeadlineError, match=r"rollout-0: follower-0, follower-1 did not come"):
        await meeting("rollout", 0, 0.05).lead(store, "10.0.0.7:1000")
    with pytest.raises(DeadlineError, match="follower-0: rollout-0 has not met its hosts"):
        await meeting("follower", 0, 0.05).follow(store)
    leader, followers = meeting("rollout", 0), [meeting("follower", n) for n in (0, 1)]
    places = await gather(store, *followers, leader=leader)
    assert {place.rendezvous for place in places} == {"10.0.0.7:2000"}


@pytest.mark.parametrize(("kind", "index"), [("rollout", 0), ("follower", 1)])
async def test_a_process_that_was_started_again_ends_the_others(kind: str, index: int) -> None:
    store = MemoryStore()
    members = {(k, n): meeting(k, n) for k, n in (("rollout", 0), ("follower", 0), ("follower", 1))}
    followers = [members["follower", n] for n in (0, 1)]
    await gather(store, *followers, leader=members["rollout", 0])
    watching = asyncio.create_task(members["follower", 0].until_broken(store))
    leading = asyncio.create_task(members["rollout", 0].until_broken(store))
    await asyncio.sleep(0.05)
    assert not watching.done() and not leading.done()
    again = meeting(kind, index, 0.05)
    with pytest.raises(DeadlineError):
        await (again.follow(store) if index else again.lead(store, "10.0.0.7:3000"))
    reported = watching if kind == "rollout" else leading
    with pytest.raises(LeftBehindError, match=f"{kind}-{index} was started again"):
        await asyncio.wait_for(reported, SECONDS)
    for task in (watching, leading):
        task.cancel()
