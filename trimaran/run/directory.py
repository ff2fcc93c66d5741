"""Where the processes of a run answer, by name; looked up again when a call reaches no process there.

    directory = Directory(store, "addition-1", {"reward": "10.0.0.7:24711"})
    client = RewardClient(directory.place("reward"), caller)    # its channel follows the place

Each process says in the run's store where it listens (`runs.service_key`), and the launcher where
those are that it has started (`runs.endpoints_key`). What a process already knows when it starts is
believed until a call fails, so on one machine the store is not asked at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from trimaran.errors import TrimaranError
from trimaran.run.runs import endpoints_key, service_key

if TYPE_CHECKING:  # each health check of a container imports us
    from trimaran.config import RunConfig
    from trimaran.store import Store

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
"""At least, between two looks for one process."""


class ProcessPlace:
    """Where one process answers, as far as is known; `Directory.place` makes it.

    Example: ProcessPlace("reward", "127.0.0.1:7001", look).address
    """

    def __init__(self, name: str, address: str, look: Callable[[], Awaitable[str]]) -> None:
        """`look`: its address of now; empty where there is none."""
        self.name = name
        self.address = address
        """host:port; empty while it is not known."""
        self._look = look
        self._looking: asyncio.Task[None] | None = None
        self._looked = float("-inf")

    def look_again(self) -> None:
        """After a call that reached no process, or another one: begins a look, unless one is under way
        or has just ended."""
        if self._looking is None and time.monotonic() - self._looked >= PAUSE_SECONDS:
            self._looking = asyncio.get_running_loop().create_task(self._find())

    async def _find(self) -> None:
        try:
            found = await self._look()
        except TrimaranError as error:
            logger.info("%s: the store does not say where it is: %s", self.name, error)
        else:
            if found and found != self.address:
                logger.info("%s answers at %s from now on", self.name, found)
                self.address = found
        finally:
            self._looking, self._looked = None, time.monotonic()


class Directory:
    """The addresses of one run's processes, for one of them.

    Example: Directory(store, run.run_id, named_addresses(config)).place("weight-sync")
    """

    def __init__(self, store: Store, run_id: str, known: Mapping[str, str] | None = None) -> None:
        """`known`: host:port by name, where it is known already."""
        self._store, self._run_id = store, run_id
        self._known = dict(known or {})
        self._places: dict[str, ProcessPlace] = {}

    def place(self, name: str) -> ProcessPlace:
        """The same one each time, so that all who call a process learn of its move together."""
        if name not in self._places:
            self._places[name] = ProcessPlace(
                name,
                self._known.get(name, ""),
                lambda: find_address(self._store, self._run_id, name),
            )
        return self._places[name]


async def find_address(store: Store, run_id: str, name: str) -> str:
    """host:port of the process of that name, by its own word or else the launcher's; empty where it
    has none at the moment. Raises as `Store.get` does."""
    own = await store.get(service_key(run_id, name))
    if own is not None and own.value["code"] is None and own.value["is_up"]:
        return own.value["address"]
    record = await store.get(endpoints_key(run_id))
    return record.value.get(name, "") if record else ""


def named_addresses(config: RunConfig) -> dict[str, str]:
    """Those of `endpoints`, by the names of their processes."""
    endpoints = config.endpoints
    one = {
        "controller": endpoints.controller,
        "reward": endpoints.reward,
        "weight-sync": endpoints.weight_sync,
    }
    many = {
        "rollout": endpoints.rollout,
        "trainer": endpoints.trainer,
        "environment": endpoints.environment,
    }
    numbered = {
        f"{kind}-{index}": address
        for kind, addresses in many.items()
        for index, address in enumerate(addresses)
    }
    return {name: address for name, address in one.items() if address} | numbered
