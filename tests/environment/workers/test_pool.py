"""User code that crashes, hangs, leaves processes and answers garbage, in real processes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.environment.loading.load import LoadSpec
from services.environment.workers.pool import EnvironmentPool
from services.environment.workers.process import EnvironmentProcess
from trimaran.errors import InputError

CODE = Path(__file__).parents[1] / "user_code.py"
ROW = {"prompt_id": "p", "task": "t", "answer": "7", "extras": {}, "messages": [], "seed": 7}


@asynccontextmanager
async def pool_of(*targets: str) -> AsyncIterator[EnvironmentPool]:
    async with EnvironmentPool(LoadSpec(tools=targets), memory_mib=4096, max_chars=100) as pool:
        yield pool


async def opened(pool: EnvironmentPool) -> EnvironmentProcess:
    worker = await pool.take()
    await worker.ask({"do": "open", "row": ROW})
    return worker


async def ask_to(worker: EnvironmentProcess, name: str, arguments: str) -> tuple[str, bool]:
    answers = (await worker.ask({"do": "call", "calls": [[name, arguments]]}))["answers"]
    return answers[0][0], answers[0][1]


async def test_a_process_that_closed_in_order_plays_again() -> None:
    async with pool_of(f"{CODE}:end") as pool:
        pids: list[str] = []
        for _ in range(2):
            worker = await opened(pool)
            pids.append((await ask_to(worker, "end", '{"how": "no way"}'))[0])
            assert pool.num_processes == {"busy": 1, "idle": 0}
            await pool.give_back(worker)
        assert pids[0] == pids[1]


async def test_what_tools_do_wrong_is_an_answer() -> None:
    async with pool_of(*(f"{CODE}:{name}" for name in ("add", "slow_add", "fail"))) as pool:
        worker = await opened(pool)
        unfit = await ask_to(worker, "add", '{"a": 1, "c": 2}')
        assert unfit == ("error: b: it is missing; c: there is no such argument", True)
        assert await ask_to(worker, "fail", '{"text": "x"}') == ("error: KeyError: 'x'", True)
        assert await ask_to(worker, "fail", '{"text": "exit"}') == ("error: SystemExit: 3", True)
        begun = time.monotonic()
        calls = [["slow_add", f'{{"a": {a}, "b": 1}}'] for a in range(5)]
        answers = (await worker.ask({"do": "call", "calls": calls}))["answers"]
        assert answers == [[f'{{"sum": {a + 1}}}', False] for a in range(5)]
        assert time.monotonic() - begun < 0.8  # beside each other
        await pool.give_back(worker)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("add = 3", "it is no function but a int"),
    ],
)
async def test_code_that_cannot_be_used_is_refused(
    text: str, reported: str, tmp_path: Path
) -> None:
    (tmp_path / "tools.py").write_text(text)
    with pytest.raises(InputError, match=reported):
        async with pool_of(f"{tmp_path / 'tools.py'}:add"):
            pass


async def test_code_that_starts_threads_is_not_forked(tmp_path: Path) -> None:
    file = tmp_path / "threaded.py"
    file.write_text(
        "import os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "HERE = os.getpid()\n"
        "def is_forked() -> bool:\n    'Tell.'\n    return HERE != os.getpid()\n"
    )
    async with pool_of(f"{file}:is_forked") as pool:
        assert await ask_to(await opened(pool), "is_forked", "{}") == ("false", False)
