"""Placement groups of a run: of its trainer's ranks, and of each replica on several hosts.

All places of a group or none: two replicas, each with some of its places, would wait for each other.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trimaran.errors import DeadlineError, UnavailableError
from trimaran.run.ray.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Wish:
    """Example: Wish([{"NPU": 8.0}] * 2, is_spread=True)"""

    bundles: Sequence[Mapping[str, float]]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    is_spread: bool = False
    """On as many nodes as there are with room; otherwise on few."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementGroup:
    """Example: (await groups.hold("demo-1/rollout-0/", wish)).handle is what an actor's place names."""

    name: str
    handle: Any
    num_bundles: int


class Groups:
    """Example: Groups(cluster, ask)"""

    def __init__(self, cluster: Cluster, ask: Callable[..., Awaitable[Any]]) -> None:
        """`ask` calls a method of the cluster that may hang while Ray's head is away."""
        self._cluster, self._ask = cluster, ask
        self._held: dict[str, PlacementGroup] = {}
        self._making = asyncio.Lock()

    async def hold(self, prefix: str, wish: Callable[[], Awaitable[Wish]]) -> PlacementGroup:
        """That of this prefix, which is made where there is none. `prefix`: of its names in Ray. Raises
        UnavailableError and DeadlineError, and as `wish` does."""
        async with self._making:
            if prefix not in self._held:
                await self._ask(self._cluster.release, prefix)
                wanted = await wish()
                name = f"{prefix}{uuid.uuid4().hex[:8]}"
                how = wanted.bundles, wanted.labels, wanted.is_spread
                try:
                    handle = await self._ask(self._cluster.reserve, name, *how)
                except asyncio.CancelledError:
                    # It is made all the same. Without an answer: released with the run's others.
                    with suppress(UnavailableError, DeadlineError):
                        await self._ask(self._cluster.release, name)
                    raise
                self._held[prefix] = PlacementGroup(name, handle, len(wanted.bundles))
            return self._held[prefix]

    def give_up(self, group: PlacementGroup | None) -> None:
        """Who asks next gets a new one: a node of this one may be gone."""
        self._held = {prefix: one for prefix, one in self._held.items() if one is not group}

    async def release(self, group: PlacementGroup) -> None:
        """Gives the group back to Ray. Raises UnavailableError and DeadlineError."""
        self.give_up(group)
        await self._ask(self._cluster.release, group.name)
