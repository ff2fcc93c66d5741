"""Redis fails over under a run to a replica that lacks what was acknowledged last.

`python -m tests.faults_runs --fail-over`: a real manager, launcher and services with stand-ins for
engine and model, and two real redis-servers. The loss is found and named, nothing is trained on the
older store, and once the store that has all is back, the run ends as if nothing had been.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import redis

from tests.faults.replaced import Broken
from tests.faults_runs.judge import audit_and_replay, find_left
from tests.faults_runs.site import DrivenRun, Setting, Site
from tests.redis_server import DURABLE, RedisServer
from trimaran.errors import TrimaranError
from trimaran.run.runs import Run, RunState
from trimaran.store import LostWritesError, find_store

NUM_STEPS = 12
SECONDS = 90.0
POLL_SECONDS = 0.1
NAMED = "are missing: the store ends at record"
"""What a controller says whose ledger is shorter than `ledger-head.json` has seen."""


async def drive(folder: Path) -> list[str]:
    """What is wrong; nothing where all is as it should be."""
    site = Site(folder / "site", seed=1, store="redis")
    master = site.redis
    assert master
    of = ("--replicaof", f"127.0.0.1 {master.port}", "--repl-timeout", "600")
    replica = RedisServer(folder / "replica", *DURABLE, *of)
    wrong: list[str] = []
    try:
        await site.open()
        await asyncio.to_thread(replica.start)
        run = await site.submit(Setting(max_lag=1, num_ranks=1, num_replicas=2), NUM_STEPS)
        await until(site, lambda: run.step >= 2, "two steps")
        await asyncio.to_thread(cut_off, master, replica)
        step = run.step
        await until(site, lambda: run.step >= step + 2, "two steps that the replica lacks")
        seen = run.rows[-1][0]
        replica.settings = DURABLE
        await take_over(replica, of=master)
        wrong += await look_at_loss(site, run, seen)
        await take_over(master, of=replica)
        await run.close()
        site.set_pace(0)
        await until(site, lambda: run.run.state is RunState.SUCCEEDED, "the run's end")
        wrong += find_wrong(run, seen)
    finally:
        wrong += [f"left: {what}" for what in await site.close()]
        for server in (master, replica):
            server.kill()
    return [*wrong, *find_left(site)]


def cut_off(master: RedisServer, replica: RedisServer) -> None:
    """Once it has all of the master's: nothing more reaches it."""
    deadline = time.monotonic() + SECONDS
    with redis.Redis(port=replica.port) as client:
        while client.info("replication")["master_link_status"] != "up":
            if time.monotonic() > deadline:
                raise Broken(f"{replica.folder} never became a replica of {master.folder}")
            time.sleep(POLL_SECONDS)
        client.replicaof("NO", "ONE")


async def take_over(server: RedisServer, of: RedisServer) -> None:
    """At the same address: a server that has died is replaced by one with other files."""
    of.kill()
    server.kill()
    server.port = of.port
    await asyncio.to_thread(server.start)


async def look_at_loss(site: Site, run: DrivenRun, seen: int) -> list[str]:
    """On the older store: who has seen more gets an error, and who comes new trains nothing."""
    wrong: list[str] = []
    try:
        await run.read()
        wrong.append("a client that had seen more got no error that the store has gone back")
    except LostWritesError as error:
        print(f"a client gets: {error}", flush=True)
    await run.close()
    failed = await end_of(site, run)
    print(f"the run is {failed.state}: {failed.error} {failed.remedy}", flush=True)
    if failed.state is not RunState.FAILED or NAMED not in failed.error:
        wrong.append(f"it is {failed.state} on the older store: {failed.error}")
    store = await find_store(run.context.store_url)
    assert store
    kinds = [tree["kind"] for _, tree in await store.read(f"ledger/{run.name}")]
    await store.close()
    if len(kinds) >= seen:
        wrong.append(f"the older store has {len(kinds)} records of the ledger, {seen} were seen")
    return wrong


async def end_of(site: Site, run: DrivenRun) -> Run:
    """As its manager says, also one that was started again meanwhile."""
    deadline = time.monotonic() + SECONDS
    found = run.run
    while not found.state.has_ended:
        if time.monotonic() > deadline:
            raise Broken(f"waited {SECONDS:g} s in vain for {run.name} to fail: it is {found}")
        await asyncio.sleep(POLL_SECONDS)
        try:
            found = await site.client.get_run(run.name)
        except TrimaranError as error:
            print(f"the manager: {error}", flush=True)
            await asyncio.sleep(1.0)
    return found


async def until(site: Site, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(
                f"waited {SECONDS:g} s in vain for {what}: {[one.run for one in site.runs]}"
            )
        await asyncio.sleep(POLL_SECONDS)
        await site.look()


def find_wrong(run: DrivenRun, seen: int) -> list[str]:
    """Of a run that has ended on the store that has all: each completion trained once, and the weights
    are those of an undisturbed replay."""
    found, wrong = audit_and_replay(run)
    if len(found.steps) != NUM_STEPS:
        wrong.append(f"{len(found.steps)} steps of {NUM_STEPS} were trained")
    if run.rows[-1][0] <= seen:
        wrong.append("nothing was recorded after the store was back")
    return wrong


def main(folder: Path) -> int:
    wrong = asyncio.run(drive(folder))
    print(*(f"WRONG: {what}" for what in wrong), sep="\n", flush=True)
    if wrong:
        print(f"see {folder}")
        return 1
    shutil.rmtree(folder)
    return 0
