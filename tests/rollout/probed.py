"""A real vLLM engine in which something keeps computing with older weights: run as a process.

    python -m tests.rollout.probed MODEL

Prints one JSON object: what was stale -> what the start's probe says of it, "" where it passes.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch

from services.rollout.vllm.loading.synthetic import read_shapes
from services.rollout.vllm.worker import WorkerExtension
from tests.rollout.programs import has_packed_copy, matrix_of, print_checks
from tests.rollout.versions import shadow_of
from trimaran.errors import InputError
from trimaran.types import VersionId

DTYPE = "bfloat16"
LINEAR = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
"""Of a layer."""


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


def main(folder: Path) -> None:
    extension = {"worker_extension_cls": "tests.rollout.probed.Extension"}
    print_checks(Checks, folder, DTYPE, extension)


class Checks:
    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine = engine
        # As vLLM's dummy weights are.
        torch.manual_seed(0)
        dummies = {
            name: torch.empty(shape).uniform_(-1e-3, 1e-3).bfloat16()
            for name, shape in read_shapes(folder).items()
        }
        self.dummies = shadow_of(folder, dummies)

    async def run(self) -> dict[str, str]:
        found = {"nothing": await self.said()}
        breaks: list[tuple[str, str, tuple[str, ...]]] = [("everything", "freeze_everything", ())]
        if all(await self.call("head_is_packed")):
            breaks.append(("head", "leave_head_unpacked", ()))
        breaks += [(name, "freeze", (f"model.layers.1.{name}",)) for name in LINEAR]
        breaks += [("embedding", "freeze_plain", ("model.embed_tokens",))]
        for name, method, arguments in breaks:
            for since in ("a version", "the start"):
                await self.load_dummies(since == "the start")
                await self.call(method, *arguments)
                found[f"{name} since {since}"] = await self.said()
                await self.call("thaw")
        found["nothing again"] = await self.said()
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

    async def call(self, method: str, *arguments: Any) -> list[Any]:
        return await self.engine.llm.collective_rpc(method, args=arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
