"""A service that fails with a thread that hangs: its process ends all the same, and says why."""

import argparse
import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from commands.cli.options import parse
from commands.cli.serve.serve_joined import serve_joined
from commands.launch.joining.registration import find_addresses
from commands.launch.joining.service_records import ServiceRecord, read_services
from commands.launch.reports import Reports
from tests.configs import configure
from tests.redis_server import RedisServer
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.run.context import RunContext
from trimaran.run.runs import launcher_lease, stop_key
from trimaran.store import Store, open_store
from trimaran.wire import rpc

CODE = """
import asyncio, sys, threading
from pathlib import Path
from types import ModuleType
from commands.cli.serve import serve
from trimaran.errors import InternalError
from trimaran.run.context import RunContext

async def fail(config, folder, index):
    hanging = asyncio.create_task(asyncio.to_thread(threading.Event().wait))
    await asyncio.sleep(0)
    raise InternalError("the engine is gone")

sys.modules["services.hanging"] = ModuleType("services.hanging")
service = sys.modules["services.hanging.server"] = ModuleType("services.hanging.server")
service.serve = fail
serve.STOP_SECONDS = 0.5
serve._Service("hanging", RunContext.in_folder(Path(".")), 0).run(None)
"""


def test_a_thread_that_hangs_does_not_hold_a_service_that_has_failed():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 75  # it may pass: the launcher starts it again
    assert "ending now; it ends because of: the engine is gone" in done.stderr


@asynccontextmanager
async def recorded(folder: Path, config: RunConfig) -> AsyncGenerator[Store]:
    """The store of a run whose launcher has recorded its configuration."""
    run = RunContext("sums-1", folder, f"sqlite:{folder / 'elsewhere.sqlite'}")
    run.write()
    store = await open_store(run.store_url)
    lease = await store.acquire(launcher_lease(run.run_id), "launcher", 60.0)
    assert lease
    await Reports(store, run, lease).starting(config)
    yield store
    await store.close()


async def test_a_service_finds_its_configuration_in_the_runs_store_and_registers_there(
    tmp_path: Path,
) -> None:
    """Nothing but the context lies in its folder."""
    config = configure(reward={"rules": {"exact_match": 1}, "workers": 1})
    command = ("-m", "commands.cli", "serve", "reward", "--run-folder", str(tmp_path))

    async def life(store: Store, end: str) -> ServiceRecord:
        process = await asyncio.create_subprocess_exec(sys.executable, *command)
        try:
            async with asyncio.timeout(60):
                (address,) = (await find_addresses(store, "sums-1", ["reward"], 60.0)).values()
                await rpc.wait_until_serving(address, 60.0)
                record, _ = (await read_services(store, "sums-1"))["reward"]
                if end == "stop":
                    await store.put(
                        stop_key("sums-1", "reward"), {"incarnation": record.incarnation}
                    )
                else:
                    process.terminate()
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
        ended, _ = (await read_services(store, "sums-1"))["reward"]
        assert ended.incarnation == record.incarnation
        assert ended.code == -signal.SIGTERM
        return ended

    async with recorded(tmp_path, config) as store:
        first = await life(store, "SIGTERM")
        # What asked an earlier life to end does not end the next one.
        await store.put(stop_key("sums-1", "reward"), {"incarnation": first.incarnation})
        second = await life(store, "stop")
        assert second.incarnation != first.incarnation
        assert second.address == first.address  # who knew it finds it again


async def test_a_service_that_waits_for_others_ends_at_once_and_says_so(tmp_path: Path) -> None:
    command = ("-m", "commands.cli", "serve", "weight-sync", "--run-folder", str(tmp_path))
    async with recorded(tmp_path, configure()) as store:
        process = await asyncio.create_subprocess_exec(sys.executable, *command)
        try:
            async with asyncio.timeout(60):
                while not (await read_services(store, "sums-1")):
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.5)  # no trainer comes
                process.terminate()
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
        ended, _ = (await read_services(store, "sums-1"))["weight-sync"]
        assert ended.code == -signal.SIGTERM


def waiting(folder: Path, url: str, mode: int = 0o644) -> argparse.Namespace:
    """The options of a service that waits for a run."""
    files = {"store": url, "token": "d" * 32}
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
        (folder / name).chmod(mode)
    named = ["--store-file", str(folder / "store"), "--token-file", str(folder / "token")]
    return parse(["serve", "reward", *named, "--run-folder", str(folder / "runs")])


def test_who_waits_for_a_run_in_vain_says_so_and_is_started_again(
    tmp_path: Path, shared_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    options = waiting(tmp_path, shared_redis.url("nobody-calls"))
    assert serve_joined(options, seconds=0.0) == 75
    out, err = capsys.readouterr()
    assert "reward: waits for a run that needs it, for at most 0 s" in out
    assert "no run has needed a reward for 0 s" in err


def test_a_secret_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    options = waiting(tmp_path, "redis://127.0.0.1:1/0", mode=0o666)
    with pytest.raises(InputError, match="--store-file: .* everybody may write it"):
        serve_joined(options)
