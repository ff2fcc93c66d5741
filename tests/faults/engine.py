"""An engine that holds real tensors, and whose every token says which tensors it holds.

Each token is a checksum taken again over all the memory that the engine has
loaded, so that a mixture, a half load or a flipped bit shows in the very tokens
that were made with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import starmap

import torch

from services.rollout.engine import Chunk, Ended, Engine, Event, GenerationRequest
from tests.faults.orders import Orders
from tests.faults.versions import checksum
from trimaran.errors import BehindError
from trimaran.types import Manifest, Message, Ranges, Tool, VersionId
from weights.memory.changes import ChangedTensor
from weights.memory.shadow import Shadow
from weights.version.digest import digest_value
from weights.version.layout import numbers_of
from weights.version.manifest import list_blocks

TOKEN_SECONDS = 0.02


class StandInEngine(Engine):
    def __init__(
        self, orders: Orders, token_seconds: Callable[[], float] = lambda: TOKEN_SECONDS
    ) -> None:
        self._orders, self._token_seconds = orders, token_seconds
        self._loaded: dict[str, torch.Tensor] = {}
        self._live: VersionId | None = None
        self._running = asyncio.Event()
        self._num_running = 0
        self._num_corrupt = 0
        """Loads to come that end with a wrong bit."""

    async def start(self) -> None:
        return

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return frozenset()

    def tokenize(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        return tuple(messages[-1].text.encode())

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        made = {index: len(start) for index, start in request.starts.items()}
        self._num_running += len(made)
        try:
            while made:
                await self._running.wait()
                if self._live is None:
                    raise BehindError("the last load failed")
                token, version = checksum(self._loaded), self._live
                for index, start in list(made.items()):
                    yield Chunk(index, start, version, (token,), (0.0,))
                    made[index] += 1
                    if made[index] >= request.sampling.max_tokens:
                        yield Ended(index, "length")
                        del made[index]
                        self._num_running -= 1
                await asyncio.sleep(self._token_seconds())
        finally:
            self._num_running -= len(made)

    async def load_weights(self, shadow: Shadow, version: VersionId) -> float:
        """Writes tensor by tensor and lets others run in between, as an engine's own load does."""
        begin = time.monotonic()
        self._orders.reach("load")
        self._running.clear()
        live, self._live = self._live, None
        if live is not None and shadow.changes is not None:
            changed = list(shadow.changes.tensors(shadow.manifest.tensors))
            half, writes = len(changed) // 2, map(self._write, changed)
        else:
            half, writes = len(shadow.manifest.tensors) // 2, starmap(self._copy, shadow.tensors())
        for number, _ in enumerate(writes):
            if number == half:
                self._orders.reach("half")
            await asyncio.sleep(0)
        action, _, times = self._orders.reach("loaded").partition(" ")
        if action == "corrupt":
            self._num_corrupt = int(times or 1)
        if self._num_corrupt:
            self._num_corrupt -= 1
            flip_bit(max(self._loaded.values(), key=torch.numel))
        self._live = version
        self._running.set()
        return time.monotonic() - begin

    def _copy(self, name: str, tensor: torch.Tensor) -> None:
        if name not in self._loaded:
            self._loaded[name] = torch.empty_like(tensor)
        self._loaded[name].copy_(tensor)

    def _write(self, changed: ChangedTensor) -> None:
        flat = self._loaded[changed.info.name].view(-1)
        flat[changed.positions.long()] = changed.values

    async def read_back(self, manifest: Manifest, ranges: Ranges) -> dict[int, str]:
        wanted = set(numbers_of(ranges))
        found: dict[int, str] = {}
        for block in list_blocks(manifest.tensors):
            if block.number in wanted:
                tensor = self._loaded[block.tensor.name]
                piece = tensor.narrow(block.tensor.axis, block.start, block.stop - block.start)
                found[block.number] = digest_value(piece)
                await asyncio.sleep(0)
        return found

    @property
    def num_running(self) -> int:
        return self._num_running

    def check(self) -> None:
        return

    async def close(self) -> None:
        return


def flip_bit(tensor: torch.Tensor) -> None:
    """One bit in the middle of its memory."""
    memory = tensor.view(-1).view(torch.uint8)
    memory[memory.numel() // 2] ^= 4
