"""A service that the launcher has not started finds the run that needs it, and takes a name there.

A manager with external services writes a record for each run that has devices, `call/RUN`, into its
own store. Who joins reads them, the oldest first, and takes the lowest free name of its kind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from commands.launch.joining.registration import ServiceRegistration
from commands.launch.joining.service_records import Sightings, read_services
from trimaran.config import RunConfig, parse_config
from trimaran.errors import DeadlineError, InputError
from trimaran.run.environment import process_name
from trimaran.run.runs import RunState, call_key, config_key, run_key
from trimaran.store import Store, is_shared, open_store, records, run_store_url, store_name

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
WAIT_SECONDS = 3600.0
"""How long it waits for a run. Then the process ends, and its engine starts it again."""


@dataclass(frozen=True, slots=True)
class JoinedProcess:
    """Example: JoinedProcess("demo-1", "redis://store:6379/0?prefix=trimaran/run/demo-1", 2)"""

    run_id: str
    store_url: str
    index: int


@dataclass(slots=True)
class _Run:
    url: str
    store: Store
    sightings: Sightings = field(default_factory=Sightings)
    is_foreign: bool = False
    """Its configuration is of another version than this service."""


async def join_run(
    store_url: str, kind: str, index: int | None, run_id: str = "", seconds: float = WAIT_SECONDS
) -> JoinedProcess:
    """Waits until a run needs a service of this kind, and registers there: the caller's process has
    the name, and goes on with it under `commands.launch.joining.registered`.

    `index` None: any. `run_id` empty: of any run. Raises DeadlineError after `seconds`, InputError
    for a store that is not on Redis, which several hosts cannot reach.
    """
    if not is_shared(store_url):
        raise InputError(
            f"--store-file: {store_name(store_url)} is a file of one machine; services that register"
            " need the manager's Redis server: redis://HOST:PORT/DB?prefix=NAME"
        )
    deadline = time.monotonic() + seconds
    runs: dict[str, _Run] = {}
    async with AsyncExitStack() as stack:
        calls = await _open(store_url, stack)
        while True:
            for called in await _list_calls(calls, run_id):
                if called not in runs:
                    url = run_store_url(store_url, called)
                    runs[called] = _Run(url, await _open(url, stack))
                found = await _try_join(runs[called], called, kind, index)
                if found is not None:
                    return JoinedProcess(called, runs[called].url, found)
            if time.monotonic() >= deadline:
                which = f"run {run_id} has not needed" if run_id else "no run has needed"
                raise DeadlineError(f"{which} a {kind} for {seconds:g} s; start this one again")
            await asyncio.sleep(POLL_SECONDS)


async def _open(url: str, stack: AsyncExitStack) -> Store:
    store = await open_store(url)
    stack.push_async_callback(store.close)
    return store


async def _list_calls(store: Store, run_id: str) -> list[str]:
    """Run ids, those that have called for longest first."""
    prefix = call_key()
    calls = [
        (record.value["since"], key.removeprefix(prefix))
        async for key, record in records(store, prefix)
    ]
    return [called for _, called in sorted(calls) if run_id in ("", called)]


async def _try_join(run: _Run, run_id: str, kind: str, index: int | None) -> int | None:
    """The index under which this process has registered; None where the run needs none."""
    config, state = await run.store.get(config_key(run_id)), await run.store.get(run_key(run_id))
    if config is None or state is None or not RunState(state.value["state"]).has_processes:
        return None
    try:
        known = parse_config(config.value, source=f"run {run_id}")
    except InputError as error:
        if not run.is_foreign:
            logger.warning("%s; this service is of another version: it waits for other runs", error)
        run.is_foreign = True
        return None
    wanted = range(num_of(known, kind))
    indices = [i for i in wanted if index in (None, i)]
    found = await read_services(run.store, run_id)
    run.sightings.note(found)
    names = {process_name(kind, i): i for i in indices}
    claimed = await ServiceRegistration.try_claim(
        run.store, run_id, list(names), found, run.sightings
    )
    return names[claimed.record.name] if claimed else None


def num_of(config: RunConfig, kind: str) -> int:
    """How many services of a kind the run can have."""
    numbers = {
        "rollout": config.rollout.max_replicas,
        "follower": config.rollout.max_replicas * config.rollout.num_followers,
        "trainer": config.num_trainer_ranks,
        "environment": config.num_environments,
    }
    return numbers.get(kind, 1)
