"""Rules in processes that can be killed: symbolic checkers hang, and threads cannot be stopped.

Two things that look alike are kept apart. A *fault* (a worker that dies, overload) leaves a
completion `Unscored`, so that it never trains the model. An answer on which the checker runs out
of time or raises, twice, in a fresh process, is *unscoreable* and gets the lowest reward, because
hanging the checker must not pay.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.rules import weighted_sum, worst_terms
from services.reward.worker import READY, pack
from trimaran.launch.lifetime import kill_group
from trimaran.types import Completion, Group, Prompt, Score, Unscored, Verdict

START_SECONDS = 30.0
"""Until a new worker says that it is ready."""
QUEUE_SECONDS = 120.0
"""A completion that waits longer for a free worker is unscored: the pool is overloaded."""
ATTEMPTS = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Undigested:
    """The rule ran out of time or raised."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A worker or the pool failed; the answer is not to blame."""

    reason: str


class Worker:
    """One process. After anything but a value it is of no use any more: kill it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str]) -> Worker:
        """Raises OSError, TimeoutError or EOFError (IncompleteReadError) when it does not come up."""
        process = await asyncio.create_subprocess_exec(
            *command,
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        worker = cls(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                if await worker._read() != READY:
                    raise EOFError("the worker did not say that it is ready")
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def run(self, job: Mapping[str, Any], timeout: float) -> float | Undigested | Fault:
        assert self._process.stdin
        try:
            self._process.stdin.write(pack(job))
            async with asyncio.timeout(timeout):
                await self._process.stdin.drain()
                answer = await self._read()
        except TimeoutError:
            return Undigested(f"no answer within {timeout:g} s")
        except (EOFError, OSError):
            code = await self._process.wait()
            return Fault(f"a reward worker died (exit code {code})")
        return answer["value"] if "value" in answer else Undigested(answer["error"])

    async def kill(self) -> None:
        kill_group(self._process.pid)  # with whatever the checker started
        await self._process.wait()

    async def _read(self) -> Any:
        assert self._process.stdout
        header = await self._process.stdout.readexactly(4)
        return json.loads(await self._process.stdout.readexactly(int.from_bytes(header, "little")))


WORKER_COMMAND = (sys.executable, "-m", "services.reward.worker")


class RulePool:
    """`num_workers` processes; each runs one rule on one completion at a time."""

    def __init__(
        self,
        weights: Mapping[str, float],
        num_workers: int,
        timeout: float,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._weights = dict(weights)
        self._timeout = timeout
        self._command = command
        self._num_workers = num_workers
        # None: a place whose worker has to be started first.
        self._places: asyncio.Queue[Worker | None] = asyncio.Queue()
        for _ in range(num_workers):
            self._places.put_nowait(None)

    async def start(self) -> None:
        """Start every worker now, so that the first group does not wait for them."""
        await asyncio.gather(*(self._fill_place() for _ in range(self._num_workers)))

    async def _fill_place(self) -> None:
        worker = await self._places.get()
        try:
            worker = worker or await Worker.start(self._command)
        finally:
            self._places.put_nowait(worker)

    async def close(self) -> None:
        """Call when no group is being scored any more."""
        for _ in range(self._num_workers):
            if worker := await self._places.get():
                await worker.kill()

    async def score_group(self, group: Group) -> tuple[Verdict, ...]:
        """In completion order. Raises nothing for a bad answer or worker: the verdict says it."""
        verdicts = await asyncio.gather(
            *(self._score(group.prompt, completion) for completion in group.completions_G)
        )
        return tuple(verdicts)

    async def _score(self, prompt: Prompt, completion: Completion) -> Verdict:
        terms: dict[str, float] = {}
        for rule in self._weights:
            job = {
                "rule": rule,
                "text": completion.text,
                "answer": prompt.answer,
                "extras": dict(prompt.extras),
            }
            match await self._judge(job):
                case Fault(reason):
                    logger.warning("%s: %s: unscored: %s", prompt.prompt_id, rule, reason)
                    return Unscored(f"{rule}: {reason}")
                case Undigested(reason):
                    logger.warning("%s: %s: unscoreable: %s", prompt.prompt_id, rule, reason)
                    worst = worst_terms(self._weights)
                    return Score(weighted_sum(worst, self._weights), worst, unscoreable=True)
                case value:
                    terms[rule] = value
        return Score(weighted_sum(terms, self._weights), terms)

    async def _judge(self, job: Mapping[str, Any]) -> float | Undigested | Fault:
        """The value, or the failure that came twice."""
        seen = {Undigested: 0, Fault: 0}
        while True:
            outcome = await self._run_once(job)
            if isinstance(outcome, float):
                return outcome
            seen[type(outcome)] += 1
            if seen[type(outcome)] == ATTEMPTS:
                return outcome

    async def _run_once(self, job: Mapping[str, Any]) -> float | Undigested | Fault:
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                worker = await self._places.get()
        except TimeoutError:
            return Fault(f"overloaded: no free worker for {QUEUE_SECONDS:g} s")
        outcome: float | Undigested | Fault | None = None
        try:
            worker = worker or await Worker.start(self._command)
            outcome = await worker.run(job, self._timeout)
            return outcome
        except (OSError, EOFError) as error:
            return Fault(f"a reward worker did not start ({type(error).__name__}: {error})")
        finally:
            # Also when we are cancelled: a worker that still owes an answer is not used again.
            clean = isinstance(outcome, float)
            self._places.put_nowait(worker if clean else None)
            if worker and not clean:
                await worker.kill()
