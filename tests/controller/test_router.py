import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.controller.router import DrainedError, Router
from tests.controller.virtual_time import now, run_virtually
from trimaran.errors import UnavailableError
from trimaran.types import PolicyVersion, Replica, Routing, VersionId

A, B = Replica("a", "127.0.0.1:1"), Replica("b", "127.0.0.1:2")


def live(step: int) -> PolicyVersion:
    return PolicyVersion("run", VersionId(0, step), f"root-{step}")


def nothing(*_: object) -> None: ...


def watched(*routings: Routing, on_lost: Callable[[str, str], None] = nothing) -> Router:
    """Weight sync answers with these, the last one for ever."""
    sync: Any = WeightSync(*routings)
    client: Any = object()
    return Router(sync, lambda address: client, 8, 1.0, on_lost, nothing, nothing, 0.01)


async def test_a_replica_that_is_only_behind_a_publication_is_not_lost() -> None:
    lost: list[str] = []
    router = watched(on_lost=lambda name, reason: lost.append(name))
    for routing in (
        Routing(live(1), (A, B)),
        Routing(live(2), (), {"a": "", "b": ""}),
        Routing(live(2), (A,), {"b": ""}),
        Routing(live(2), (A, B)),
    ):
        await router.update(routing)
    assert not lost


class WeightSync:
    """Answers with what it was given, the last one for ever."""

    def __init__(self, *routings: Routing) -> None:
        self.routings = list(routings)

    async def get_routing(self) -> Routing:
        return self.routings.pop(0) if len(self.routings) > 1 else self.routings[0]


def test_a_frozen_replica_is_left_behind_as_soon_as_weight_sync_gives_it_up() -> None:
    ended: list[str] = []
    faulty = Routing(live(1), (A,), {"b": "silent for 30 s"})

    async def answer_after(seconds: float, name: str) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)
        return name

    async def scenario() -> None:
        router = watched(Routing(live(1), (A, B)), faulty)
        await router.update(Routing(live(1), (A, B)))
        async with (
            router.watching(),
            router.lease(1, {"b"}) as on_a,
            router.lease(1, {"a"}) as on_b,
        ):
            assert (on_a.name, on_b.name) == ("a", "b")
            with pytest.raises(UnavailableError, match="b: silent for 30 s"):
                await on_b.unless_lost(answer_after(3600, "b"))
            assert ended == ["b"]
            assert await on_a.unless_lost(answer_after(0.05, "a")) == "a"
            with pytest.raises(ZeroDivisionError):
                await on_a.unless_lost(fail())

    async def fail() -> None:
        raise ZeroDivisionError

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_what_is_under_way_on_a_drained_replica_ends_and_that_is_no_fault() -> None:
    lost: list[str] = []
    drained = Routing(live(1), (A,), {}, frozenset({"b"}))

    async def scenario() -> None:
        router = watched(
            Routing(live(1), (A, B)), drained, on_lost=lambda name, reason: lost.append(name)
        )
        await router.update(Routing(live(1), (A, B)))
        async with router.watching(), router.lease(1, {"a"}) as on_b:
            with pytest.raises(DrainedError, match="b: drained"):
                await on_b.unless_lost(asyncio.sleep(3600))
            async with router.lease(1) as other:
                assert other.name == "a"

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert not lost


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=30),
    st.lists(st.tuples(st.integers(1, 12), st.sets(st.sampled_from("abc"))), max_size=4),
)
def test_every_lease_gets_the_least_loaded_replica_and_none_is_forgotten(
    leases: list[tuple[int, int, bool]], changes: list[tuple[int, set[str]]]
) -> None:
    limit = 8
    load: Counter[str] = Counter()
    routable = set("abc")

    async def body() -> None:
        unused: Any = None
        clients: Any = lambda address: None  # noqa: E731
        router = Router(
            *(unused, clients, limit, 1e6),
            on_lost=lambda name, fault: None,
            on_back=lambda name: None,
            on_busy=lambda name, start, end: None,
        )

        async def route(names: set[str]) -> None:
            nonlocal routable
            routable = names
            replicas = tuple(Replica(name, f"127.0.0.1:{ord(name)}") for name in sorted(names))
            await router.update(Routing(live(1), replicas))

        async def use(seconds: int, samples: int, avoids: bool) -> None:
            avoid = {"a"} if avoids else set[str]()
            async with router.lease(samples, avoid) as lease:
                choice = (routable - avoid) or routable
                assert load[lease.name] == min(load[name] for name in choice) < limit
                load[lease.name] += samples
                await asyncio.sleep(seconds)
                load[lease.name] -= samples

        async def change() -> None:
            for seconds, names in changes:
                await asyncio.sleep(seconds)
                await route(names or {"a"})

        await route(set("abc"))
        await asyncio.gather(change(), *(use(*lease) for lease in leases))
        assert now() < 1000  # nothing waited for the patience to end

    run_virtually(body())
