"""Placement groups: nothing keeps one that no process needs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from commands.launch.ray.groups import Groups, Wish
from tests.launch.ray.fake_cluster import FakeCluster
from trimaran.host.call_thread import CallThread
from trimaran.run.ray.cluster import Cluster


class Slow(FakeCluster):
    """Its head answers once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def reserve(self, *args: Any, **named: Any) -> str:
        self.is_asked.set()
        assert self.may_answer.wait(30)
        return super().reserve(*args, **named)


def asking(thread: CallThread) -> Callable[..., Awaitable[Any]]:
    def ask(call: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        return thread.wait(lambda: call(*args), 30.0)

    return ask


async def wish() -> Wish:
    return Wish([{"NPU": 8.0}] * 2, is_spread=True)


async def test_a_group_whose_replica_is_taken_away_while_it_is_made_is_released() -> None:
    cluster, thread = Slow(), CallThread("the head")
    groups = Groups(cast(Cluster, cluster), asking(thread))
    holding = asyncio.create_task(groups.hold("demo-1/rollout-1/", wish))
    await asyncio.to_thread(cluster.is_asked.wait, 30)
    holding.cancel()
    await asyncio.sleep(0.05)
    cluster.may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await holding
    await thread.wait(lambda: None, 30.0)  # all calls before it have ended
    assert not cluster.groups
    held = await groups.hold("demo-1/rollout-1/", wish)
    assert list(cluster.groups) == [held.name]
    assert thread.stop(lambda: None, 10.0)
