"""What the engine asks of vLLM's workers: take a version from a shadow, read blocks back.

Each worker does its part of every call; those of one machine map the same shadow.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from services.rollout.read_back import SLICE_SECONDS, join
from services.rollout.vllm.plugin import BACKEND, SYNTHETIC
from trimaran.errors import InputError, InternalError
from trimaran.host.call_waits import within
from trimaran.types import Manifest, Ranges
from weights.version.manifest import manifest_to_json

logger = logging.getLogger(__name__)

GIVE_UP_SECONDS = 1.0
"""For workers to drop what they have prepared of a load that is given up."""


CHANGES, WHOLE = "what changed", "a whole version"


class VllmWorkers:
    def __init__(self, llm: Any, transfer: str | None, adds_adapters: bool = False) -> None:
        """`llm`: an AsyncLLM. `transfer`: its weight-transfer backend; None where it has none.
        `adds_adapters`: versions have some."""
        self._llm = llm
        self._adds_adapters = adds_adapters
        self._transfer = transfer
        self.turn = asyncio.Lock()
        """An update holds it, and so does each slice of a read-back: no slice falls into a pause."""
        self._reading = asyncio.Lock()
        self._is_update_open = False
        """An update was started and is not known to have ended."""
        self._are_writes_held = False
        """By a worker: of changes there are lists on its device."""
        self._refused: set[str] = set()
        """What some worker could not write into its parameters, and why was logged."""

    async def start(self, timeout: float) -> None:
        """Raises DeadlineError when the workers do not answer within `timeout` seconds, and
        InputError when their samplers cannot report log-probabilities at the sampling temperature.
        """
        async with within(timeout, "the start of vllm's workers"):
            await self.call("end_with_parent")
            if self._transfer == BACKEND:
                await self.call("init_weight_transfer_engine", init_info={})
            for missing in await self.call("report_processed_logprobs"):
                if missing:
                    raise InputError(
                        f"vllm: {missing}, so its log-probabilities would not be those of the"
                        " sampling temperature; install a version that requirements/ names"
                    )

    async def compute_faster(self, timeout: float) -> None:
        """Raises DeadlineError as `start` does."""
        async with within(timeout, "vllm's workers, asked to compute faster"):
            await self.call("compute_faster")

    async def install_fast_adapters(self, timeout: float) -> None:
        """Raises DeadlineError as `start` does."""
        async with within(timeout, "vllm's workers, asked for fast adapters"):
            await self.call("install_fast_adapters")

    @asynccontextmanager
    async def prepared_writes(
        self, path: str, description: dict[str, Any], may_write: bool
    ) -> AsyncIterator[bool]:
        """Whether every worker can write the version into its parameters, or what changed of it, and is
        ready to. Nothing of the model is touched: the engine goes on generating, between slices. Hold
        `turn`. Without `may_write` they are not asked.

        No worker keeps what it has prepared: where it is not written, it is dropped.
        """
        try:
            yield may_write and await self._prepare_writes(path, description)
        finally:
            if self._are_writes_held:
                await self._give_up_writes()

    async def _prepare_writes(self, path: str, description: dict[str, Any]) -> bool:
        what = CHANGES if description["changes"] else WHOLE
        if what == WHOLE and what in self._refused:  # by the model's layers, which stay as they are
            return False
        self._are_writes_held = True
        reasons = await self.call("begin_writes", path, description)
        is_ready, seconds = False, SLICE_SECONDS
        while not is_ready and not any(reasons):
            began = time.monotonic()
            answers = await self.call("prepare_writes", seconds)
            # As long as the step before it: at long prompts a commit would end in many short ones.
            seconds = max(SLICE_SECONDS, time.monotonic() - began - seconds)
            reasons = [why for why, _ in answers]
            is_ready = all(ready for _, ready in answers)
        if why := next(filter(None, reasons), ""):
            if what not in self._refused:
                logger.info("%s is not written into vllm's parameters: %s", what, why)
            self._refused.add(what)
            # Before the load, which needs room of its own.
            await self._drop_writes()
        return is_ready

    async def _drop_writes(self) -> None:
        await self.call("drop_writes")
        self._are_writes_held = False

    async def _give_up_writes(self) -> None:
        """A core that does not answer has taken the call, and makes it before any later one."""
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._drop_writes()
        except Exception as error:  # it must not stand in the place of what the load failed with
            logger.warning(
                "a worker of vllm may still hold what was prepared for a load: %r", error
            )

    async def make_writes(self) -> None:
        """Those that are prepared. Hold `turn`, with the core paused."""
        self._are_writes_held = False  # a worker drops them as it begins to write
        await self.call("make_writes")

    async def load(self, path: str, description: dict[str, Any]) -> None:
        """Everything, by vLLM's own calls where it has them. Hold `turn`.

        A load that failed, or whose caller stopped waiting for it, may have left its update open
        in some workers, which would refuse the next one: so the next load abandons it first. A
        worker that stood still meanwhile has the calls in their order.
        """
        if self._transfer is None:
            await self.call("load_shadow", path, description)
        else:
            await self._update(path, description)
        # A call of its own: in vLLM 0.23 the worker's finish ends the reload, not our engine.
        await self.call("pack_heads")
        if self._adds_adapters and path != SYNTHETIC:
            await self.call("write_adapters", path, description)

    async def _update(self, path: str, description: dict[str, Any]) -> None:
        if self._is_update_open:
            await self.call("abandon_update")
        self._is_update_open = True
        await self.call("start_weight_update")
        update = {"path": path, "description": description}
        await self.call("update_weights", update_info=update)
        await self.call("finish_weight_update")
        self._is_update_open = False

    async def answer(self, on_turn: Callable[[], None]) -> None:
        """Returns once the core and every worker have taken a call. `on_turn` is called when it goes
        out: a load, which may be long, is waited for before."""
        async with self.turn:
            on_turn()
            await self.call("answer")

    async def read_back(self, manifest: Manifest, ranges: Ranges) -> dict[int, str]:
        """See `Engine.read_back`."""
        found: list[dict[int, str]] = []
        async with self._reading:
            try:
                bounds = [list(bound) for bound in ranges]
                async with self.turn:
                    await self.call("begin_read_back", manifest_to_json(manifest), bounds)
                ended = False
                while not ended:
                    async with self.turn:
                        answers = await self.call("go_on_reading_back", SLICE_SECONDS)
                    found += [dict(digests) for digests, _ in answers]
                    ended = all(last for _, last in answers)
            except Exception as error:
                raise InternalError(f"vllm did not read its weights back: {error}") from error
        return join(manifest, ranges, found)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """What that method of `WorkerExtension` returns in each worker, by rank. Hold `turn`. Raises
        InternalError with the errors of all workers in which it failed.

        A caller that stops waiting spoils no later call: vLLM's core still waits for every worker,
        begins nothing else meanwhile, and drops the answer, for it belongs to that call's number.
        vLLM's own `timeout` would leave answers unread, so none is given.
        """
        answers = await self._llm.collective_rpc("attempt", args=(method, args, kwargs))
        errors = [answer for succeeded, answer in answers if not succeeded]
        if errors:
            what = "; ".join(dict.fromkeys(errors))
            raise InternalError(
                f"vllm: {method} failed in {len(errors)} of {len(answers)} workers: {what}"
            )
        return [answer for _, answer in answers]
