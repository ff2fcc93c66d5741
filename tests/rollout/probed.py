"""A real vLLM engine in which something keeps computing with older weights: run as a process.

    python -m tests.rollout.probed MODEL DTYPE

Prints one JSON object: what was stale -> what the start's probe says of it, "" where it passes.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch

from services.rollout.temperature import check_temperature
from services.rollout.vllm import engine as vllm_engine
from services.rollout.vllm.loading.synthetic import read_shapes
from services.rollout.vllm.worker import WorkerExtension
from tests.rollout.packed import has_packed_copy, matrix_of
from tests.rollout.versions import shadow_of
from trimaran.config import parse_config
from trimaran.errors import InputError
from trimaran.host.device import pick
from trimaran.types import VersionId

LAYER = "model.layers.1."
LINEAR = {
    "qkv": LAYER + "self_attn.qkv_proj",
    "o": LAYER + "self_attn.o_proj",
    "gate_up": LAYER + "mlp.gate_up_proj",
    "down": LAYER + "mlp.down_proj",
}
PLAIN = {
    "input norm": LAYER + "input_layernorm",
    "mlp norm": LAYER + "post_attention_layernorm",
    "final norm": "model.norm",
    "embedding": "model.embed_tokens",
}


class Extension(WorkerExtension):
    """Makes layers compute with what they hold now, whatever is loaded later."""

    def freeze(self, path: str) -> None:
        """A linear layer."""
        layer = self.model_runner.get_model().get_submodule(path)
        matrix = matrix_of(layer, self.model_runner.model_config.dtype)
        layer.quant_method = copy.copy(layer.quant_method)

        def apply(layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
            product = x @ matrix
            # Where it packs for AMX, vLLM keeps biases in float32.
            return product if bias is None else product + bias.to(product.dtype)

        layer.quant_method.apply = apply

    def freeze_bias(self, path: str) -> None:
        layer = self.model_runner.get_model().get_submodule(path)
        bias, right = layer.bias.detach().clone(), layer.quant_method.apply
        layer.quant_method = copy.copy(layer.quant_method)
        layer.quant_method.apply = lambda layer, x, _: right(layer, x, bias)

    def freeze_plain(self, path: str) -> None:
        """A layer that computes with its parameter itself."""
        layer = self.model_runner.get_model().get_submodule(path)
        layer.forward = copy.deepcopy(layer).forward

    def head_is_packed(self) -> bool:
        return has_packed_copy(self.model_runner.get_model().lm_head)

    def leave_head_unpacked(self) -> None:
        """As if nothing packed a tied output layer again."""
        head = self.model_runner.get_model().lm_head
        head.quant_method = copy.copy(head.quant_method)
        head.quant_method.process_weights_after_loading = lambda layer: None

    def freeze_everything(self) -> None:
        """As a captured graph does whose memory was copied."""
        for path, layer in self.model_runner.get_model().named_modules():
            if hasattr(layer, "cpu_linear"):
                self.freeze(path)
            elif hasattr(layer, "weight") and not list(layer.children()):
                self.freeze_plain(path)

    def thaw(self) -> None:
        for layer in self.model_runner.get_model().modules():
            layer.__dict__.pop("forward", None)
            for name in ("apply", "process_weights_after_loading"):
                getattr(layer, "quant_method", self).__dict__.pop(name, None)

    def report_raw_logprobs(self) -> None:
        """As vLLM-Ascend makes its samplers."""
        sampler = self.model_runner.sampler
        sampler.logprobs_mode = sampler.topk_topp_sampler.logprobs_mode = "raw_logprobs"


def main(folder: Path, dtype: str) -> None:
    arguments = vllm_engine.engine_arguments
    extension = {"worker_extension_cls": "tests.rollout.probed.Extension"}
    vllm_engine.engine_arguments = lambda *given: arguments(*given) | extension
    config = parse_config(
        {
            "model": {"path": str(folder), "dtype": dtype},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": {
                "device": "cpu",
                "max_tokens": 32,
                "max_prompt_tokens": 16,
                "kv_cache_gib": 0.05,
            },
        }
    )
    engine = vllm_engine.VllmEngine(config, pick("cpu"))
    print(json.dumps(asyncio.run(_check(engine, folder, dtype))))


async def _check(engine: Any, folder: Path, dtype: str) -> dict[str, str]:
    await engine.start()
    try:
        return await _Checks(engine, folder, dtype).run()
    finally:
        await engine.close()


class _Checks:
    def __init__(self, engine: Any, folder: Path, dtype: str) -> None:
        self.engine = engine
        # As vLLM's dummy weights are.
        torch.manual_seed(0)
        dummies = {
            name: torch.empty(shape).uniform_(-1e-3, 1e-3).to(getattr(torch, dtype))
            for name, shape in read_shapes(folder).items()
        }
        self.dummies = shadow_of(folder, dummies)

    async def run(self) -> dict[str, str]:
        found = {"nothing": await self.said()}
        breaks: list[tuple[str, str, tuple[str, ...]]] = [("everything", "freeze_everything", ())]
        if all(await self.call("head_is_packed")):
            breaks.append(("head", "leave_head_unpacked", ()))
        breaks += [(name, "freeze", (path,)) for name, path in LINEAR.items()]
        breaks += [(name, "freeze_plain", (path,)) for name, path in PLAIN.items()]
        breaks += [("bias", "freeze_bias", (LINEAR["qkv"],))]
        for name, method, arguments in breaks:
            for since in ("a version", "the start"):
                await self.load_dummies(since == "the start")
                await self.call(method, *arguments)
                found[f"{name} since {since}"] = await self.said()
                await self.call("thaw")
        found["nothing again"] = await self.said()
        found["raw logprobs"] = await self.temperature("report_raw_logprobs")
        found["processed logprobs"] = await self.temperature("report_processed_logprobs")
        return found

    async def load_dummies(self, wanted: bool) -> None:
        """Otherwise the last probe's weights stay."""
        if wanted:
            await self.engine.load_weights(self.dummies, VersionId(0, 0))

    async def said(self) -> str:
        try:
            await self.engine.probe()
        except InputError as error:
            return str(error)
        return ""

    async def temperature(self, method: str) -> str:
        """Under synthetic weights, with the samplers as `method` leaves them."""
        await self.call(method)
        self.engine._live = VersionId(0, 0)
        try:
            await check_temperature(self.engine, 16, 60.0)
        except InputError as error:
            return str(error)
        return ""

    async def call(self, method: str, *arguments: Any) -> list[Any]:
        return await self.engine.llm.collective_rpc(method, args=arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
