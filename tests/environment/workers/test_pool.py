"""User code that crashes, hangs, leaves processes and answers garbage, in real processes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.environment.loading.load import LoadSpec
from services.environment.workers.pool import EnvironmentPool
from services.environment.workers.process import EnvironmentProcess
from trimaran.errors import InputError

CODE = Path(__file__).parents[1] / "user_code.py"
ROW = {"prompt_id": "p", "task": "t", "answer": "7", "extras": {}, "messages": [], "seed": 7}


def with_pool(
    use: Callable[[EnvironmentPool], Awaitable[None]], *tools: str, memory_mib: int = 4096
) -> None:
    async def run() -> None:
        spec = LoadSpec(tools=tuple(f"{CODE}:{name}" for name in tools))
        async with EnvironmentPool(spec, memory_mib, max_chars=100) as pool:
            await use(pool)

    asyncio.run(run())


async def opened(pool: EnvironmentPool) -> EnvironmentProcess:
    worker = await pool.take()
    await worker.ask({"do": "open", "row": ROW})
    return worker


async def ask_to(worker: EnvironmentProcess, name: str, arguments: str) -> tuple[str, bool]:
    answers = (await worker.ask({"do": "call", "calls": [[name, arguments]]}))["answers"]
    return answers[0][0], answers[0][1]


def test_a_process_that_closed_in_order_plays_again() -> None:
    async def use(pool: EnvironmentPool) -> None:
        pids: list[str] = []
        for _ in range(2):
            worker = await opened(pool)
            pids.append((await ask_to(worker, "end", '{"how": "no way"}'))[0])
            assert pool.num_processes == {"busy": 1, "idle": 0}
            await pool.give_back(worker)
        assert pids[0] == pids[1]

    with_pool(use, "end")


def test_what_tools_do_wrong_is_an_answer() -> None:
    async def use(pool: EnvironmentPool) -> None:
        worker = await opened(pool)
        assert await ask_to(worker, "add", '{"a": 1, "b": 2}') == ("3", False)
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

    with_pool(use, "add", "slow_add", "fail")


def test_code_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    for text, reported in (
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("add = 3", "it is no function but a int"),
        ("def add(a): 'Add.'", "no type hint"),
    ):
        file = tmp_path / f"{reported[:5].strip()}.py"
        file.write_text(text)

        async def run(file: Path = file) -> None:
            async with EnvironmentPool(LoadSpec(tools=(f"{file}:add",)), 4096, 100):
                pass

        with pytest.raises(InputError, match=reported):
            asyncio.run(run())


async def test_code_that_starts_threads_is_not_forked(tmp_path: Path) -> None:
    file = tmp_path / "threaded.py"
    file.write_text(
        "import os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "HERE = os.getpid()\n"
        "def is_forked() -> bool:\n    'Tell.'\n    return HERE != os.getpid()\n"
    )

    async with EnvironmentPool(LoadSpec(tools=(f"{file}:is_forked",)), 4096, 100) as pool:
        worker = await opened(pool)
        assert await ask_to(worker, "is_forked", "{}") == ("false", False)


async def until(true: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left_behind() -> list[int]:
    return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _is_left(pid)]


def _is_left(pid: int) -> bool:
    try:
        return b"\0left behind\0" in Path(f"/proc/{pid}/cmdline").read_bytes() and alive(pid)
    except OSError:
        return False
