"""The service as its launcher starts it: workers are killed in the middle of a step, and so is the service."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.environment.test_server import CODE, SECONDS, call, configure, prompt
from tests.first_epoch import draw_epoch
from tests.launch.services import is_alive
from tests.trimaran.telemetry.test_exposition import values
from trimaran.clients import EnvironmentClient, MetricsClient
from trimaran.config import RunConfig, dump_config
from trimaran.errors import DeadlineError, InternalError, NotFoundError
from trimaran.run.environment import serve_command, service_environment
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.types import Caller, Message
from trimaran.wire import rpc

pytestmark = pytest.mark.e2e


@asynccontextmanager
async def serving(
    config: RunConfig, run_folder: Path
) -> AsyncGenerator[tuple[subprocess.Popen[bytes], EnvironmentClient]]:
    [address] = config.endpoints.environment
    await draw_epoch(run_folder, "run")
    file = run_folder / "config.yaml"
    file.write_text(dump_config(config))
    inherited = {**os.environ, ALLOW_VARIABLE: f"{CODE}:*", "AWS_SECRET_ACCESS_KEY": "s"}
    service = subprocess.Popen(
        serve_command("environment", str(file), str(run_folder), 0),
        env=service_environment(config, "environment", inherited),
        start_new_session=True,
    )
    try:
        await rpc.wait_until_serving(address, SECONDS)
        async with EnvironmentClient(address, Caller("run", 1)) as client:
            yield service, client
    finally:
        service.kill()
        service.wait()


async def until(true: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


def family(root: int) -> list[int]:
    """What descends from a process."""
    return [process.pid for process in psutil.Process(root).children(recursive=True)]


def left_behind() -> list[psutil.Process]:
    return [
        one
        for one in psutil.process_iter(["cmdline"])
        if "left behind" in (one.info["cmdline"] or ())
    ]


async def ask(client: EnvironmentClient, episode: str, turn: int, how: str) -> str:
    message = call("end", f'{{"how": "{how}"}}')
    reply = await client.step(episode, turn, message, "stop", SECONDS)
    return reply.messages[0].text


async def test_a_worker_that_is_killed_in_the_middle_of_a_step_costs_its_episode_alone(
    tmp_path: Path,
) -> None:
    config = configure(tools=[f"{CODE}:end"])
    async with serving(config, tmp_path) as (_service, client):
        pids: list[int] = []
        for episode in ("1.0", "1.1"):
            await client.open(episode, prompt(), 7, SECONDS)
            pids.append(int(await ask(client, episode, 1, "")))
        secrets = Path(f"/proc/{pids[0]}/environ").read_bytes()
        assert b"AWS_" not in secrets and b"TRIMARAN_" not in secrets
        hanging = asyncio.create_task(ask(client, "1.0", 2, "hang"))
        await asyncio.sleep(0.2)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(InternalError, match=r"died \(SIGKILL\)"):
            await hanging
        assert int(await ask(client, "1.1", 2, "")) == pids[1]
        await client.open("1.0", prompt(), 7, SECONDS)  # is made again
        assert int(await ask(client, "1.0", 1, "")) not in pids
        done = await client.step("1.0", 2, Message("assistant", "3"), "stop", SECONDS)
        assert done.done


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_is_left_when_the_service_ends(tmp_path: Path, end: signal.Signals) -> None:
    config = configure(tools=[f"{CODE}:end"], python=True)
    async with serving(config, tmp_path) as (service, client):
        await client.open("1.0", prompt(), 7, SECONDS)
        await client.open("1.1", prompt(), 7, SECONDS)
        await ask(client, "1.0", 1, "leave")
        busy = call("python", '{"code": "import time; time.sleep(1000)"}')
        steps = [
            asyncio.create_task(ask(client, "1.0", 2, "hang")),
            asyncio.create_task(client.step("1.1", 1, busy, "stop", SECONDS)),
        ]
        await until(lambda: len(family(service.pid)) >= 6)
        left = family(service.pid)
        service.send_signal(end)
        await until(lambda: not any(map(is_alive, left)), 20.0)
        await until(lambda: service.poll() is not None)
        await asyncio.gather(*steps, return_exceptions=True)


async def test_a_nursery_that_is_killed_is_replaced(tmp_path: Path) -> None:
    config = configure(tools=[f"{CODE}:end"])
    async with serving(config, tmp_path) as (_service, client):
        await client.open("1.0", prompt(), 7, SECONDS)
        worker = int(await ask(client, "1.0", 1, ""))
        os.kill(psutil.Process(worker).ppid(), signal.SIGKILL)
        await until(lambda: not is_alive(worker))
        with pytest.raises(InternalError):
            await ask(client, "1.0", 2, "")
        await client.open("1.0", prompt(), 7, SECONDS)
        assert int(await ask(client, "1.0", 1, "")) != worker


FAULTS = {
    "crash": (InternalError, "SIGSEGV"),
    "exit": (InternalError, "exit code 7"),
    "garbage": (InternalError, "garbage"),
    "memory": (InternalError, "MiB"),
    "hang": (DeadlineError, "environment.timeout"),
}


async def test_of_200_seeded_faults_each_is_reported_and_costs_its_own_episode_alone(
    tmp_path: Path,
) -> None:
    chance, left = random.Random(32), [200]

    async def play(client: EnvironmentClient, player: int) -> None:
        number = 0
        while left[0] > 0:
            number += 1
            episode = f"{player}.{number}"
            await client.open(episode, prompt(), number, SECONDS)
            for turn in range(1, 5):
                how = chance.choice((*FAULTS, "leave", *[""] * 8))
                if how not in FAULTS:
                    assert (await ask(client, episode, turn, how)).isdigit()
                    continue
                left[0] -= 1
                kind, reported = FAULTS[how]
                with pytest.raises(kind, match=reported):
                    await ask(client, episode, turn, how)
                with pytest.raises(NotFoundError):
                    await ask(client, episode, turn, "")
                break
            await client.close_episode(episode)

    config = configure(tools=[f"{CODE}:end"], timeout=1.5, memory_mib=1024, max_episodes=16)
    async with serving(config, tmp_path) as (service, client):
        await asyncio.gather(*(play(client, player) for player in range(16)))
        async with MetricsClient(client.address) as process:
            known = values(await process.get_metrics())
        assert known["trimaran_environment_episodes",] == 0
        assert known["trimaran_environment_processes", "busy"] == 0
        idle = known["trimaran_environment_processes", "idle"]
        # The service, what starts workers, and the workers: nothing else is left.
        await until(lambda: len(family(service.pid)) == 1 + idle)
        assert not left_behind()
