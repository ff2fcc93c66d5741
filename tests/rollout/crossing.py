"""A real vLLM engine and prompts with images: what crosses into its core, and what its tower looks at. Run as
a process.

    python -m tests.rollout.crossing MODEL

Prints one JSON object: work -> [bytes that crossed for each byte of the prompts' patches, images seen, completions].
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from services.rollout.engine import Ended, GenerationRequest
from services.rollout.images import ImagePlacer
from services.rollout.vllm.worker import WorkerExtension
from tests.images.test_processor import png
from tests.rollout.programs import print_checks
from tests.rollout.versions import shadow_of
from tests.tiny_vision import IMAGE, VISION_END, VISION_START, patch_multiple
from trimaran.types import Sampling, VersionId

COMPLETIONS = 8
TOKENS = 12


class Extension(WorkerExtension):
    """Counts images that go through the tower."""

    def count_images(self) -> None:
        self._seen = 0
        tower = self.model_runner.get_model().visual
        forward = tower.forward

        def counted(patches: Any, grid_thw: Any) -> Any:
            self._seen += len(grid_thw)
            return forward(patches, grid_thw)

        tower.forward = counted

    def take_seen(self) -> int:
        seen, self._seen = self._seen, 0
        return seen


def main(folder: Path) -> None:
    extension = {"worker_extension_cls": "tests.rollout.crossing.Extension"}
    rollout = {"max_prompt_tokens": 64, "max_concurrency": 3 * COMPLETIONS, "kv_cache_gib": 0.1}
    print_checks(Checks, folder, "float32", extension, rollout=rollout)


class Checks:
    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.images = ImagePlacer(folder, limit=2)
        self.unit = patch_multiple("qwen2_5_vl")
        self.crossed = 0
        encode = engine.llm.engine_core.encoder.encode

        def counted(message: Any) -> Any:
            buffers = encode(message)
            self.crossed += sum(len(memoryview(one).cast("B")) for one in buffers)
            return buffers

        engine.llm.engine_core.encoder.encode = counted

    async def run(self) -> dict[str, Any]:
        weights = load_file(self.folder / "model.safetensors")
        await self.engine.load_weights(shadow_of(self.folder, weights), VersionId(0, 1))
        await self.engine.llm.collective_rpc("count_images")
        begun = [(8 + index,) for index in range(COMPLETIONS)]
        none = [()] * COMPLETIONS
        return {
            "a group": await self.made([self.request(1, none)]),
            "a group that goes on": await self.made([self.request(2, begun)]),
            "greedy": await self.made([self.request(3, none, temperature=0.0)]),
            "three at a time": await self.made([self.request(n, none) for n in (4, 5, 6)]),
        }

    def request(
        self, number: int, starts: Sequence[tuple[int, ...]], temperature: float = 1.0
    ) -> GenerationRequest:
        """Two images of its own, of the size that all have."""
        files = [png(4 * self.unit, 6 * self.unit, seed=10 * number + n)[0] for n in range(2)]
        tokens = [VISION_START, IMAGE, VISION_END, 20, VISION_START, IMAGE, VISION_END, 21]
        token_ids, placed = self.images.place(files, tokens)
        sampling = Sampling(temperature, TOKENS, COMPLETIONS, 0)
        return GenerationRequest(number, token_ids, sampling, dict(enumerate(starts)), placed)

    async def made(self, requests: Sequence[GenerationRequest]) -> tuple[float, int, int]:
        self.crossed = 0
        ended = await asyncio.gather(*map(self.num_ended, requests))
        crossed = self.crossed
        patches = sum(one.images.processed.patches.nbytes for one in requests if one.images)
        (seen,) = await self.engine.llm.collective_rpc("take_seen")
        return crossed / patches, seen, sum(ended)

    async def num_ended(self, request: GenerationRequest) -> int:
        async with aclosing(self.engine.generate(request)) as events:
            return len({one.index async for one in events if isinstance(one, Ended)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
