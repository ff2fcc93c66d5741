"""What the engine asks of vLLM's workers: take a version from a shadow, read blocks back.

Each worker does its part of every call; those of one machine map the same shadow.
"""

from __future__ import annotations

import asyncio
from typing import Any

from services.rollout.deadlines import within
from services.rollout.read_back import SLICE_SECONDS, join
from services.rollout.vllm.plugin import BACKEND
from services.weight_sync.data.manifest import manifest_to_json
from trimaran.errors import InternalError
from trimaran.types import Manifest, Ranges


class VllmWorkers:
    def __init__(self, llm: Any, transfer: str | None) -> None:
        """`llm`: an AsyncLLM. `transfer`: its weight-transfer backend; None where it has none."""
        self._llm = llm
        self._transfer = transfer
        self.turn = asyncio.Lock()
        """An update holds it, and so does each slice of a read-back: no slice falls into a pause."""
        self._reading = asyncio.Lock()
        self._is_update_open = False
        """An update was started and is not known to have ended."""

    async def start(self, timeout: float) -> None:
        """Raises DeadlineError when the workers do not answer within `timeout` seconds."""
        async with within(timeout, "the start of vllm's workers"):
            await self._llm.collective_rpc("end_with_parent")
            if self._transfer == BACKEND:
                init = {"init_info": {}}
                await self._llm.collective_rpc("init_weight_transfer_engine", kwargs=init)

    async def install_fast_sampler(self, timeout: float) -> bool:
        """Raises DeadlineError as `start` does."""
        async with within(timeout, "vllm's workers, asked for the fast sampler"):
            return all(await self._llm.collective_rpc("install_fast_sampler"))

    async def load(self, path: str, description: dict[str, Any]) -> None:
        """By vLLM's own calls where it has them. Hold `turn`.

        A load that failed, or whose caller stopped waiting for it, may have left its update open
        in some workers, which would refuse the next one: so the next load abandons it first. A
        worker that stood still meanwhile has the calls in their order.
        """
        call = self._llm.collective_rpc
        if self._transfer is None:
            await call("load_shadow", args=(path, description))
        else:
            await self._update(path, description)
        # A call of its own: in vLLM 0.23 the worker's finish ends the reload, not our engine.
        await call("pack_heads")

    async def _update(self, path: str, description: dict[str, Any]) -> None:
        call = self._llm.collective_rpc
        if self._is_update_open:
            await call("abandon_update")
        self._is_update_open = True
        await call("start_weight_update")
        update = {"path": path, "description": description}
        await call("update_weights", kwargs={"update_info": update})
        await call("finish_weight_update")
        self._is_update_open = False

    async def read_back(self, manifest: Manifest, ranges: Ranges) -> dict[int, str]:
        """See `Engine.read_back`."""
        found: list[dict[int, str]] = []
        async with self._reading:
            try:
                bounds = [list(bound) for bound in ranges]
                await self._call("begin_read_back", manifest_to_json(manifest), bounds)
                ended = False
                while not ended:
                    answers = await self._call("go_on_reading_back", SLICE_SECONDS)
                    found += [dict(digests) for digests, _ in answers]
                    ended = all(last for _, last in answers)
            except Exception as error:
                raise InternalError(f"vllm did not read its weights back: {error}") from error
        return join(manifest, ranges, found)

    async def _call(self, method: str, *arguments: Any) -> list[Any]:
        async with self.turn:
            return await self._llm.collective_rpc(method, args=arguments)
