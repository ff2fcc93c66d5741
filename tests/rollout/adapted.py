"""A real vLLM engine that adds adapters to a frozen model: run as a process.

    python -m tests.rollout.adapted MODEL DTYPE TENSOR_PARALLEL

Prints one JSON object: of each load how often vLLM loaded by itself, the blocks that were read back wrong, and
how far the log-probabilities are from those of transformers with the adapters merged.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from services.rollout.engine import Chunk, GenerationRequest
from services.rollout.vllm.engine import VllmEngine
from tests.rollout.loaded import check_engine
from tests.rollout.versions import draw_adapters, patched_shadow_of, shadow_of
from trimaran.config import parse_config
from trimaran.host.device import pick
from trimaran.types import Sampling, VersionId
from weights.memory.shadow import Shadow
from weights.version.manifest import list_blocks, list_digests

RANK = 8
PROMPT = (5, 6, 7, 8)


def main(folder: Path, dtype: str, tensor_parallel: int) -> None:
    config = parse_config(
        {
            "model": {"path": str(folder), "dtype": dtype},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "trainer": {"lora": {"rank": RANK, "merged": False}},
            "rollout": {
                "engine": "vllm",
                "device": "cpu",
                "max_tokens": 24,
                "max_prompt_tokens": 16,
                "max_concurrency": 4,
                "kv_cache_gib": 0.05,
                "tensor_parallel": tensor_parallel,
            },
        }
    )
    print(json.dumps(asyncio.run(check_engine(VllmEngine(config, pick("cpu")), folder, Checks))))


class Checks:
    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.frozen = load_file(folder / "model.safetensors")
        self.step = self.by_vllm = 0
        self._update = engine._workers._update
        engine._workers._update = self._counted

    async def _counted(self, *arguments: Any) -> None:
        self.by_vllm += 1
        await self._update(*arguments)

    async def run(self) -> dict[str, Any]:
        first, second = (draw_adapters(self.frozen, RANK, seed) for seed in (1, 2))
        whole = shadow_of(self.folder, self.frozen | first)
        changed = patched_shadow_of(self.folder, self.frozen | first, self.frozen | second)
        broken = shadow_of(self.folder, self.frozen | first)
        piece = [one for one in broken.layout.pieces if "down_proj.lora_B" in one.block.tensor.name]
        broken.buffer[piece[-1].end - 2] ^= 1
        return {
            "whole": await self.loaded(whole, first),
            "adapters alone": await self.loaded(changed, second),
            "whole again": await self.loaded(whole, first),
            "broken": (await self.loaded(broken, first))["wrong"],
        }

    async def loaded(self, shadow: Shadow, adapters: dict[str, torch.Tensor]) -> dict[str, Any]:
        self.step += 1
        before = self.by_vllm
        await self.engine.load_weights(shadow, VersionId(0, self.step))
        return {
            "by vllm": self.by_vllm - before,
            "wrong": await self.wrong(shadow),
            "distance": await self.distance(adapters),
        }

    async def wrong(self, shadow: Shadow) -> list[Any]:
        manifest = shadow.manifest
        found = await self.engine.read_back(manifest, ((0, manifest.num_blocks),))
        digests = list_digests(manifest)
        return [
            [block.tensor.name, block.index]
            for block in list_blocks(manifest.tensors)
            if found[block.number] != digests[block.number]
        ]

    async def distance(self, adapters: dict[str, torch.Tensor]) -> float:
        """The largest, over the tokens of one completion."""
        tokens, logprobs = await self.sample()
        merged = {name: value.float().clone() for name, value in self.frozen.items()}
        for name, value in adapters.items():
            if name.endswith(".lora_A.weight"):
                matrix = name.removesuffix(".lora_A.weight")
                b = adapters[f"{matrix}.lora_B.weight"].float()
                merged[f"{matrix}.weight"] += b @ value.float()
        model: Any = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        model.load_state_dict(merged, strict=False)
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
        wanted = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        return (wanted - torch.tensor(logprobs)).abs().max().item()

    async def sample(self) -> tuple[list[int], list[float]]:
        tokens: list[int] = []
        logprobs: list[float] = []
        request = GenerationRequest(0, PROMPT, Sampling(1.0, 24, 1, 0), {0: ()})
        async with aclosing(self.engine.generate(request)) as events:
            async for event in events:
                if isinstance(event, Chunk):
                    tokens += event.token_ids_T
                    logprobs += event.logprobs_T
        return tokens, logprobs


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
