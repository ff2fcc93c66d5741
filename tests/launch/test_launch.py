"""A run's launcher around stand-in services: what it records, follows and refuses."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from commands.launch.launch import launch
from commands.launch.local.local_children import LocalChildren
from commands.launch.long_logs import LOG_BYTES
from commands.launch.processes import Processes
from commands.launch.service_process import ServiceDiedError, ServiceProcess
from commands.launch.site import Site
from tests.launch.services import is_alive, make_services, pid_of
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError, UnavailableError
from trimaran.run.context import RunContext
from trimaran.run.device_turns import trainer_turn
from trimaran.run.lease import holder_name
from trimaran.run.network import LOOPBACK
from trimaran.run.runs import (
    EventKind,
    Goal,
    Run,
    RunEvent,
    RunState,
    endpoints_key,
    event_from_tree,
    events_stream,
    goal_key,
    launcher_lease,
    overdue_key,
    restarts_key,
    run_from_tree,
    run_key,
    run_to_tree,
)
from trimaran.store import ConflictError, Record, Store, entries, open_store
from trimaran.store.sqlite import SqliteStore

pytestmark = pytest.mark.timeout(120)

WEAK = "weak: appendfsync is everysec"


class Weak(SqliteStore):
    durability = WEAK


def configure(pools: str = "separate") -> RunConfig:
    return parse_config(
        {
            "run": {"name": "sums", "steps": 7, "pools": pools},
            "model": {"path": "m"},
            "data": {"train": "d"},
            "reward": {"rules": {"exact_match": 1}},
            "frozen_timeout": 4,
        }
    )


def serving_replica(folder: Path) -> ServiceProcess:
    """It answers its health, at an address of its own."""
    address, script = LOOPBACK.free_address(), Path(__file__).with_name("serving.py")
    [replica] = make_services(folder, {"rollout-0": "run"})
    command = (sys.executable, str(script), address, str(folder / "rollout-0"))
    return replace(replica, command=command, address=address)


def no_replica(index: int, devices: tuple[str, ...]) -> list[ServiceProcess]:
    raise AssertionError("nobody wants more")


@dataclass
class Launched:
    """A launcher under way, and what a test does to it."""

    folder: Path
    store: Store
    run: RunContext
    reported: list[Goal] = field(default_factory=list)
    processes: Processes | None = None
    is_away: bool = False
    """The controller cannot be sent its goal."""
    config: RunConfig = field(default_factory=configure)
    more: list[ServiceProcess] = field(default_factory=list)
    task: asyncio.Task[Run | None] = field(init=False)

    async def set_goal(self, address: str, goal: Goal) -> None:
        if self.is_away:
            raise UnavailableError("connection refused")
        self.reported.append(goal)

    async def launch(self, tasks: Mapping[str, str]) -> Run | None:
        def on_start(processes: Processes) -> None:
            self.processes = processes

        services = [*make_services(self.folder, tasks), *self.more]
        site = Site(services, no_replica, LocalChildren())
        return await launch(self.config, self.run, site, self.store, self.set_goal, on_start)

    async def put_goal(self, goal: Goal) -> None:
        await self.store.put(goal_key(self.run.run_id), {"goal": goal.value})

    async def report(self, state: RunState, **fields: Any) -> None:
        """As the controller does."""
        run = Run(self.run.run_id, state, 1, 7, **fields)
        await self.store.put(run_key(run.run_id), run_to_tree(run))

    async def recorded(self) -> Run:
        record = await self.store.get(run_key(self.run.run_id))
        assert record
        return run_from_tree(record.value)

    async def events(self) -> list[RunEvent]:
        stream = events_stream(self.run.run_id)
        return [event_from_tree(*entry) async for entry in entries(self.store, stream)]

    async def under_way(self) -> None:
        """The controller says that the run is running, and the launcher has heard it."""
        await self.report(RunState.RUNNING)
        while not (self.processes and self.processes.running):
            await asyncio.sleep(0.02)

    async def begin(self, tasks: Mapping[str, str]) -> int:
        """The controller's process id, once it is up."""
        self.task = asyncio.create_task(self.launch(tasks))
        return await self.up("controller")

    async def finish(self) -> Run | None:
        """The controller ends well."""
        (self.folder / "controller-may-finish").touch()
        return await self.task

    async def up(self, name: str) -> int:
        return await asyncio.to_thread(pid_of, self.folder / name)


@asynccontextmanager
async def launching(folder: Path) -> AsyncIterator[Launched]:
    run = RunContext.in_folder(folder)
    store = await open_store(run.store_url)
    try:
        yield Launched(folder, store, run)
    finally:
        await store.close()


async def test_a_run_is_recorded_as_starting_with_who_listens_where(tmp_path: Path) -> None:
    async with launching(tmp_path) as launched:
        await launched.begin({"controller": "finish", "reward": "run"})
        run = await launched.recorded()
        assert (run.state, run.num_steps, run.name, run.starts) == ("starting", 7, "sums", 1)
        assert run.started_at and run.folder == str(tmp_path)
        record = await launched.store.get(endpoints_key(launched.run.run_id))
        assert record and set(record.value) == {"controller", "reward"}
        lease = await launched.store.holder(launcher_lease(launched.run.run_id))
        assert lease and lease.holder == holder_name(os.getpid())
        await launched.finish()
        assert await launched.store.holder(launcher_lease(launched.run.run_id)) is None


async def test_the_log_and_the_events_say_who_died_and_the_log_how_the_run_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "commands.launch")
    async with launching(tmp_path) as launched:
        key = restarts_key(launched.run.run_id)
        await launched.begin({"controller": "finish", "reward": "run"})
        reward = await launched.up("reward")
        await launched.under_way()
        (tmp_path / "reward").unlink()
        os.kill(reward, signal.SIGKILL)
        await launched.up("reward")
        while not (record := await launched.store.get(key)) or record.value != {"reward": 1}:
            await asyncio.sleep(0.05)
        await launched.report(RunState.SUCCEEDED)
        await launched.finish()
        events = await launched.events()
    assert {event.kind for event in events} == {EventKind.PROCESS}
    assert [event.text for event in events] == [
        "reward died (killed by SIGKILL); the run starts it again in 1 s",
        "reward is started again",
    ]
    lines = caplog.messages
    assert lines[0] == f"starting run {tmp_path.name}: controller, reward"
    assert "run running, step 1" in lines
    assert any(line.startswith("reward died (killed by SIGKILL") for line in lines)
    assert lines[-1] == "the processes have ended: run succeeded, step 1"


@pytest.mark.parametrize(
    ("state", "starts", "takes_over"),
    [
        (RunState.RUNNING, 1, True),
        (RunState.STARTING, 2, True),
        (RunState.STARTING, 0, False),
        (RunState.FAILED, 1, False),
    ],
)
async def test_what_an_earlier_launcher_left_under_way_is_taken_over(
    tmp_path: Path, state: RunState, starts: int, takes_over: bool
) -> None:
    async with launching(tmp_path) as launched:
        await launched.report(state, starts=starts)
        await launched.begin({"controller": "finish"})
        await launched.finish()
        assert launched.processes and launched.processes.takes_over is takes_over


@pytest.mark.parametrize(
    ("goal", "state", "kind"),
    [
        (Goal.PAUSE, RunState.PAUSED, EventKind.STATE),
        (Goal.CANCEL, RunState.CANCELLED, EventKind.FINISHED),
    ],
)
async def test_a_run_that_still_starts_is_ended_at_once(
    tmp_path: Path, goal: Goal, state: RunState, kind: EventKind
) -> None:
    async with launching(tmp_path) as launched:
        controller = await launched.begin({"controller": "run", "trainer-0": "deaf"})
        pids = controller, await launched.up("trainer-0")
        await launched.put_goal(goal)
        ended = await launched.task
        assert ended and ended == await launched.recorded()
        assert (ended.state, bool(ended.ended_at)) == (state, state.has_ended)
        [event] = await launched.events()
        assert (event.kind, event.run) == (kind, ended)
        assert not launched.reported
        assert not any(map(is_alive, pids))


async def test_logs_that_became_long_are_emptied_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.launch.launch.LOOK_SECONDS", 0.05)
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "reward.log"

    async with launching(tmp_path) as launched:
        await launched.begin({"controller": "finish"})
        with log.open("wb") as file:
            file.truncate(LOG_BYTES + 1)
        while log.stat().st_size:
            await asyncio.sleep(0.02)
        assert (tmp_path / "logs" / "reward.log.1").stat().st_size == LOG_BYTES + 1
        await launched.finish()


async def test_the_controller_of_a_run_under_way_is_sent_its_goal_until_it_hears(
    tmp_path: Path,
) -> None:
    async with launching(tmp_path) as launched:
        launched.is_away = True
        await launched.begin({"controller": "finish"})
        await launched.under_way()
        await launched.put_goal(Goal.PAUSE)
        await asyncio.sleep(0.7)
        launched.is_away = False
        while not launched.reported:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.7)
        assert launched.reported == [Goal.PAUSE]
        await launched.report(RunState.PAUSED)
        ended = await launched.finish()
        assert ended and ended.state is RunState.PAUSED


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.CANCELLED, RunState.PAUSED])
async def test_a_controller_that_is_killed_after_its_last_word_had_it(
    tmp_path: Path, state: RunState
) -> None:
    """Services of others would wait for one that nothing starts for a run that has ended."""
    async with launching(tmp_path) as launched:
        controller = await launched.begin({"controller": "finish", "reward": "run"})
        pids = controller, await launched.up("reward")
        await launched.under_way()
        await launched.report(state)
        await asyncio.sleep(0.7)
        assert not launched.task.done()  # it ends in order, as far as anybody knows
        os.kill(pids[0], signal.SIGKILL)
        ended = await launched.task
        assert ended and ended.state is state
        assert {event.kind for event in await launched.events()} <= {EventKind.PROCESS}
        assert not any(map(is_alive, pids))


async def test_a_death_at_start_is_the_runs_failure_with_a_remedy(tmp_path: Path) -> None:
    async with launching(tmp_path) as launched:
        with pytest.raises(ServiceDiedError):
            await launched.launch({"controller": "run", "trainer-0": "die3"})
        run = await launched.recorded()
        assert run.state is RunState.FAILED
        assert "trainer-0 died at start (exit code 3)" in run.error
        assert "the engine has no wings" in run.error
        assert "log" in run.remedy and "resume" in run.remedy
        [*_, last] = await launched.events()
        assert (last.kind, last.run) == (EventKind.FINISHED, run)


async def test_a_replica_that_keeps_the_trainers_devices_is_ended_once(tmp_path: Path) -> None:
    """Its next life is another than was asked to leave them."""
    async with launching(tmp_path) as launched:
        launched.more = [serving_replica(tmp_path)]
        launched.config = configure("colocated")
        key = overdue_key(launched.run.run_id)
        await launched.store.put(key, {"rollout-0": "of a life before"})
        await launched.begin({"controller": "finish"})
        first = await launched.up("rollout-0")
        await launched.report(RunState.RUNNING)
        await asyncio.sleep(2.5)  # it is asked for its health every second
        assert is_alive(first)
        (tmp_path / "rollout-0").unlink()
        await launched.store.put(key, {"rollout-0": "does not sleep"})
        second = await launched.up("rollout-0")
        assert second != first
        await asyncio.sleep(2.5)
        assert is_alive(second)
        await launched.finish()
        texts = [event.text for event in await launched.events()]
        assert texts == [
            "rollout-0 does not sleep; it is ended, and the trainer goes on",
            "rollout-0 died (killed by SIGKILL); the run starts it again in 1 s",
            "rollout-0 is started again",
        ]


async def test_a_replica_that_waits_for_the_trainers_turn_does_not_count_as_frozen(
    tmp_path: Path,
) -> None:
    """A step of a large model is longer than any start."""
    async with launching(tmp_path) as launched:
        launched.config = configure("colocated").model_copy(
            update={"start_timeout": 0.1, "frozen_timeout": 1.0}
        )
        [replica] = make_services(tmp_path, {"rollout-0": "run"})  # which never answers
        launched.more = [replace(replica, address=LOOPBACK.free_address())]
        step = trainer_turn(launched.config, launched.run, 0)
        assert step
        await step.take(1.0)
        await launched.begin({"controller": "finish"})
        waiting = await launched.up("rollout-0")
        await launched.report(RunState.RUNNING)
        await asyncio.sleep(3.0)
        assert is_alive(waiting)
        step.release()
        while is_alive(waiting):
            await asyncio.sleep(0.05)
        await launched.finish()
        [frozen, *_] = [event.text for event in await launched.events()]
        assert frozen.startswith("rollout-0 is frozen: it has not answered for 1 s")


class Deaf(SqliteStore):
    """Does not answer what it is asked about replicas that are overdue, for a while."""

    is_away = True

    async def get(self, key: str) -> Record | None:
        if self.is_away and key.startswith("overdue/"):
            raise UnavailableError("the store is away")
        return await super().get(key)


async def test_what_was_overdue_under_the_launcher_before_ends_no_process(tmp_path: Path) -> None:
    """Also where this one cannot read it before its own replica is up."""
    async with launching(tmp_path) as launched:
        launched.more = [serving_replica(tmp_path)]
        launched.config = configure("colocated")
        await launched.store.put(overdue_key(launched.run.run_id), {"rollout-0": "of before"})
        store = launched.store = Deaf(tmp_path / "store.sqlite")
        await launched.begin({"controller": "finish"})
        replica_pid = await launched.up("rollout-0")
        await launched.report(RunState.RUNNING)
        await asyncio.sleep(2.5)  # it is asked for its health every second
        store.is_away = False
        await asyncio.sleep(1.0)
        assert is_alive(replica_pid)
        await launched.finish()
        assert not await launched.events()
        await store.close()


async def test_a_store_that_may_lose_what_it_acknowledged_is_named_in_the_run(
    tmp_path: Path,
) -> None:
    async with launching(tmp_path) as launched:
        launched.store = Weak(tmp_path / "store.sqlite")
        await launched.store.open(make=True)
        await launched.begin({"controller": "finish"})
        await launched.report(RunState.RUNNING)
        await launched.finish()
        [event] = await launched.events()
        assert (event.kind, event.text) == (EventKind.PROCESS, f"the run's store: {WEAK}")
        await launched.store.close()


async def test_a_cancelled_launcher_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    async with launching(tmp_path) as launched:
        controller = await launched.begin({"controller": "run"})
        await launched.report(RunState.RUNNING)
        launched.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await launched.task
        assert (await launched.recorded()).state is RunState.RUNNING
        assert not is_alive(controller)
        assert await launched.store.holder(launcher_lease(launched.run.run_id)) is None


async def test_the_lease_of_a_launcher_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    gone = holder_name(os.getpid()).rsplit(" ", 1)[0] + " 1"  # our pid, but of an earlier process

    async with launching(tmp_path) as launched:
        name = launcher_lease(launched.run.run_id)
        assert await launched.store.acquire(name, gone, 3600.0)
        await launched.launch({"controller": "die0"})


async def test_a_launcher_that_lives_elsewhere_is_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimaran.run.lease.LEASE_SECONDS", 0.5)
    monkeypatch.setattr("trimaran.run.lease.RENEW_SECONDS", 0.1)

    async with launching(tmp_path) as launched:
        name = launcher_lease(launched.run.run_id)
        assert await launched.store.acquire(name, "another-host 17 4711", 3600.0)
        with pytest.raises(InputError, match="still going on .another-host 17 4711"):
            await launched.launch({"controller": "die0"})
        assert not (tmp_path / "controller.log").exists()
        assert not await launched.events()


async def test_a_launcher_that_was_replaced_ends_its_processes_and_records_nothing(
    tmp_path: Path,
) -> None:
    async with launching(tmp_path) as launched:
        controller = await launched.begin({"controller": "run"})
        name = launcher_lease(launched.run.run_id)
        # As one does that finds the lease ended while this process was frozen.
        former = await launched.store.acquire(name, holder_name(os.getpid()), 10.0)
        assert former
        await launched.store.release(former)
        assert await launched.store.acquire(name, "another-host 17 4711", 3600.0)
        before = await launched.recorded()
        with pytest.raises(ConflictError, match="another launcher"):
            await launched.task
        assert not is_alive(controller)
        assert await launched.recorded() == before
        assert not await launched.events()
