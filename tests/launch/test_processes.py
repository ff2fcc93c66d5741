"""Real processes: whatever ends the launcher, nothing is left running; and whose restarts a death costs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from commands.launch.children import Child
from commands.launch.processes import Processes
from commands.launch.restarts import Restarts
from commands.launch.service_process import Exit, ServiceDiedError, ServiceProcess, StopTimes
from tests.launch.services import is_alive, make_services, pid_of, wait_until
from trimaran.host.shared_memory import FOLDER, SUFFIX, note_names
from trimaran.run.exits import LEFT_BEHIND, TRY_AGAIN

pytestmark = pytest.mark.timeout(120)

QUICK = StopTimes(leader=1.0, running=1.0, loading=0.5)
SOON = partial(Restarts, first_pause=0.01)
NEVER = partial(Restarts, first_pause=3600.0, longest_pause=3600.0)
TWICE = partial(Restarts, first_pause=0.001, max_in_a_row=2)


@dataclass
class UnderWay:
    """Processes that are all up, and what a test does to them."""

    folder: Path
    processes: Processes
    pids: dict[str, int]
    notes: list[str] = field(default_factory=list)
    waiting: asyncio.Task[None] | None = None

    def kill(self, name: str) -> None:
        """From outside. Its mark goes, so that the next life is seen."""
        (self.folder / name).unlink(missing_ok=True)
        os.kill(self.pids[name], signal.SIGKILL)

    async def again(self, *names: str) -> list[int]:
        """The process ids of their next lives."""
        return [await asyncio.to_thread(pid_of, self.folder / name) for name in names]

    async def noted(self, words: str, count: int = 1) -> None:
        while sum(words in note for note in self.notes) < count:
            await asyncio.sleep(0.01)

    async def until_alive(self, *names: str) -> None:
        while self.processes.alive.keys() != set(names):
            await asyncio.sleep(0.01)

    async def finish(self) -> None:
        """The leader ends well, and so does the run."""
        (self.folder / "controller-may-finish").touch()
        assert self.waiting
        await self.waiting


def children_of(folder: Path, tasks: Mapping[str, str]) -> list[int]:
    """Of stand-ins that start a process themselves, as an engine does."""
    names = [name for name, what in tasks.items() if what == "engine"]
    return [int((folder / f"{name}-child").read_text()) for name in names]


@asynccontextmanager
async def under_way(
    folder: Path,
    tasks: Mapping[str, str],
    restarts: Callable[[], Restarts] = SOON,
    stop_times: StopTimes = QUICK,
    services: Sequence[ServiceProcess] = (),
    running: bool = True,
) -> AsyncIterator[UnderWay]:
    """`running` False: the run is still starting. Ends the processes if the test has not."""
    made = services or make_services(folder, tasks)
    async with Processes(made, stop_times, restarts) as processes:
        lasting = [name for name, what in tasks.items() if not what.startswith("die")]
        pids = {name: await asyncio.to_thread(pid_of, folder / name) for name in lasting}
        run = UnderWay(folder, processes, pids)
        processes.running = running
        run.waiting = asyncio.create_task(processes.wait(run.notes.append))
        yield run
        run.waiting.cancel()


async def until_death(
    folder: Path, tasks: Mapping[str, str], running: bool = False
) -> ServiceDiedError:
    """By what the run ends."""
    with pytest.raises(ServiceDiedError) as caught:
        async with Processes(make_services(folder, tasks), QUICK, TWICE) as processes:
            processes.running = running
            await processes.wait(print)
    return caught.value


async def test_the_leaders_end_ends_all_also_the_deaf_and_what_they_started(tmp_path: Path) -> None:
    names = {"controller": "finish", "trainer-0": "deaf", "rollout-0": "engine"}
    async with under_way(tmp_path, names, running=False) as run:
        found = [*run.pids.values(), *children_of(tmp_path, names)]
        await run.finish()
    assert len(found) == 4
    for pid in found:
        wait_until(lambda pid=pid: not is_alive(pid), f"{pid} to end")


@pytest.mark.parametrize(("what", "code"), [("die3", 1), ("die2", 2), ("die0", 1)])
async def test_a_death_at_start_ends_all_and_shows_its_last_lines(
    tmp_path: Path, what: str, code: int
) -> None:
    (tmp_path / "trainer-0.log").write_text("old news\n")
    died = await until_death(tmp_path, {"controller": "run", "trainer-0": what, "rollout-0": "run"})
    assert (died.exit_code, died.started) == (code, False)
    text = str(died)
    assert text.startswith(f"trainer-0 died at start (exit code {what[-1]})")
    # Exit code 2 comes with a message of its own.
    assert ("first words" in text) == (code != 2)
    assert "error: the engine has no wings" in text and "old news" not in text
    assert str(tmp_path / "trainer-0.log") in text
    for name in ("controller", "rollout-0"):
        if (tmp_path / name).exists():
            assert not is_alive(pid_of(tmp_path / name))


@pytest.mark.parametrize("name", ["weight-sync", "rollout-0"])
async def test_a_run_ends_when_a_service_that_it_needs_dies_again_and_again(
    name: str, tmp_path: Path
) -> None:
    died = await until_death(tmp_path, {"controller": "run", name: "die3"}, running=True)
    assert str(died).startswith(f"{name} died (exit code 3)")
    assert (tmp_path / f"{name}.log").read_text().count("first words") == 3


@pytest.mark.parametrize(("code", "num_starts"), [(1, 1), (2, 1), (TRY_AGAIN, 3)])
async def test_a_controller_that_has_decided_is_not_started_again(
    tmp_path: Path, code: int, num_starts: int
) -> None:
    died = await until_death(tmp_path, {"controller": f"die{code}"}, running=True)
    assert died.exit_code == (2 if code == 2 else 1)
    assert (tmp_path / "controller.log").read_text().count("first words") == num_starts


async def test_the_run_outlives_all_its_replicas_and_takes_what_they_started_with_them(
    tmp_path: Path,
) -> None:
    names = {"controller": "finish", "rollout-0": "engine", "rollout-1": "run"}
    async with under_way(tmp_path, names, NEVER) as run:
        [child] = children_of(tmp_path, names)
        for count, name in enumerate(("rollout-0", "rollout-1"), start=1):
            run.kill(name)
            await run.noted("died", count)
        wait_until(lambda: not is_alive(child), "the dead replica's child to end")
        await run.finish()  # which waits for no restart that is due
    assert run.notes == [
        f"{name} died (killed by SIGKILL); the run starts it again in 3600 s"
        for name in ("rollout-0", "rollout-1")
    ]


async def test_a_dead_replica_is_started_again_and_the_run_goes_on_meanwhile(
    tmp_path: Path,
) -> None:
    names = {"controller": "finish", "rollout-0": "run", "rollout-1": "run"}
    async with under_way(tmp_path, names) as run:
        run.kill("rollout-0")
        [again] = await run.again("rollout-0")
        assert again != run.pids["rollout-0"]
        run.kill("rollout-1")  # the other one counts as alive again
        await run.noted("rollout-1 died")
        await run.finish()
    assert run.notes[:2] == [
        "rollout-0 died (killed by SIGKILL); the run starts it again in 0.01 s",
        "rollout-0 is started again",
    ]
    assert not is_alive(again)


async def test_a_replica_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    names = {"controller": "run", "rollout-0": "die3", "rollout-1": "run"}
    async with under_way(tmp_path, names, TWICE) as run:
        await run.noted("in a row")
    assert run.notes.count("rollout-0 is started again") == 2
    assert run.notes[-1] == (
        "rollout-0 died (exit code 3), 3 times in a row; it is not started again and"
        f" the run goes on without it; see {tmp_path / 'rollout-0.log'}"
    )


ON_TWO_HOSTS = {"controller": "run", "rollout-0": "run", "follower-0": "run", "rollout-1": "run"}


def on_two_hosts(folder: Path, tasks: Mapping[str, str] = ON_TWO_HOSTS) -> list[ServiceProcess]:
    """With a replica of two processes, which cannot go on without each other."""
    mates = frozenset(("rollout-0", "follower-0"))
    return [
        replace(service, takes_along=mates - {service.name}, expendable=True)
        if service.name in mates
        else service
        for service in make_services(folder, tasks)
    ]


async def test_a_replica_on_two_hosts_is_started_again_as_a_whole_and_given_up_as_a_whole(
    tmp_path: Path,
) -> None:
    names = ON_TWO_HOSTS | {"follower-0": "die3"}
    services = on_two_hosts(tmp_path, names)
    async with under_way(tmp_path, names, TWICE, services=services) as run:
        await run.noted("in a row")
        await run.until_alive("controller", "rollout-1")
        assert run.processes.addresses.keys() == {"controller", "rollout-1"}
    again = [note for note in run.notes if "is started again" in note]
    assert again == ["rollout-0 is started again", "follower-0 is started again"] * 2


@pytest.mark.parametrize("first", ["rollout-0", "follower-0"])
async def test_a_replica_on_two_hosts_leaves_as_a_whole_and_can_be_added_again(
    tmp_path: Path, first: str
) -> None:
    """Its engine takes one of its processes away."""
    services = on_two_hosts(tmp_path)
    async with under_way(tmp_path, ON_TWO_HOSTS, services=services) as run:
        gone = run.processes.services[first]
        await run.processes._children.end([first], 1.0)
        run.processes._children.exits.put_nowait(Exit(gone, -signal.SIGTERM, 1.0, left=True))
        await run.until_alive("controller", "rollout-1")
        assert run.processes.services.keys() == {"controller", "rollout-1"}
        for service in services[1:3]:
            await run.processes.add(service)
        assert run.processes.alive.keys() == ON_TWO_HOSTS.keys()
    [other] = {"rollout-0", "follower-0"} - {first}
    assert run.notes == [
        f"{first} has left with {other} (killed by SIGTERM); groups under way go on elsewhere"
    ]


async def test_a_replica_that_is_taken_away_keeps_its_further_hosts_until_it_has_drained(
    tmp_path: Path,
) -> None:
    names = ON_TWO_HOSTS | {"rollout-0": "drains"}
    services = on_two_hosts(tmp_path, names)
    async with under_way(tmp_path, names, services=services) as run:
        (tmp_path / "rollout-0-needs").write_text(str(run.pids["follower-0"]))
        await run.processes.remove("rollout-0")
        assert run.processes.alive.keys() == {"controller", "rollout-1"}
    assert (tmp_path / "rollout-0-drained").read_text() == "True"


async def test_a_host_that_dies_with_a_replica_that_is_given_up_does_not_bring_it_back(
    tmp_path: Path,
) -> None:
    once = partial(Restarts, first_pause=0.001, max_in_a_row=0)
    services = on_two_hosts(tmp_path)
    async with under_way(tmp_path, ON_TWO_HOSTS, once, services=services) as run:
        run.processes._restarts["follower-0"] = TWICE()
        # Both have died before the first death is heard of.
        assert run.waiting
        run.waiting.cancel()
        run.processes.kill("rollout-0")
        run.processes.kill("follower-0")
        while run.processes._children.exits.qsize() < 2:
            await asyncio.sleep(0.01)
        run.waiting = asyncio.create_task(run.processes.wait(run.notes.append))
        await run.until_alive("controller", "rollout-1")
        await asyncio.sleep(0.5)
        assert run.processes.alive.keys() == {"controller", "rollout-1"}
    assert not [note for note in run.notes if note.endswith("is started again")]


def test_pauses_grow_until_it_is_given_up_and_a_long_life_forgives() -> None:
    kept = Restarts()
    assert [kept.next_pause(1.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 16.0, None]
    forgiven = Restarts()
    assert [forgiven.next_pause(lived) for lived in (1.0, 1.0, 300.0, 1.0)] == [1.0, 2.0, 1.0, 2.0]


async def test_who_is_deaf_while_it_loads_does_not_hold_up_the_end(tmp_path: Path) -> None:
    times = StopTimes(running=3600.0, loading=0.5)
    async with under_way(tmp_path, {"rollout-0": "deaf"}, NEVER, times, running=False) as run:
        pass
    assert not is_alive(run.pids["rollout-0"])


async def test_a_stopped_process_does_not_hold_up_the_end(tmp_path: Path) -> None:
    names = {"controller": "finish", "rollout-0": "run"}
    async with under_way(tmp_path, names, NEVER, StopTimes(running=3600.0)) as run:
        os.kill(run.pids["rollout-0"], signal.SIGSTOP)
        await run.finish()


async def test_a_dead_rank_takes_all_ranks_and_the_controller_along_and_no_other(
    tmp_path: Path,
) -> None:
    names = {"controller": "finish", "trainer-0": "run", "trainer-1": "deaf", "rollout-0": "run"}
    taken = ("controller", "trainer-0", "trainer-1")
    async with under_way(tmp_path, names, stop_times=StopTimes(loading=0.2)) as run:
        for name in taken:
            (tmp_path / name).unlink()
        run.kill("trainer-0")
        before = [run.pids[name] for name in taken]
        assert not set(before) & set(await run.again(*taken))
        assert not any(map(is_alive, before))
        assert pid_of(tmp_path / "rollout-0") == run.pids["rollout-0"]
        assert is_alive(run.pids["rollout-0"])
        await run.finish()
    assert run.notes[0] == (
        "trainer-0 died (killed by SIGKILL); the run starts it again with controller, trainer-1"
        " in 0.01 s"
    )
    assert set(run.notes[1:]) == {f"{name} is started again" for name in taken}


async def test_a_rank_that_was_left_behind_takes_no_other_rank_along_also_at_the_start(
    tmp_path: Path,
) -> None:
    """Its new rank 0 waits for it: to start that one again as well would leave it behind again."""
    names = {"controller": "finish", "trainer-0": "run", "trainer-2": "run"}
    names["trainer-1"] = f"finish{LEFT_BEHIND}"
    async with under_way(tmp_path, names, running=False) as run:
        for name in ("controller", "trainer-1"):
            (tmp_path / name).unlink()
        (tmp_path / "trainer-1-may-finish").touch()
        while not run.notes:
            await asyncio.sleep(0.001)
        (tmp_path / "trainer-1-may-finish").unlink()
        assert run.pids["controller"] not in await run.again("controller", "trainer-1")
        for name in ("trainer-0", "trainer-2"):
            assert pid_of(tmp_path / name) == run.pids[name] and is_alive(run.pids[name])
        await run.finish()
    assert run.notes[0] == (
        f"trainer-1 died (exit code {LEFT_BEHIND}); the run starts it again with controller in 0.01 s"
    )


@pytest.mark.parametrize("running", [True, False])
async def test_ranks_that_are_killed_together_come_back_once_also_at_the_start(
    tmp_path: Path, running: bool
) -> None:
    names = {"controller": "finish", "trainer-0": "run", "trainer-1": "run"}
    pause = partial(Restarts, first_pause=0.3)
    async with under_way(tmp_path, names, pause, running=running) as run:
        for name in names:
            run.kill(name)
        await run.again(*names)
        assert len(run.processes.alive) == 3
        await run.finish()
    assert sum("is started again" in note for note in run.notes) == 3


async def test_a_dead_controller_is_started_again_alone_and_progress_forgives_its_deaths(
    tmp_path: Path,
) -> None:
    async with under_way(tmp_path, {"controller": "finish", "trainer-0": "run"}, TWICE) as run:
        for _ in range(4):
            run.kill("controller")
            [run.pids["controller"]] = await run.again("controller")
            run.processes.progressed()
        assert is_alive(run.pids["trainer-0"])
        await run.finish()
        assert pid_of(tmp_path / "trainer-0") == run.pids["trainer-0"]


@pytest.mark.parametrize("why", ["nothing", "a kill", "an earlier launcher"])
async def test_who_misses_another_at_the_start_is_started_again_if_that_one_was_or_may_have_been_killed(
    why: str, tmp_path: Path
) -> None:
    names = {"controller": f"finish{TRY_AGAIN}", "weight-sync": "run"}
    async with under_way(tmp_path, names, running=False) as run:
        run.processes.takes_over = why == "an earlier launcher"
        if why == "a kill":
            run.kill("weight-sync")
            await run.again("weight-sync")
        with pytest.raises(ServiceDiedError, match="controller died at start"):
            await run.finish()  # also at last, after five times in a row
    assert ("controller is started again" in run.notes) == (why != "nothing")


async def test_a_replica_is_added_and_taken_while_the_run_goes_on(tmp_path: Path) -> None:
    names = {"controller": "finish", "rollout-0": "run"}
    [added] = make_services(tmp_path, {"rollout-1": "run"})
    async with under_way(tmp_path, names) as run:
        await run.processes.add(added)
        [pid] = await run.again("rollout-1")
        await run.processes.remove("rollout-1")
        assert not is_alive(pid)
        assert set(run.processes.alive) == {"controller", "rollout-0"}
        await run.finish()
    assert not run.notes


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_launcher(tmp_path: Path, number: signal.Signals) -> None:
    names = {"controller": "run", "trainer-0": "deaf", "rollout-0": "engine"}
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.launch.launcher", str(tmp_path)),
            *(f"{name}={what}" for name, what in names.items()),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        found = [pid_of(tmp_path / name) for name in names] + children_of(tmp_path, names)
        assert all(map(is_alive, found))
        launcher.send_signal(number)
        for pid in found:
            wait_until(lambda pid=pid: not is_alive(pid), f"{pid} to end")
    finally:
        launcher.kill()
        launcher.wait()


async def test_shared_memory_of_a_killed_service_is_removed_before_it_is_started_again(
    tmp_path: Path,
) -> None:
    left = FOLDER / f"trimaran-test-{uuid.uuid4().hex}"
    try:
        async with under_way(tmp_path, {"controller": "finish", "reward": "run"}) as run:
            left.touch()
            note_names((tmp_path / "reward.log").with_suffix(SUFFIX), [left.name])
            run.kill("reward")
            await run.again("reward")
            assert not left.exists()
            await run.finish()
    finally:
        left.unlink(missing_ok=True)


RANKS = ("trainer-0", "trainer-1", "trainer-2")


class Report:
    """Children that end as the test says."""

    def __init__(self) -> None:
        self.exits: asyncio.Queue[Exit] = asyncio.Queue()
        self.alive: dict[str, Child] = {}

    async def open(self) -> None: ...

    async def start(self, service: ServiceProcess) -> None: ...

    def can_start(self, name: str) -> bool:
        return True

    async def end(self, names: Iterable[str], seconds: float) -> None: ...

    def kill(self, name: str) -> None: ...

    def kill_all(self) -> None: ...

    async def close(self) -> None: ...


def live_through(folder: Path, ends: Sequence[tuple[str, int]]) -> None:
    """Raises ServiceDiedError where the run does not outlive all of them."""

    async def run() -> None:
        children = Report()
        services = make_services(folder, dict.fromkeys(("controller", *RANKS), "run"))
        by_name = {service.name: service for service in services}
        async with Processes(services, restarts=TWICE, children=children) as processes:
            processes.running = True
            for name, code in (*ends, ("controller", 0)):
                children.exits.put_nowait(Exit(by_name[name], code, 1.0, lines=()))
            await processes.wait(print)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_deaths_of_others_cost_a_rank_nothing(tmp_path: Path) -> None:
    others = [("trainer-0", TRY_AGAIN), ("trainer-2", TRY_AGAIN)] * 2
    behind = [("trainer-1", LEFT_BEHIND)] * 2
    own = ("trainer-1", TRY_AGAIN)
    ends = [each for other in others for each in (other, *behind)]
    live_through(tmp_path, [*ends, own, own])
    with pytest.raises(ServiceDiedError, match=f"trainer-1 died .exit code {TRY_AGAIN}"):
        live_through(tmp_path, [*ends, own, own, own])


def test_ranks_that_leave_each_other_behind_for_ever_end_the_run(tmp_path: Path) -> None:
    behind = [("trainer-0", LEFT_BEHIND), ("trainer-1", LEFT_BEHIND)]
    live_through(tmp_path, behind * 2)
    with pytest.raises(ServiceDiedError, match=f"trainer-0 died .exit code {LEFT_BEHIND}"):
        live_through(tmp_path, behind * 3)
