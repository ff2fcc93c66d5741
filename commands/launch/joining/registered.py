"""A service that registers, and finds those that it calls, in a thread beside its own work.

The thread has an event loop and a connection of its own: a model that loads, or a collective that
waits, holds up the service's loop for longer than a registration may be silent.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress

from commands.launch.joining.registration import ServiceRegistration, find_addresses
from commands.launch.local.endpoints import with_replica
from trimaran.config import Endpoints, RunConfig
from trimaran.errors import UnavailableError
from trimaran.run.context import RunContext
from trimaran.run.environment import CALLS, NUMBERED, environment_names, process_name
from trimaran.run.exits import exit_code
from trimaran.run.network import Host, find_host, is_free, split
from trimaran.store import Store, open_store

logger = logging.getLogger(__name__)

END_SECONDS = 5.0
"""For the last word to reach the store."""


class Registered:
    """Example:
    registered = Registered(config, run, "rollout", 1, on_end=print)
    config = registered.start()      # with the addresses of all that it calls, and its own
    registered.end(code=0)
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunContext,
        kind: str,
        index: int,
        on_end: Callable[[Exception | None], None],
    ) -> None:
        """`on_end` is called in the thread when the service shall end: with None where it is asked
        to, or with what went wrong."""
        self._config, self._run, self._kind, self._index = config, run, kind, index
        self._on_end = on_end
        self._ready: Future[RunConfig] = Future()
        self._last_words: tuple[int, Collection[str]] = (0, ())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._work, name="registration", daemon=True)

    def start(self) -> RunConfig:
        """Raises UnavailableError where the name, or a service that it calls, is missing for
        `start_timeout` seconds."""
        self._thread.start()
        return self._ready.result()

    def end(self, code: int, lines: Collection[str] = ()) -> None:
        """How the service has ended; waits a moment for the store. Idempotent."""
        self._last_words = code, lines
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(END_SECONDS)

    def _work(self) -> None:
        try:
            asyncio.run(self._register())
        except asyncio.CancelledError:
            return  # by `end`
        except Exception as error:
            if self._ready.done():
                self._on_end(error)
            else:
                self._ready.set_exception(error)

    async def _register(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        name, timeout = process_name(self._kind, self._index), self._config.start_timeout
        store = await open_store(self._run.store_url)
        try:
            registration = await ServiceRegistration.claim(store, self._run.run_id, [name], timeout)
            own = _own_address(registration.record.address, find_host(self._config.network))
            await registration.move(own)
            try:
                await self._serve(store, registration, own)
            except Exception as error:
                self._last_words = exit_code(error), [f"error: {error}"]
                raise
            finally:
                with suppress(UnavailableError):  # then it is known by its silence
                    await registration.end(*self._last_words)
        finally:
            await store.close()

    async def _serve(self, store: Store, registration: ServiceRegistration, own: str) -> None:
        """Until it is cancelled."""
        config, kind, index = self._config, self._kind, self._index
        keeping = asyncio.create_task(self._keep(registration))
        try:
            called = called_names(config, kind, index)
            found = await find_addresses(store, self._run.run_id, called, config.start_timeout)
            found[registration.record.name] = own
            self._ready.set_result(with_addresses(config, kind, index, found))
            await asyncio.get_running_loop().create_future()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self, registration: ServiceRegistration) -> None:
        try:
            await registration.keep()
        except Exception as error:
            self._on_end(error)
        else:
            self._on_end(None)


def called_names(config: RunConfig, kind: str, index: int) -> set[str]:
    """Whom a service calls at an address; replicas make themselves known to weight sync."""
    ranks = {process_name("trainer", rank) for rank in range(config.num_trainer_ranks)}
    names = {name for name in CALLS.get(kind, ()) if name not in NUMBERED}
    if "environment" in CALLS.get(kind, ()):
        names |= set(environment_names(config))
    if kind == "trainer" or "trainer" in CALLS.get(kind, ()):
        names |= ranks
    return names - {process_name(kind, index)}


def with_addresses(
    config: RunConfig, kind: str, index: int, addresses: Mapping[str, str]
) -> RunConfig:
    """The configuration for one service that knows itself and whom it calls, by name."""
    ranks = [process_name("trainer", rank) for rank in range(config.num_trainer_ranks)]
    endpoints = Endpoints(
        controller=addresses.get("controller"),
        reward=addresses.get("reward"),
        weight_sync=addresses.get("weight-sync"),
        trainer=tuple(addresses[name] for name in ranks if name in addresses),
        environment=tuple(
            addresses[name] for name in environment_names(config) if name in addresses
        ),
    )
    if kind == "environment":  # which knows no other of its kind: its own stands in their places
        own = addresses[process_name(kind, index)]
        endpoints = endpoints.model_copy(update={"environment": (own,) * (index + 1)})
    config = config.model_copy(update={"endpoints": endpoints})
    if kind not in ("rollout", "follower"):
        return config
    # A follower knows no replica by its address: its own stands in that place.
    return with_replica(config, index, addresses[process_name(kind, index)])


def _own_address(former: str, host: Host) -> str:
    """The one before where it is this host's and free: who knew it finds us again."""
    is_ours = former and split(former)[0] == host.address and is_free(former)
    return former if is_ours else host.free_address()
