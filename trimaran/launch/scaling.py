"""How many replicas a run has, between rollout.replicas and rollout.max_replicas, while it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.launch.endpoints import free_address
from trimaran.launch.environment import process_name
from trimaran.launch.local import Processes
from trimaran.launch.run_services import added_replica


class Scaling:
    """Adds the next free index, and takes the highest one first.

    Example:
        scaling = Scaling(config, folder, processes, print)
        await scaling.scale({"wanted": 3})
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        processes: Processes,
        note: Callable[[str], None],
    ) -> None:
        self._config, self._folder = config, folder
        self._processes, self._note = processes, note
        self._refused = ""
        """What was told already."""

    async def scale(self, wish: Mapping[str, object]) -> None:
        """`wish`: what stands under `trimaran.runs.replicas_key`."""
        rollout = self._config.rollout
        wanted = int(str(wish.get("wanted", rollout.replicas)))
        wanted = max(rollout.replicas, min(wanted, rollout.max_replicas))
        devices = cast(Mapping[str, object], wish.get("devices", {}))
        indices = self._indices()
        surplus = sorted(indices)[wanted:]
        if surplus:
            names = [process_name("rollout", index) for index in reversed(surplus)]
            self._note(f"{', '.join(names)}: taken from the run; groups under way go on elsewhere")
            await asyncio.gather(*map(self._processes.remove, names))
        for _ in range(wanted - len(indices)):
            if not await self._add(devices):
                return

    def _indices(self) -> set[int]:
        """Of all replicas, also those that were given up: their place is not taken again."""
        names = (name for name in self._processes.services if name.startswith("rollout-"))
        return {int(name.removeprefix("rollout-")) for name in names}

    async def _add(self, devices: Mapping[str, object]) -> bool:
        index = min(set(range(self._config.rollout.max_replicas)) - self._indices())
        listed = devices.get(str(index), ())
        own = tuple(map(str, cast(Sequence[object], listed)))
        taken = {service.address for service in self._processes.services.values()}
        try:
            service = added_replica(self._config, self._folder, index, free_address(taken), own)
            await self._processes.add(service)
        except (InputError, OSError) as error:
            if str(error) != self._refused:
                self._note(f"a replica cannot be added: {error}")
            self._refused = str(error)
            return False
        self._note(f"{service.name} is added to the run")
        return True
