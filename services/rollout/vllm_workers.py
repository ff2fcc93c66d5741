"""What the engine asks of vLLM's workers: take a version from a shadow, read blocks back.

Each worker does its part of every call; those of one machine map the same shadow.
"""

from __future__ import annotations

import asyncio
from typing import Any

from services.rollout.read_back import SLICE_SECONDS, join
from services.rollout.vllm_plugin import BACKEND
from services.weight_sync.manifest import manifest_to_json
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

    async def start(self) -> None:
        await self._llm.collective_rpc("end_with_parent")
        if self._transfer == BACKEND:
            init = {"init_info": {}}
            await self._llm.collective_rpc("init_weight_transfer_engine", kwargs=init)

    async def install_fast_sampler(self) -> bool:
        return all(await self._llm.collective_rpc("install_fast_sampler"))

    async def load(self, path: str, description: dict[str, Any]) -> None:
        """By vLLM's own calls where it has them. Hold `turn`."""
        call = self._llm.collective_rpc
        if self._transfer is None:
            await call("load_shadow", args=(path, description))
            return
        await call("start_weight_update")
        try:
            update = {"path": path, "description": description}
            await call("update_weights", kwargs={"update_info": update})
        except Exception:
            await call("abandon_update")
            raise
        await call("finish_weight_update")

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
