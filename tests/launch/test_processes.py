"""Real processes: whatever ends the launcher, nothing is left running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from commands.launch.processes import Processes
from commands.launch.restarts import Restarts
from commands.launch.service_process import Exit, ServiceDiedError, ServiceProcess, StopTimes
from tests.launch.services import is_alive, make_services, pid_of, wait_until
from trimaran.host.shared_memory import FOLDER, SUFFIX, note_names
from trimaran.run.exits import LEFT_BEHIND, TRY_AGAIN

QUICK = StopTimes(leader=1.0, running=1.0, loading=0.5)
NEVER = partial(Restarts, first_pause=3600.0, longest_pause=3600.0)
TWICE = partial(Restarts, first_pause=0.001, max_in_a_row=2)


def start(
    folder: Path,
    tasks: Mapping[str, str],
    restarts: Callable[[], Restarts] = Restarts,
    stop_times: StopTimes = QUICK,
) -> Processes:
    return Processes(make_services(folder, tasks), stop_times, restarts)


def pids(folder: Path, names: Mapping[str, str]) -> list[int]:
    found = [pid_of(folder / name) for name in names]
    engines = [name for name, what in names.items() if what == "engine"]
    return found + [int((folder / f"{name}-child").read_text()) for name in engines]


async def until_up(folder: Path, names: Mapping[str, str]) -> list[int]:
    return await asyncio.to_thread(pids, folder, names)


def test_the_leaders_end_ends_all_also_the_deaf_and_what_they_started(tmp_path: Path) -> None:
    names = {"controller": "finish", "trainer-0": "deaf", "rollout-0": "engine"}

    async def run() -> list[int]:
        async with start(tmp_path, names) as processes:
            found = await until_up(tmp_path, names)
            (tmp_path / "controller-may-finish").touch()
            await processes.wait(pytest.fail)
        return found

    found = asyncio.run(run())
    assert len(found) == 4
    for pid in found:
        wait_until(lambda pid=pid: not is_alive(pid), f"{pid} to end")


@pytest.mark.parametrize(("what", "code"), [("die3", 1), ("die2", 2), ("die0", 1)])
def test_a_death_at_start_ends_all_and_shows_its_last_lines(
    tmp_path: Path, what: str, code: int
) -> None:
    names = {"controller": "run", "trainer-0": what, "rollout-0": "run"}

    async def run() -> None:
        async with start(tmp_path, names) as processes:
            await processes.wait(pytest.fail)

    with pytest.raises(ServiceDiedError) as caught:
        asyncio.run(run())
    assert caught.value.exit_code == code
    assert not caught.value.started
    text = str(caught.value)
    assert text.startswith(f"trainer-0 died at start (exit code {what[-1]})")
    # Exit code 2 comes with a message of its own.
    assert ("first words" in text) == (code != 2)
    assert "error: the engine has no wings" in text
    assert str(tmp_path / "trainer-0.log") in text
    for name in ("controller", "rollout-0"):
        if (tmp_path / name).exists():
            assert not is_alive(pid_of(tmp_path / name))


def test_last_words_of_an_earlier_start_are_not_shown_again(tmp_path: Path) -> None:
    (tmp_path / "trainer-0.log").write_text("old news\n")

    async def run() -> None:
        async with start(tmp_path, {"trainer-0": "die1"}) as processes:
            await processes.wait(pytest.fail)

    with pytest.raises(ServiceDiedError) as caught:
        asyncio.run(run())
    assert "first words" in str(caught.value)
    assert "old news" not in str(caught.value)


def test_the_run_outlives_all_its_replicas_and_takes_what_they_started_with_them(
    tmp_path: Path,
) -> None:
    names = {"controller": "run", "rollout-0": "engine", "rollout-1": "run"}
    lost: list[str] = []

    async def run() -> list[int]:
        async with start(tmp_path, names, NEVER) as processes:
            _, first, second, first_child = await until_up(tmp_path, names)
            processes.running = True
            waiting = asyncio.create_task(processes.wait(lost.append))
            os.kill(first, signal.SIGKILL)
            while not lost:
                await asyncio.sleep(0.01)
            os.kill(second, signal.SIGKILL)
            while len(lost) < 2:
                await asyncio.sleep(0.01)
            assert not waiting.done()
            waiting.cancel()
            return [first_child]

    (child,) = asyncio.run(asyncio.wait_for(run(), 60))
    assert lost == [
        f"{name} died (killed by SIGKILL); the run starts it again in 3600 s"
        for name in ("rollout-0", "rollout-1")
    ]
    wait_until(lambda: not is_alive(child), "the dead replica's child to end")


@pytest.mark.parametrize("name", ["weight-sync", "rollout-0"])
def test_a_run_ends_when_a_service_that_it_needs_dies_again_and_again(
    name: str, tmp_path: Path
) -> None:
    notes: list[str] = []

    async def run() -> None:
        async with start(tmp_path, {"controller": "run", name: "die3"}, TWICE) as processes:
            processes.running = True
            await processes.wait(notes.append)

    with pytest.raises(ServiceDiedError, match=rf"^{name} died \(exit code 3\)"):
        asyncio.run(asyncio.wait_for(run(), 60))
    assert sum("is started again" in note for note in notes) == 2


def test_a_dead_replica_is_started_again_and_the_run_goes_on_meanwhile(tmp_path: Path) -> None:
    names = {"controller": "finish", "rollout-0": "run", "rollout-1": "run"}
    notes: list[str] = []

    async def run() -> list[int]:
        async with start(tmp_path, names, partial(Restarts, first_pause=0.01)) as processes:
            _, first, second = await until_up(tmp_path, names)
            processes.running = True
            waiting = asyncio.create_task(processes.wait(notes.append))
            (tmp_path / "rollout-0").unlink()
            os.kill(first, signal.SIGKILL)
            again = await asyncio.to_thread(pid_of, tmp_path / "rollout-0")
            assert again != first
            # It counts as alive again: the other one may die now.
            os.kill(second, signal.SIGKILL)
            while sum("rollout-1 died" in note for note in notes) == 0:
                await asyncio.sleep(0.01)
            assert not waiting.done()
            (tmp_path / "controller-may-finish").touch()
            await waiting
            return [again]

    (again,) = asyncio.run(asyncio.wait_for(run(), 60))
    assert notes[:2] == [
        "rollout-0 died (killed by SIGKILL); the run starts it again in 0.01 s",
        "rollout-0 is started again",
    ]
    assert not is_alive(again)


def test_a_replica_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    names = {"controller": "run", "rollout-0": "die3", "rollout-1": "run"}
    notes: list[str] = []

    async def run() -> None:
        async with start(tmp_path, names, TWICE) as processes:
            processes.running = True
            waiting = asyncio.create_task(processes.wait(notes.append))
            while not any("in a row" in note for note in notes):
                await asyncio.sleep(0.01)
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [note for note in notes if "is started again" in note] == [
        "rollout-0 is started again"
    ] * 2
    assert notes[-1] == (
        "rollout-0 died (exit code 3), 3 times in a row; it is not started again and"
        f" the run goes on without it; see {tmp_path / 'rollout-0.log'}"
    )


def on_two_hosts(folder: Path, tasks: Mapping[str, str], *mates: str) -> list[ServiceProcess]:
    """With the processes of one replica, which cannot go on without each other."""
    return [
        replace(service, takes_along=frozenset(mates) - {service.name}, expendable=True)
        if service.name in mates
        else service
        for service in make_services(folder, tasks)
    ]


def test_a_replica_on_two_hosts_is_started_again_as_a_whole_and_given_up_as_a_whole(
    tmp_path: Path,
) -> None:
    names = {"controller": "run", "rollout-0": "run", "follower-0": "die3", "rollout-1": "run"}
    services = on_two_hosts(tmp_path, names, "rollout-0", "follower-0")
    notes: list[str] = []

    async def run() -> None:
        async with Processes(services, QUICK, TWICE) as processes:
            processes.running = True
            waiting = asyncio.create_task(processes.wait(notes.append))
            while not any("in a row" in note for note in notes):
                await asyncio.sleep(0.01)
            while "rollout-0" in processes.alive:
                await asyncio.sleep(0.01)
            assert processes.addresses.keys() == {"controller", "rollout-1"}
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(asyncio.wait_for(run(), 60))
    again = [note for note in notes if "is started again" in note]
    assert again == ["rollout-0 is started again", "follower-0 is started again"] * 2


def test_a_replica_on_two_hosts_is_taken_away_as_a_whole(tmp_path: Path) -> None:
    names = {"controller": "run", "rollout-0": "run", "follower-0": "run", "rollout-1": "run"}
    services = on_two_hosts(tmp_path, names, "rollout-0", "follower-0")

    async def run() -> None:
        async with Processes(services, QUICK) as processes:
            await until_up(tmp_path, names)
            await processes.remove("rollout-0")
            assert processes.alive.keys() == {"controller", "rollout-1"}

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("first", ["rollout-0", "follower-0"])
def test_a_replica_on_two_hosts_leaves_as_a_whole_and_can_be_added_again(
    tmp_path: Path, first: str
) -> None:
    """Its engine takes one of its processes away."""
    names = {"controller": "run", "rollout-0": "run", "follower-0": "run", "rollout-1": "run"}
    services = on_two_hosts(tmp_path, names, "rollout-0", "follower-0")
    notes: list[str] = []

    async def run() -> None:
        async with Processes(services, QUICK) as processes:
            processes.running = True
            await until_up(tmp_path, names)
            waiting = asyncio.create_task(processes.wait(notes.append))
            gone = processes.services[first]
            await processes._children.end([first], 1.0)
            processes._children.exits.put_nowait(Exit(gone, -signal.SIGTERM, 1.0, left=True))
            while processes.alive.keys() != {"controller", "rollout-1"}:
                await asyncio.sleep(0.01)
            assert processes.services.keys() == {"controller", "rollout-1"}
            for service in services[1:3]:
                await processes.add(service)
            assert processes.alive.keys() == names.keys()
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(asyncio.wait_for(run(), 60))
    other = {"rollout-0", "follower-0"} - {first}
    assert notes == [
        f"{first} has left with {other.pop()} (killed by SIGTERM); groups under way go on elsewhere"
    ]


def test_the_further_hosts_of_a_replica_that_is_taken_away_stay_until_it_has_drained(
    tmp_path: Path,
) -> None:
    names = {"controller": "run", "rollout-0": "drains", "follower-0": "run", "rollout-1": "run"}
    services = on_two_hosts(tmp_path, names, "rollout-0", "follower-0")

    async def run() -> None:
        async with Processes(services, QUICK) as processes:
            found = await until_up(tmp_path, names)
            (tmp_path / "rollout-0-needs").write_text(str(found[2]))
            await processes.remove("rollout-0")

    asyncio.run(asyncio.wait_for(run(), 60))
    assert (tmp_path / "rollout-0-drained").read_text() == "True"


def test_a_host_that_dies_with_a_replica_that_is_given_up_does_not_bring_it_back(
    tmp_path: Path,
) -> None:
    names = {"controller": "run", "rollout-0": "run", "follower-0": "run", "rollout-1": "run"}
    services = on_two_hosts(tmp_path, names, "rollout-0", "follower-0")
    notes: list[str] = []
    once = partial(Restarts, first_pause=0.001, max_in_a_row=0)

    async def run() -> None:
        async with Processes(services, QUICK, once) as processes:
            processes.running = True
            await until_up(tmp_path, names)
            # Both have died before the first death is heard of.
            processes._restarts["follower-0"] = TWICE()
            processes.kill("rollout-0")
            processes.kill("follower-0")
            while processes._children.exits.qsize() < 2:
                await asyncio.sleep(0.01)
            waiting = asyncio.create_task(processes.wait(notes.append))
            while processes.alive.keys() != {"controller", "rollout-1"}:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert processes.alive.keys() == {"controller", "rollout-1"}
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert not [note for note in notes if "started again" in note and "not" not in note]


def test_the_end_does_not_wait_for_a_restart_that_is_due(tmp_path: Path) -> None:
    names = {"controller": "finish", "rollout-0": "run", "rollout-1": "run"}
    notes: list[str] = []

    async def run() -> None:
        async with start(tmp_path, names, NEVER) as processes:
            _, first, _ = await until_up(tmp_path, names)
            processes.running = True
            waiting = asyncio.create_task(processes.wait(notes.append))
            os.kill(first, signal.SIGKILL)
            while not notes:
                await asyncio.sleep(0.01)
            (tmp_path / "rollout-0").unlink()
            (tmp_path / "controller-may-finish").touch()
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))
    assert not (tmp_path / "rollout-0").exists()


def test_pauses_grow_until_it_is_given_up_and_a_long_life_forgives() -> None:
    kept = Restarts()
    assert [kept.next_pause(1.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 16.0, None]
    forgiven = Restarts()
    assert [forgiven.next_pause(lived) for lived in (1.0, 1.0, 300.0, 1.0)] == [1.0, 2.0, 1.0, 2.0]


def test_who_is_deaf_while_it_loads_does_not_hold_up_the_end(tmp_path: Path) -> None:

    async def run() -> list[int]:
        async with start(
            tmp_path, {"rollout-0": "deaf"}, stop_times=StopTimes(running=3600.0, loading=0.5)
        ):
            return await until_up(tmp_path, {"rollout-0": "deaf"})

    (pid,) = asyncio.run(asyncio.wait_for(run(), 60))
    assert not is_alive(pid)


def forget(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


async def until_again(folder: Path, *names: str) -> list[int]:
    return [await asyncio.to_thread(pid_of, folder / name) for name in names]


SOON = partial(Restarts, first_pause=0.01)


def test_a_stopped_process_does_not_hold_up_the_end(tmp_path: Path) -> None:
    services = make_services(tmp_path, {"controller": "finish", "rollout-0": "run"})

    async def run() -> None:
        async with Processes(services, StopTimes(running=3600.0)) as processes:
            processes.running = True
            stopped = await asyncio.to_thread(pid_of, tmp_path / "rollout-0")
            os.kill(stopped, signal.SIGSTOP)
            Path(tmp_path / "controller-may-finish").touch()
            await processes.wait(print)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_dead_rank_takes_all_ranks_and_the_controller_along_and_nobody_else(
    tmp_path: Path,
) -> None:
    names = {"controller": "finish", "trainer-0": "run", "trainer-1": "deaf", "rollout-0": "run"}
    notes: list[str] = []

    async def run() -> None:
        async with start(tmp_path, names, SOON, StopTimes(loading=0.2)) as processes:
            controller, first, second, replica = await until_up(tmp_path, names)
            processes.running = True
            waiting = asyncio.create_task(processes.wait(notes.append))
            forget(tmp_path, "controller", "trainer-0", "trainer-1")
            os.kill(first, signal.SIGKILL)
            again = await until_again(tmp_path, "controller", "trainer-0", "trainer-1")
            assert not {controller, first, second} & set(again)
            assert not any(map(is_alive, (controller, first, second)))
            assert pid_of(tmp_path / "rollout-0") == replica and is_alive(replica)
            (tmp_path / "controller-may-finish").touch()
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))
    assert notes[0] == (
        "trainer-0 died (killed by SIGKILL); the run starts it again with controller, trainer-1"
        " in 0.01 s"
    )
    assert set(notes[1:]) == {
        f"{name} is started again" for name in ("trainer-0", "trainer-1", "controller")
    }


def test_a_rank_that_was_left_behind_takes_no_other_rank_along_also_at_the_start(
    tmp_path: Path,
) -> None:
    """Its new rank 0 waits for it: to start that one anew as well would leave it behind again."""
    names = {
        "controller": "finish",
        "trainer-0": "run",
        "trainer-1": f"finish{LEFT_BEHIND}",
        "trainer-2": "run",
    }
    notes: list[str] = []

    async def run() -> None:
        async with start(tmp_path, names, SOON) as processes:
            controller, *others = await until_up(tmp_path, names)
            waiting = asyncio.create_task(processes.wait(notes.append))
            forget(tmp_path, "controller", "trainer-1")
            (tmp_path / "trainer-1-may-finish").touch()
            while not notes:
                await asyncio.sleep(0.001)
            (tmp_path / "trainer-1-may-finish").unlink()
            assert controller not in await until_again(tmp_path, "controller", "trainer-1")
            for name, pid in zip(("trainer-0", "trainer-2"), others[::2], strict=True):
                assert pid_of(tmp_path / name) == pid and is_alive(pid)
            (tmp_path / "controller-may-finish").touch()
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))
    assert notes[0].startswith(f"trainer-1 died (exit code {LEFT_BEHIND}); the run starts it again")
    assert notes[0].endswith(" with controller in 0.01 s")


def test_ranks_that_die_together_come_back_once(tmp_path: Path) -> None:
    names = {"controller": "finish", "trainer-0": "run", "trainer-1": "run"}
    notes: list[str] = []

    async def run() -> None:
        async with start(tmp_path, names, partial(Restarts, first_pause=0.3)) as processes:
            found = await until_up(tmp_path, names)
            processes.running = True
            waiting = asyncio.create_task(processes.wait(notes.append))
            forget(tmp_path, *names)
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            await until_again(tmp_path, *names)
            assert len(processes.alive) == 3
            (tmp_path / "controller-may-finish").touch()
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))
    assert sum("is started again" in note for note in notes) == 3


def test_a_dead_controller_is_started_again_alone(tmp_path: Path) -> None:
    names = {"controller": "finish", "trainer-0": "run"}

    async def run() -> None:
        async with start(tmp_path, names, SOON) as processes:
            controller, trainer = await until_up(tmp_path, names)
            processes.running = True
            waiting = asyncio.create_task(processes.wait(print))
            forget(tmp_path, "controller")
            os.kill(controller, signal.SIGKILL)
            [again] = await until_again(tmp_path, "controller")
            assert again != controller and is_alive(trainer)
            (tmp_path / "controller-may-finish").touch()
            await waiting
            assert pid_of(tmp_path / "trainer-0") == trainer

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(("code", "num_starts"), [(1, 1), (2, 1), (TRY_AGAIN, 3)])
def test_a_controller_that_has_decided_is_not_started_again(
    tmp_path: Path, code: int, num_starts: int
) -> None:
    async def run() -> None:
        async with start(tmp_path, {"controller": f"die{code}"}, TWICE) as processes:
            processes.running = True
            await processes.wait(print)

    with pytest.raises(ServiceDiedError) as caught:
        asyncio.run(asyncio.wait_for(run(), 60))
    assert caught.value.exit_code == (2 if code == 2 else 1)
    assert (tmp_path / "controller.log").read_text().count("first words") == num_starts


def test_who_is_killed_at_the_first_start_is_started_again(tmp_path: Path) -> None:
    names = {"controller": "finish", "trainer-0": "run"}

    async def run() -> None:
        async with start(tmp_path, names, SOON) as processes:
            _, trainer = await until_up(tmp_path, names)
            waiting = asyncio.create_task(processes.wait(print))
            forget(tmp_path, *names)
            os.kill(trainer, signal.SIGKILL)
            await until_again(tmp_path, *names)
            (tmp_path / "controller-may-finish").touch()
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("why", ["nothing", "a kill", "an earlier launcher"])
def test_who_misses_another_at_the_start_is_started_again_if_that_one_was_or_may_have_been_killed(
    why: str, tmp_path: Path
) -> None:
    names = {"controller": f"finish{TRY_AGAIN}", "weight-sync": "run"}
    notes: list[str] = []

    async def run() -> None:
        async with start(tmp_path, names, SOON) as processes:
            processes.takes_over = why == "an earlier launcher"
            _, weight_sync = await until_up(tmp_path, names)
            waiting = asyncio.create_task(processes.wait(notes.append))
            if why == "a kill":
                forget(tmp_path, "weight-sync")
                os.kill(weight_sync, signal.SIGKILL)
                await until_again(tmp_path, "weight-sync")
            (tmp_path / "controller-may-finish").touch()
            with pytest.raises(ServiceDiedError, match="controller died at start"):
                await waiting  # also at last, after five times in a row

    asyncio.run(asyncio.wait_for(run(), 60))
    assert ("controller is started again" in notes) == (why != "nothing")


def test_progress_forgives_the_deaths_of_those_that_made_it(tmp_path: Path) -> None:
    deaths = 5
    names = {"controller": "finish"}

    async def run() -> None:
        async with start(tmp_path, names, TWICE) as processes:
            [controller] = await until_up(tmp_path, names)
            processes.running = True
            waiting = asyncio.create_task(processes.wait(print))
            for _ in range(deaths):
                forget(tmp_path, "controller")
                os.kill(controller, signal.SIGKILL)
                [controller] = await until_again(tmp_path, "controller")
                processes.progressed()
            (tmp_path / "controller-may-finish").touch()
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_replica_is_added_and_taken_while_the_run_goes_on(tmp_path: Path) -> None:
    names = {"controller": "finish", "rollout-0": "run", "rollout-1": "run"}
    notes: list[str] = []

    async def run() -> None:
        *first, added = make_services(tmp_path, names)
        async with Processes(first, QUICK, SOON) as processes:
            processes.running = True
            waiting = asyncio.create_task(processes.wait(notes.append))
            await processes.add(added)
            [pid] = await until_again(tmp_path, "rollout-1")
            await processes.remove("rollout-1")
            assert not is_alive(pid)
            assert set(processes.alive) == {"controller", "rollout-0"}
            await until_again(tmp_path, "controller")
            (tmp_path / "controller-may-finish").touch()
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))
    assert not notes


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
        found = pids(tmp_path, names)
        assert all(map(is_alive, found))
        launcher.send_signal(number)
        for pid in found:
            wait_until(lambda pid=pid: not is_alive(pid), f"{pid} to end")
    finally:
        launcher.kill()
        launcher.wait()


def test_shared_memory_of_a_killed_service_is_removed_before_it_is_started_again(
    tmp_path: Path,
) -> None:
    names = {"controller": "finish", "reward": "run"}
    left = FOLDER / f"trimaran-test-{uuid.uuid4().hex}"

    async def run() -> None:
        async with start(tmp_path, names, SOON) as processes:
            _, reward = await until_up(tmp_path, names)
            processes.running = True
            waiting = asyncio.create_task(processes.wait(print))
            left.touch()
            note_names((tmp_path / "reward.log").with_suffix(SUFFIX), [left.name])
            forget(tmp_path, "reward")
            os.kill(reward, signal.SIGKILL)
            await until_again(tmp_path, "reward")
            assert not left.exists()
            (tmp_path / "controller-may-finish").touch()
            await waiting

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        left.unlink(missing_ok=True)
