"""A service that fails with a thread that hangs: its process ends all the same, and says why."""

import subprocess
import sys

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
