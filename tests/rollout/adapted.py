"""A real vLLM engine that adds adapters to a frozen model: run as a process.

    python -m tests.rollout.adapted MODEL DTYPE TENSOR_PARALLEL

Prints one JSON object: of each load how often vLLM loaded by itself, the blocks that were read back wrong, and
how far the log-probabilities are from those of transformers with the adapters merged.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from services.rollout.engine import GenerationRequest
from tests.rollout.programs import chunks_of, find_wrong, loads_by_vllm, print_checks
from tests.rollout.versions import draw_adapters, patched_shadow_of, shadow_of
from trimaran.types import Sampling, VersionId
from weights.memory.shadow import Shadow

RANK = 8
PROMPT = (5, 6, 7, 8)


def main(folder: Path, dtype: str, tensor_parallel: int) -> None:
    trainer = {"lora": {"rank": RANK, "merged": False}}
    rollout = {"tensor_parallel": tensor_parallel}
    print_checks(Checks, folder, dtype, {}, trainer=trainer, rollout=rollout)


class Checks:
    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.frozen = load_file(folder / "model.safetensors")
        self.step, self.by_vllm = 0, loads_by_vllm(engine)

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
        before = len(self.by_vllm)
        await self.engine.load_weights(shadow, VersionId(0, self.step))
        return {
            "by vllm": len(self.by_vllm) - before,
            "wrong": await find_wrong(self.engine, shadow.manifest),
            "distance": await self.distance(adapters),
        }

    async def distance(self, adapters: dict[str, torch.Tensor]) -> float:
        """The largest, over the tokens of one completion."""
        request = GenerationRequest(0, PROMPT, Sampling(1.0, 24, 1, 0), {0: ()})
        chunks = [chunk async for chunk in chunks_of(self.engine, request)]
        tokens = [token for chunk in chunks for token in chunk.token_ids_T]
        logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs_T]
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
