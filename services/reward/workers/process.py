"""One process of the pool, and the next when it ends.

Behind it is a pebble.ProcessPool of a single worker. The workers of a larger ProcessPool would
share a pipe and its locks: one that is killed at a bad moment would hold up the others, and one
that dies while idle would end the pool.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

import pebble

from services.reward.outcome import Outcome
from services.reward.terms import FunctionSpec
from services.reward.workers import worker
from services.reward.workers.journal import JournalReader
from trimaran.errors import InputError
from trimaran.host.lifetime import kill_group
from trimaran.rewards import Sample

LOAD_SECONDS = 60.0
"""Until a new process runs and has imported a function."""
MAX_CHUNKS = 2000
"""Then the process is replaced, which bounds what foreign libraries leak."""
START_SECONDS = 60.0
"""For a new process; then the fork server, which starts it, is frozen. It imports functions first."""
RESTART_PAUSES = (0.1, 1.0)
"""Seconds between tries. A fork server that was just killed passes for alive until the system has ended it."""
GRACE_SECONDS = 5.0
"""Beyond the deadline that the worker sets itself, until the pool ends it."""

# How often pebble looks whether its worker has died, for all pools of this process: it has no
# argument for it, and nothing but this module uses pebble here. Its default of 0.1 s, waited after
# each death, is as long as 200 answers take to check.
pebble.CONSTS.sleep_unit = 0.02


logger = logging.getLogger(__name__)


class WorkerError(Exception):
    """The pool is to blame and no answer: no process could be started, or it ended before it began."""


class _EndedError(Exception):
    """Says why the process ended."""


@dataclass(frozen=True, slots=True)
class FunctionKind:
    """How a function takes its samples; functions/loading.py says what each means."""

    one_by_one: bool
    splittable: bool


@dataclass(frozen=True, slots=True)
class JudgedBatches:
    """What came of a chunk."""

    outcomes: list[tuple[Outcome, ...]]
    """One entry a batch. The batch behind the last one failed, or was not begun because the chunk
    had taken too long."""
    failure: str = ""
    """Why that batch failed; empty where none did."""
    seconds: float = 0.0
    """What all of them took; 0 where a batch failed."""


class WorkerProcess:
    """Judges chunks of batches; a process that ended is replaced when the next chunk comes.

    Example:
        process = WorkerProcess(timeout=10.0, memory_mib=4096)
        spec = FunctionSpec("services.reward.rules.numbers:last_integer")
        judged = await process.judge(spec, [[Sample("4", answer="4")], [Sample("5", answer="4")]])
        judged.outcomes                       # [(Value(1.0, {}, "4"),), (Value(0.0, {}, "5"),)]
    """

    def __init__(
        self,
        timeout: float,
        memory_mib: int,
        grace_seconds: float = GRACE_SECONDS,
        max_chunks: int = MAX_CHUNKS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """`timeout`: seconds for one batch; `memory_mib`: address space of the process."""
        self._timeout, self._memory_mib = timeout, memory_mib
        self._start_seconds = start_seconds
        self._grace_seconds, self._max_chunks = grace_seconds, max_chunks
        self._context = multiprocessing.get_context("forkserver")
        self._journal = JournalReader()
        self._chunk: tuple[int, tuple[int, ...]] = (0, ())
        self._pool: pebble.ProcessPool | None = None
        self._changing = threading.Lock()  # a restart goes on when its caller is cancelled
        self._usable = self._closed = False
        self._forget_process()

    async def load(self, spec: FunctionSpec) -> FunctionKind:
        """Imports the function, once a process. Raises InputError for one that cannot be used."""
        if not self._usable or self._num_chunks >= self._max_chunks:
            await self._replace()
        if spec not in self._kinds:
            try:
                answer = await self._run(worker.load, spec, limit=LOAD_SECONDS)
            except _EndedError as error:
                raise WorkerError(f"{spec.target}: cannot be loaded: {error}") from None
            if isinstance(answer, str):
                raise InputError(answer)
            self._pid, *kind = answer
            self._kinds[spec] = FunctionKind(*kind)
        return self._kinds[spec]

    async def judge(
        self, spec: FunctionSpec, batches: Sequence[Sequence[Sample]], fresh: bool = False
    ) -> JudgedBatches:
        """A chunk. `fresh`: in a process that has judged nothing before. Raises WorkerError."""
        if fresh and self._num_chunks:
            self._usable = False
        try:
            return await self._judge_once(spec, batches)
        except WorkerError:
            self._usable = False
            return await self._judge_once(spec, batches)

    async def _judge_once(
        self, spec: FunctionSpec, batches: Sequence[Sequence[Sample]]
    ) -> JudgedBatches:
        try:
            await self.load(spec)
        except InputError as error:
            raise WorkerError(str(error)) from None
        self._num_chunks += 1
        self._chunk = (self._chunk[0] + 1, tuple(len(batch) for batch in batches))
        failure, seconds, num_judged = "", 0.0, len(batches)
        arguments = (worker.judge, self._chunk[0], spec, batches)
        try:
            num_judged, seconds = await self._run(*arguments, limit=self._timeout)
        except _EndedError as error:
            failure = str(error)
        try:
            entries = self._journal.read(*self._chunk)
        except ValueError as error:
            self._usable = False
            raise WorkerError(f"a worker's journal is not in order: {error}") from None
        if entries is None:
            raise WorkerError(f"a worker ended before it began: {failure}")
        if entries and isinstance(entries[-1], str):
            failure = str(entries.pop())
        outcomes = [entry for entry in entries if isinstance(entry, tuple)]
        if len(outcomes) == num_judged:
            return JudgedBatches(outcomes, "", seconds)
        return JudgedBatches(outcomes, failure or "the worker wrote no outcome down")

    @property
    def num_judged(self) -> int:
        """How many batches of the chunk under way are judged."""
        return len(self._journal.read(*self._chunk) or ())

    async def close(self) -> None:
        await asyncio.to_thread(self._shut)
        self._journal.close()

    async def _run(self, function: Callable[..., Any], *arguments: Any, limit: float) -> Any:
        """`limit`: seconds for one batch or import, which the worker watches over itself.

        Raises _EndedError when the process did not finish the call.
        """
        assert self._pool
        self._usable = False  # until we know how it ended; also when we are cancelled
        try:
            async with asyncio.timeout(worker.STALL_SECONDS + limit + self._grace_seconds):
                future = self._pool.schedule(function, (*arguments, limit))
                answer = await asyncio.wrap_future(future)
        except pebble.ProcessExpired as error:
            self._usable = True  # pebble starts the next one
            self._end_process()
            raise _EndedError(_describe_exit(error.exitcode, limit)) from None
        except TimeoutError:
            raise _EndedError(_describe_exit(-signal.SIGALRM, limit)) from None
        except BrokenProcessPool:  # it died before pebble had read that the call began
            raise _EndedError("the checker died") from None
        except Exception as error:
            raise _EndedError(f"{type(error).__name__}: {error}") from None
        self._usable = True
        return answer

    async def _replace(self) -> None:
        """Raises WorkerError when no process can be started."""
        for pause in (
            *RESTART_PAUSES,
            None,
        ):  # the fork server may have been killed in the middle of it
            restarting = asyncio.ensure_future(asyncio.to_thread(self._restart))
            await self._until_done(restarting)
            try:
                restarting.result()
            except (OSError, RuntimeError, EOFError) as error:
                if pause is None:
                    reason = f"{type(error).__name__}: {error}"
                    raise WorkerError(f"no worker can be started: {reason}") from None
                await asyncio.sleep(pause)
            else:
                break
        self._usable = True

    async def _until_done(self, restarting: asyncio.Future[None]) -> None:
        """Kills a fork server that is frozen: nothing else ends the thread that waits for it."""
        while not restarting.done():
            server = _fork_server()
            await asyncio.wait({restarting}, timeout=self._start_seconds)
            if not restarting.done() and server and server == _fork_server():
                logger.warning("the fork server is frozen; it is killed, with all workers")
                with suppress(ProcessLookupError):  # another process of the pool was faster
                    os.kill(server, signal.SIGKILL)

    def _restart(self) -> None:
        with self._changing:
            if self._closed:
                raise RuntimeError("the pool was closed")
            self._stop()
            self._start()

    def _shut(self) -> None:
        with self._changing:
            self._closed = True
            self._stop()

    def _start(self) -> None:
        self._pool = pebble.ProcessPool(
            max_workers=1,
            initializer=worker.start,
            initargs=(self._journal.path, self._memory_mib),
            context=self._context,
        )
        if not self._pool.active:  # asking for it starts the process
            raise RuntimeError("it ended at once")

    def _stop(self) -> None:
        self._end_process()
        if self._pool:
            self._pool.stop()
            self._pool.join()
            self._pool = None

    def _end_process(self) -> None:
        """With whatever the functions started."""
        if self._pid:
            kill_group(self._pid)
        self._forget_process()

    def _forget_process(self) -> None:
        self._pid = 0
        self._kinds: dict[FunctionSpec, FunctionKind] = {}
        self._num_chunks = 0


def _fork_server() -> int | None:
    """Its process id; None before it was started. Python has no public name for it."""
    return forkserver._forkserver._forkserver_pid  # pyright: ignore[reportAttributeAccessIssue]


def _describe_exit(code: int, limit: float) -> str:
    """`limit`: the deadline in seconds."""
    if code == -signal.SIGALRM:
        return f"no answer within {limit:g} s"
    if code < 0:
        with suppress(ValueError):
            return f"the checker died ({signal.Signals(-code).name})"
    return f"the checker died (exit code {code})"
