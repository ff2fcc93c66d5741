"""A call that fails in one of vLLM's workers spoils no later call: each gets its own answers.

Here are vLLM's own executors and its workers' loop, with queues of ours in place of processes.
`test_read_back.py` does the same with whole engines.
"""

from __future__ import annotations

import asyncio
import pickle
import queue
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from services.rollout.vllm.plugin import BACKEND
from services.rollout.vllm.worker import WorkerExtension
from services.rollout.vllm.workers import VllmWorkers
from tests.rollout.test_vllm_deadlines import UPDATE
from trimaran.errors import InternalError

pytestmark = pytest.mark.e2e


class Worker(WorkerExtension):
    """`fails`: whether its next update does."""

    def __init__(self, rank: int) -> None:
        self.name = f"worker {rank}"
        self.fails = False
        self.slices: list[tuple[str, bool]] = []
        """Of changes: what it answers in each."""
        self.calls: list[str] = []
        self.end_with_parent = lambda: None  # its parent is the test
        for name in (UPDATE[0], UPDATE[2], "abandon_update", "pack_heads", "drop_writes"):
            setattr(self, name, partial(self.calls.append, name))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        if self.fails:
            self.fails = False
            raise KeyError(update_info["path"])
        self.calls.append("update_weights")

    def begin_writes(self, path: str, description: dict[str, Any]) -> str:
        return ""

    def prepare_writes(self, seconds: float) -> tuple[str, bool]:
        return self.slices.pop(0) if len(self.slices) > 1 else self.slices[0]

    def reset_mm_cache(self) -> str:
        """vLLM calls it at every pause; its own returns nothing."""
        return self.name


class Queue:
    """Of one reader. Whatever takes from an empty one ends."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def enqueue(self, item: Any) -> None:
        self.waiting.put(pickle.dumps(item))

    def dequeue(self, timeout: float | None = None, indefinite: bool = False) -> Any:
        return pickle.loads(self.waiting.get_nowait())


class Broadcast:
    """Each worker does at once what it is sent, in vLLM's loop."""

    def __init__(self, processes: list[Any]) -> None:
        self.processes = processes

    def enqueue(self, item: Any) -> None:
        for process in self.processes:
            process.rpc_broadcast_mq.enqueue(item)
            with suppress(queue.Empty):
                process.worker_busy_loop()


def multiproc_executor(workers: list[Worker]) -> Any:
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

    processes: list[Any] = []
    for rank, worker in enumerate(workers):
        process: Any = object.__new__(WorkerProc)
        process.rank, process.worker, process.use_async_scheduling = rank, worker, False
        process.rpc_broadcast_mq, process.worker_response_mq = Queue(), Queue()
        processes.append(process)
    executor: Any = object.__new__(MultiprocExecutor)
    executor.is_failed, executor.futures_queue = False, deque()
    executor.rpc_broadcast_mq = Broadcast(processes)
    executor.response_mqs = [process.worker_response_mq for process in processes]
    return executor


def uniproc_executor(workers: list[Worker]) -> Any:
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    executor: Any = object.__new__(UniProcExecutor)
    (executor.driver_worker,) = workers
    return executor


class Llm:
    def __init__(self, executor: Any) -> None:
        self.executor = executor

    async def collective_rpc(self, method: str, args: Any = (), kwargs: Any = None) -> Any:
        return self.executor.collective_rpc(method, None, args, kwargs)


@pytest.mark.parametrize(("num_workers", "failing"), [(1, {0}), (2, {1}), (2, {0, 1}), (8, {2, 5})])
def test_after_a_load_that_failed_each_call_gets_its_own_answers(
    num_workers: int, failing: set[int]
) -> None:
    workers = [Worker(rank) for rank in range(num_workers)]
    executor = (uniproc_executor if num_workers == 1 else multiproc_executor)(workers)
    calls = VllmWorkers(Llm(executor), BACKEND)
    for rank in failing:
        workers[rank].fails = True
    said = f"update_weights failed in {len(failing)} of {num_workers} workers: KeyError: '/gone'$"
    with pytest.raises(InternalError, match=said):
        asyncio.run(calls.load("/gone", {}))
    assert executor.collective_rpc("reset_mm_cache") == [worker.name for worker in workers]
    for worker in workers:
        worker.calls.clear()
    asyncio.run(calls.load("/here", {}))
    for worker in workers:
        assert worker.calls == ["abandon_update", *UPDATE, "pack_heads"]
    assert executor.collective_rpc("reset_mm_cache") == [worker.name for worker in workers]


def test_a_method_that_a_worker_lacks_is_an_error_of_every_worker() -> None:
    calls = VllmWorkers(Llm(multiproc_executor([Worker(0), Worker(1)])), BACKEND)
    with pytest.raises(InternalError, match="2 of 2 workers: AttributeError: .*init_weight"):
        asyncio.run(calls.start(60.0))


AGAIN, READY, NEVER = ("", False), ("", True), ("it is packed", False)


@pytest.mark.parametrize(
    ("slices", "are_ready"),
    [
        ([[READY], [AGAIN, AGAIN, READY]], True),
        ([[READY], [AGAIN, NEVER]], False),
        ([[NEVER], [AGAIN]], False),
    ],
)
async def test_changes_are_written_once_every_worker_has_prepared_them(
    slices: list[list[tuple[str, bool]]], are_ready: bool
) -> None:
    workers = [Worker(rank) for rank in range(2)]
    for worker, answers in zip(workers, slices, strict=True):
        worker.slices = answers
    calls = VllmWorkers(Llm(multiproc_executor(workers)), BACKEND)

    async with calls.prepared_writes("/", {"changes": {"path": "/here"}}, True) as are_prepared:
        assert are_prepared is are_ready
        # Where one cannot, the others make room before everything is loaded.
        assert [worker.calls for worker in workers] == [[] if are_ready else ["drop_writes"]] * 2
    assert [worker.calls for worker in workers] == [["drop_writes"]] * 2
    if are_ready:
        assert [len(worker.slices) for worker in workers] == [1, 1]
