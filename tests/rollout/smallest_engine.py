"""The smallest engine that keeps the contract: its one token says how often it has loaded weights."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import torch

from services.rollout.chat import ChatTokenizer
from services.rollout.engine import Chunk, Ended, Event, GenerationRequest
from services.rollout.read_back import read_by_name
from services.weight_sync.data.shadow import Shadow
from trimaran.config import RunConfig
from trimaran.device import Device
from trimaran.errors import BehindError
from trimaran.types import Manifest, Message, Ranges, VersionId


class SmallestEngine:
    def __init__(self, config: RunConfig, device: Device) -> None:
        self._config = config
        self._live: VersionId | None = None
        self._tensors: dict[str, torch.Tensor] = {}
        self._num_loads = 0
        self.num_running = 0

    async def start(self) -> None:
        self._chat = ChatTokenizer(self._config.model.path)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self._chat.stop_token_ids

    def tokenize(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._chat.tokenize(messages)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._chat.detokenize(token_ids)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        if self._live is None:
            raise BehindError("this replica holds no version; weight sync must bring one")
        for index, start in request.starts.items():
            yield Chunk(index, len(start), self._live, (self._num_loads,), (-0.5,))
            yield Ended(index, "length")

    async def load_weights(self, shadow: Shadow, version: VersionId) -> float:
        self._tensors = {name: tensor.clone() for name, tensor in shadow.tensors()}
        self._num_loads += 1
        self._live = version
        return 0.0

    async def read_back(self, manifest: Manifest, ranges: Ranges) -> dict[int, str]:
        return dict(read_by_name(self._tensors.__getitem__, manifest, ranges))

    def check(self) -> None: ...

    async def close(self) -> None: ...
