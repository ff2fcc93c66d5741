"""A service that fails with a thread that hangs: its process ends all the same, and says why."""

import asyncio
import subprocess
import sys
from pathlib import Path

from trimaran import rpc
from trimaran.config import parse_config
from trimaran.launch.endpoints import free_address
from trimaran.launch.reports import Reports
from trimaran.run_context import RunContext
from trimaran.runs import launcher_lease
from trimaran.store import open_store

CODE = """
import asyncio, sys, threading
from pathlib import Path
from types import ModuleType
from trimaran.cli import serve
from trimaran.errors import InternalError

async def fail(config, folder, index):
    hanging = asyncio.create_task(asyncio.to_thread(threading.Event().wait))
    await asyncio.sleep(0)
    raise InternalError("the engine is gone")

service = sys.modules["services.rollout.server"] = ModuleType("services.rollout.server")
service.serve = fail
serve.STOP_SECONDS = 0.5
serve._run("rollout", None, Path("."), 0)
"""


def test_a_thread_that_hangs_does_not_hold_a_service_that_has_failed():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 75  # it may pass: the launcher starts it again
    assert "ending now; it ends because of: the engine is gone" in done.stderr


def test_a_service_finds_its_configuration_in_the_runs_store(tmp_path: Path) -> None:
    """Nothing but the context lies in its folder."""
    address = free_address(set())
    config = parse_config(
        {
            "model": {"path": "m"},
            "data": {"train": "d"},
            "reward": {"rules": {"exact_match": 1}, "workers": 1},
            "endpoints": {"reward": address},
        }
    )
    run = RunContext("sums-1", tmp_path, f"sqlite:{tmp_path / 'elsewhere.sqlite'}")
    run.write()

    async def start() -> None:
        store = await open_store(run.store_url)
        lease = await store.acquire(launcher_lease(run.run_id), "launcher", 60.0)
        assert lease
        await Reports(store, run, lease).starting(config)
        await store.close()
        command = ("-m", "trimaran.cli", "serve", "reward", "--run-folder", str(tmp_path))
        process = await asyncio.create_subprocess_exec(sys.executable, *command)
        try:
            await rpc.wait_until_serving(address, 60.0)
        finally:
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 30) == 0

    asyncio.run(start())
