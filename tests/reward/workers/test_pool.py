"""The pool with real processes: what hangs, crashes, raises or eats, beside what does not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.reward.outcome import Fault, Indigestible, Outcome, Value
from services.reward.terms import FunctionSpec
from services.reward.workers.pool import WorkerPool
from services.reward.workers.process import _describe_exit
from tests.launch.services import is_alive, wait_until
from trimaran.errors import InputError
from trimaran.rewards import Sample

pytestmark = pytest.mark.e2e  # real processes, most of which are killed or wait

ANSWER = FunctionSpec("tests.reward.unruly:answer")
GROUP = FunctionSpec("tests.reward.unruly:group")
BATCH = FunctionSpec("tests.reward.unruly:compute_score")
SECONDS, SHORT = 60.0, 0.5
MEMORY_MIB = 512
DEADLINE = 30.0
RIGHT, WRONG = Value(1.0), Value(0.0)
NO_ANSWER = Indigestible("no answer within 0.5 s")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def samples(texts: Sequence[str], log: Path) -> list[Sample]:
    return [Sample(text, "", {"log": str(log)}) for text in texts]


@asynccontextmanager
async def pool_of(
    spec: FunctionSpec = ANSWER, num_workers: int = 1, timeout: float = SECONDS, **settings: Any
) -> AsyncIterator[WorkerPool]:
    async with WorkerPool(num_workers, timeout, MEMORY_MIB, **settings) as pool:
        await pool.load([spec])
        yield pool


async def judge(
    texts: Sequence[str], log: Path, spec: FunctionSpec = ANSWER, **settings: Any
) -> tuple[Outcome, ...]:
    async with pool_of(spec, **settings) as pool:
        return await pool.judge(spec, samples(texts, log))


def meetings(log: Path, text: str) -> list[int]:
    """The process of each time that the function met this answer."""
    lines = [line.rsplit(" ", 1) for line in log.read_text(encoding="utf-8").splitlines()]
    return [int(process) for seen, process in lines if seen == text]


async def meets(log: Path, text: str, times: int = 1) -> int:
    async with asyncio.timeout(DEADLINE):
        while not (log.exists() and len(meetings(log, text)) >= times):
            await asyncio.sleep(0.01)
    return meetings(log, text)[-1]


def ends(process: int) -> bool:
    wait_until(lambda: not is_alive(process), f"the end of {process}")
    return True


async def test_an_answer_that_hangs_twice_is_indigestible(log: Path) -> None:
    hung = ["hang", "hang-holding-the-lock"]
    outcomes = await judge(["right", *hung, "wrong"], log, num_workers=3, timeout=SHORT)
    assert outcomes == (RIGHT, *[NO_ANSWER] * 2, WRONG)
    for text in hung:
        first, second = meetings(log, text)
        assert first != second


async def test_a_function_that_takes_the_timer_away_is_ended_all_the_same(log: Path) -> None:
    texts = ["disarm", "deafen", "right"]
    outcomes = await judge(texts, log, num_workers=2, timeout=SHORT, grace_seconds=0.1)
    assert outcomes == (NO_ANSWER, NO_ANSWER, RIGHT)
    assert all(map(ends, meetings(log, "disarm") + meetings(log, "deafen")))


DIED = Indigestible("the checker died")


def without_exit_codes(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """pebble does not know that of a process which died before its call was seen to begin."""
    return tuple(
        DIED if isinstance(one, Indigestible) and one.reason.startswith(DIED.reason) else one
        for one in outcomes
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (9, "the checker died (exit code 9)"),
        (-signal.SIGSEGV, "the checker died (SIGSEGV)"),
        (-signal.SIGALRM, "no answer within 0.5 s"),
    ],
)
def test_an_exit_is_described(code: int, reason: str) -> None:
    assert _describe_exit(code, SHORT) == reason


CULPRITS = {
    "exit": DIED,
    "segfault": DIED,
    "raise": Indigestible("RuntimeError: cannot parse"),
    "eat": Indigestible(f"the checker wanted more than {MEMORY_MIB} MiB"),
    "sys-exit": Indigestible("RuntimeError: the function called sys.exit(None)"),
    "refuse": Fault("the answer is no number"),
    "print": WRONG,
    "disconnect": Fault("ConnectionResetError: gone"),
    "time-out": Indigestible("TimeoutError: too long"),
    "fork": WRONG,
    "interrupt": WRONG,
}


@pytest.mark.parametrize("text", CULPRITS)
async def test_a_culprit_costs_nothing_else_anything(log: Path, text: str) -> None:
    outcomes = without_exit_codes(await judge(["right", text, "wrong", "right"], log))
    assert outcomes == (RIGHT, CULPRITS[text], WRONG, RIGHT)
    assert len(meetings(log, text)) == 1 + isinstance(CULPRITS[text], Indigestible)


async def test_culprits_at_every_place_of_a_chunk(log: Path) -> None:
    chance = random.Random(1)
    kinds = {"right": RIGHT, "wrong": WRONG}
    kinds |= {kind: CULPRITS[kind] for kind in ("exit", "raise", "refuse")}
    async with pool_of(num_workers=2) as pool:
        await pool.judge(ANSWER, samples(["right"] * 100, log))  # now chunks are large
        for _ in range(20):
            texts = chance.choices(["right", "wrong", *kinds], k=chance.randint(0, 8))
            outcomes = without_exit_codes(await pool.judge(ANSWER, samples(texts, log)))
            assert outcomes == tuple(kinds[text] for text in texts), texts


@pytest.mark.parametrize("text", ["exit once", "hang once"])
async def test_a_failure_that_does_not_come_again_costs_nothing(log: Path, text: str) -> None:
    timeout = SHORT if text.startswith("hang") else SECONDS
    assert await judge([text, "wrong"], log, timeout=timeout) == (RIGHT, WRONG)


async def test_of_a_group_that_fails_those_are_to_blame_that_fail_alone(log: Path) -> None:
    assert await judge(["right", "raise once"], log, GROUP) == (RIGHT, RIGHT)
    expected = (RIGHT, CULPRITS["raise"], WRONG, CULPRITS["exit"])
    texts = ["right", "raise", "wrong", "exit"]
    assert without_exit_codes(await judge(texts, log, GROUP)) == expected
    async with pool_of(BATCH) as pool:  # may be cut
        outcomes = await pool.judge(BATCH, [Sample(text, str(log)) for text in texts])
    assert without_exit_codes(outcomes) == expected


@pytest.mark.parametrize(
    ("spec", "texts"),
    [(GROUP, ["raise", "exit"]), (FunctionSpec("tests.reward.unruly:few"), ["right"] * 3)],
)
async def test_a_group_of_which_none_alone_is_to_blame_is_a_fault(
    log: Path, spec: FunctionSpec, texts: list[str]
) -> None:
    (outcome,) = set(await judge(texts, log, spec))
    assert isinstance(outcome, Fault) and spec.target in outcome.reason


async def test_who_waits_in_a_pool_that_is_stuck_is_faulted(log: Path) -> None:
    async with pool_of(patience=0.2) as pool:
        hung = asyncio.create_task(pool.judge(ANSWER, samples(["hang"], log)))
        await meets(log, "hang")
        outcomes = await pool.judge(ANSWER, samples(["right", "wrong"], log))
        assert outcomes == (Fault("overloaded: the pool has judged nothing for 0.2 s"),) * 2
        await give_up(hung)


async def test_what_shares_a_chunk_with_one_that_hangs_goes_to_another(log: Path) -> None:
    async with pool_of(num_workers=2) as pool:
        await pool.judge(ANSWER, samples(["right"] * 100, log))  # now chunks are large
        first = asyncio.create_task(pool.judge(ANSWER, samples(["wrong", "hang"], log)))
        others = [pool.judge(ANSWER, samples(["right"] * 8, log)) for _ in range(4)]
        async with asyncio.timeout(DEADLINE):
            assert await asyncio.gather(*others) == [(RIGHT,) * 8] * 4
        assert not first.done()
        await give_up(first)


async def test_what_a_slow_answer_holds_up_is_judged_once(log: Path) -> None:
    async with pool_of() as pool:
        await pool.judge(ANSWER, samples(["right"] * 100, log))  # now chunks are large
        assert await pool.judge(ANSWER, samples(["linger"] * 3, log)) == (WRONG,) * 3
        assert len(meetings(log, "linger")) == 3
        await pool.judge(ANSWER, samples(["right"] * 1000, log))  # and again
        abandoned = asyncio.create_task(pool.judge(ANSWER, samples(["linger", "wrong"], log)))
        await meets(log, "linger", 4)
        abandoned.cancel()  # the chunk ends behind the slow answer
        assert await pool.judge(ANSWER, samples(["right"], log)) == (RIGHT,)
        assert not meetings(log, "wrong")


async def test_a_caller_that_gives_up_gets_no_second_try_and_leaves_no_old_answer(
    log: Path,
) -> None:
    async with pool_of(timeout=SHORT) as pool:
        abandoned = asyncio.create_task(pool.judge(ANSWER, samples(["hang", "wrong"], log)))
        await meets(log, "hang")
        await give_up(abandoned)
        assert await pool.judge(ANSWER, samples(["right"], log)) == (RIGHT,)
    assert len(meetings(log, "hang")) == 1
    assert not meetings(log, "wrong")


async def give_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_worker_that_is_killed_while_idle_costs_nothing(log: Path) -> None:
    async with pool_of() as pool:
        for _ in range(2):
            assert await pool.judge(ANSWER, samples(["right"], log)) == (RIGHT,)
            process = meetings(log, "right")[-1]
            os.kill(process, signal.SIGKILL)
            assert await asyncio.to_thread(ends, process)
        outcomes = await asyncio.gather(
            *(pool.judge(ANSWER, samples(["right", "wrong"], log)) for _ in range(4))
        )
        assert outcomes == [(RIGHT, WRONG)] * 4


async def test_a_worker_that_is_frozen_while_idle_is_replaced_when_its_deadline_is_over(
    log: Path,
) -> None:
    async with pool_of(timeout=SHORT, grace_seconds=SHORT) as pool:
        await pool.judge(ANSWER, samples(["right"], log))
        os.kill(meetings(log, "right")[-1], signal.SIGSTOP)
        assert await pool.judge(ANSWER, samples(["right", "wrong"], log)) == (RIGHT, WRONG)
    assert len(set(meetings(log, "right"))) == 2


async def test_a_fork_server_that_is_frozen_is_replaced_when_a_worker_is_to_be_started(
    log: Path,
) -> None:
    # Long enough for a new fork server on a busy machine: it imports before it answers.
    seconds: dict[str, Any] = {"timeout": 1.0, "grace_seconds": SHORT, "start_seconds": 15.0}
    async with pool_of(num_workers=2, **seconds) as pool:
        assert await pool.judge(ANSWER, samples(["right"] * 20, log)) == (RIGHT,) * 20
        worker_pid = meetings(log, "right")[-1]
        server = psutil.Process(worker_pid).ppid()
        os.kill(server, signal.SIGSTOP)
        os.kill(worker_pid, signal.SIGKILL)
        again = await asyncio.gather(
            *(pool.judge(ANSWER, samples(["right", "wrong"], log)) for _ in range(4))
        )
        assert again == [(RIGHT, WRONG)] * 4
        assert await asyncio.to_thread(ends, server)


async def test_a_process_is_replaced_now_and_then(log: Path) -> None:
    async with pool_of(max_chunks=2) as pool:
        for _ in range(5):
            assert await pool.judge(ANSWER, samples(["right"], log)) == (RIGHT,)
    processes = meetings(log, "right")
    assert len(set(processes)) == 3
    assert all(map(ends, processes))


async def test_children_that_a_function_leaves_behind_end_with_its_process(
    log: Path, tmp_path: Path
) -> None:
    child_file = tmp_path / "child"
    spec = FunctionSpec("tests.reward.unruly:leave", f'{{"child_file": "{child_file}"}}')
    async with pool_of(spec) as pool:
        await pool.judge(spec, samples(["x"], log))
        assert Path(f"/proc/{child_file.read_text()}").exists()
    assert ends(int(child_file.read_text()))


async def test_closing_ends_hung_processes_and_answers_who_waits(log: Path) -> None:
    begin = time.monotonic()
    async with pool_of(num_workers=2, timeout=600) as pool:
        texts = ["hang-holding-the-lock", "deafen", "right"]
        waiting = [asyncio.create_task(pool.judge(ANSWER, samples([t], log))) for t in texts]
        hung = [await meets(log, text) for text in texts[:2]]
    assert await asyncio.gather(*waiting) == [(Fault("the pool was closed"),)] * 3
    assert time.monotonic() - begin < DEADLINE
    assert all(map(ends, hung))


def test_workers_end_with_a_process_that_is_killed(log: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-m", "tests.reward.workers.unruly_owner", str(log)])
    try:
        hung = [asyncio.run(meets(log, text)) for text in ("hang-holding-the-lock", "deafen")]
        server = psutil.Process(hung[0]).parent()
        assert server
        workers = [child.pid for child in server.children()]
        assert len(workers) == 3
    finally:
        owner.kill()
        owner.wait(DEADLINE)
    assert all(map(ends, [*workers, server.pid]))


SECRETS = ["TRIMARAN_JUDGE_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"]


def test_secrets_do_not_reach_functions() -> None:
    """In a process of its own: the fork server of this one keeps the environment of its start."""
    code = (
        "import asyncio; from tests.reward.workers.test_pool import *;"
        "spec = FunctionSpec('tests.reward.unruly:is_set');"
        "print(asyncio.run(judge([*SECRETS, 'OTHER'], Path('unused'), spec)))"
    )
    environment = os.environ | dict.fromkeys([*SECRETS, "OTHER"], "given")
    found = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert found.strip() == str((*[WRONG] * 4, RIGHT))


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("tests.reward.no_such:answer", "no_such"),
        ("tests.reward.unruly:no_such", "no_such"),
        ("tests.reward.workers.unruly_import:answer", r"died \(exit code 3\)"),
    ],
)
async def test_a_function_that_cannot_be_loaded_is_named(
    log: Path, target: str, reason: str
) -> None:
    with pytest.raises(InputError, match=rf"{target}.*{reason}"):
        await judge([], log, FunctionSpec(target))
