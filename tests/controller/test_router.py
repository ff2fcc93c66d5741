import asyncio
from typing import Any

from services.controller.router import Router
from trimaran.types import PolicyVersion, Replica, Routing, VersionId, VersionState

A, B = Replica("a", "127.0.0.1:1"), Replica("b", "127.0.0.1:2")


def live(step: int) -> PolicyVersion:
    return PolicyVersion("run", VersionId(0, step), f"root-{step}", VersionState.ACTIVE)


def losses(*routings: Routing) -> list[tuple[str, str]]:
    """What the router tells of replicas that it lost, as it takes over one routing after the other."""
    lost: list[tuple[str, str]] = []
    nobody: Any = None

    async def follow() -> None:
        router = Router(
            nobody, nobody, 8, 1.0, lambda name, fault: lost.append((name, fault)), nobody
        )
        for routing in routings:
            await router.update(routing)

    asyncio.run(follow())
    return lost


def test_a_replica_that_is_only_behind_a_publication_is_not_lost() -> None:
    assert not losses(
        Routing(live(1), (A, B)),
        Routing(live(2), (), {"a": "", "b": ""}),
        Routing(live(2), (A,), {"b": ""}),
        Routing(live(2), (A, B)),
    )


def test_a_fault_is_told_once_until_the_replica_is_back() -> None:
    faulty = Routing(live(2), (A,), {"b": "connection refused"})
    told = losses(
        Routing(live(1), (A, B)),
        Routing(live(2), (A,), {"b": ""}),
        faulty,
        faulty,
        Routing(live(2), (A, B)),
        faulty,
    )
    assert told == [("b", "connection refused")] * 2
