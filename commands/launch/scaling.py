"""How many replicas a run has while it goes on.

A wish that names replicas is followed as it is: who writes it, the manager, knows the bounds, which
may change after the configuration was written. One that only counts them stays between
rollout.replicas and rollout.max_replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from commands.launch.processes import Processes
from commands.launch.site import MakeReplica
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.run.environment import followers_of, process_name


class Scaling:
    """Adds the next free index, and takes the highest one first, unless the record says which have
    devices.

    Example:
        scaling = Scaling(config, make_replica, processes, print)
        await scaling.scale({"wanted": 3})
    """

    def __init__(
        self,
        config: RunConfig,
        make_replica: MakeReplica,
        processes: Processes,
        note: Callable[[str], None],
    ) -> None:
        self._config, self._make_replica = config, make_replica
        self._processes, self._note = processes, note
        self._refused = ""
        """The last reason that was noted."""

    async def scale(self, wish: Mapping[str, Any]) -> None:
        """`wish`: what stands under `trimaran.run.runs.replicas_key`."""
        there = self._indices()
        devices: Mapping[str, Sequence[object]] = wish.get("devices") or {}
        target = self._target(there, int(wish["wanted"]), {int(index) for index in devices})
        if surplus := sorted(there - target, reverse=True):
            names = [process_name("rollout", index) for index in surplus]
            self._note(f"{', '.join(names)}: taken from the run; groups under way go on elsewhere")
            await asyncio.gather(*map(self._processes.remove, names))
        for index in sorted(target - there):
            if not self._can_add(index):
                continue
            if not await self._add(index, tuple(map(str, devices.get(str(index), ())))):
                return

    def _target(self, there: set[int], wanted: int, named: set[int]) -> set[int]:
        """Those that the wish names; or as many as are wanted of those that are there, and of the
        next free ones."""
        if named:
            return named
        rollout = self._config.rollout
        wanted = max(rollout.replicas, min(wanted, rollout.max_replicas))
        free = sorted(
            set(range(rollout.max_replicas)) - there,
            key=lambda index: (not self._can_add(index), index),
        )
        return set([*sorted(there), *free][:wanted])

    def _indices(self) -> set[int]:
        """The indices of all replicas, also those that were given up: their place is not taken again."""
        names = (name for name in self._processes.services if name.startswith("rollout-"))
        return {int(name.removeprefix("rollout-")) for name in names}

    def _can_add(self, index: int) -> bool:
        """Whether every process of the replica can be added, on all of its hosts."""
        followers = (("follower", one) for one in followers_of(self._config, index))
        parts = (("rollout", index), *followers)
        return all(self._processes.can_add(process_name(*part)) for part in parts)

    async def _add(self, index: int, devices: tuple[str, ...]) -> bool:
        name = process_name("rollout", index)
        try:
            for service in self._make_replica(index, devices):
                await self._processes.add(service)
        except (InputError, OSError) as error:
            if name in self._processes.services:  # without a host it never starts
                await self._processes.remove(name)
            if str(error) != self._refused:
                self._note(f"a replica cannot be added: {error}")
            self._refused = str(error)
            return False
        self._note(f"{name} is added to the run")
        return True
