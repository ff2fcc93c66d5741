"""A reward service that is killed leaves semaphores and a socket behind; its next life removes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trimaran.host.shared_memory import FOLDER, note_of, remove_left, semaphore_prefix

pytestmark = pytest.mark.e2e  # real worker processes
ROOT = Path(__file__).parents[3]
LIFE = """
import asyncio, sys
from pathlib import Path
from services.reward.terms import FunctionSpec
from services.reward.workers.pool import WorkerPool
from services.reward.workers.semaphores import claim_semaphores

async def live():
    claim_semaphores(Path(sys.argv[1]))
    async with WorkerPool(1, 10.0, 4096) as pool:
        await pool.load([FunctionSpec("services.reward.rules.numbers:last_integer")])
        print("up", flush=True)
        await asyncio.to_thread(sys.stdin.read)

if __name__ == "__main__":
    asyncio.run(live())
"""


def begin(script: Path, run_folder: Path) -> subprocess.Popen[str]:
    temporary = script.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    life = subprocess.Popen(
        [sys.executable, script, run_folder],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert life.stdout and life.stdout.readline() == "up\n"
    return life


def find_all(run: Path) -> list[Path]:
    """With the note that names them."""
    return list(FOLDER.glob(f"*{semaphore_prefix(run)}-*"))


def find_semaphores(run: Path) -> list[Path]:
    return [path for path in find_all(run) if path.name.startswith("sem.")]


def test_the_next_life_removes_what_a_kill_has_left(tmp_path):
    script, run, other = tmp_path / "life.py", tmp_path / "a" / "run-1", tmp_path / "b" / "run-1"
    script.write_text(LIFE)
    lives = [begin(script, run), begin(script, other)]
    for life in lives:
        os.killpg(life.pid, signal.SIGKILL)
        life.communicate()
    left = find_semaphores(run)
    assert left
    second = begin(script, run)
    assert not set(left) & set(find_semaphores(run))
    second.communicate("", timeout=30)  # ends in order
    assert not find_all(run)
    assert find_all(other)  # of another run: not ours to remove
    remove_left(note_of(other, "reward"))  # as its launcher would
    assert not find_all(other)
    assert not list((tmp_path / "temporary").iterdir())
