"""A real vLLM engine that loads versions, right and wrong, and reads them back: run as a process.

    python -m tests.rollout.loaded MODEL DTYPE TENSOR_PARALLEL [WORKER]

WORKER: a class to use in place of vLLM's own worker.

Prints one JSON object: check -> blocks that are wrong.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.utils import replace_parameter

from services.rollout.engine import GenerationRequest
from services.rollout.vllm.engine import VllmEngine
from services.rollout.vllm.worker import WorkerExtension
from tests.rollout.programs import (
    chunks_of,
    find_wrong,
    has_packed_copy,
    loads_by_vllm,
    print_checks,
)
from tests.rollout.versions import patched_shadow_of, shadow_of
from trimaran.errors import TransferError
from trimaran.model.folder import read_model_folder
from trimaran.types import Manifest, Sampling, VersionId
from weights.memory.shadow import Shadow


class AscendUnquantizedFusedMoEMethod(UnquantizedFusedMoEMethod):
    """vLLM-Ascend's, as far as weights are concerned."""

    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13_weight", "w2_weight"):
            replace_parameter(layer, name, getattr(layer, name).data.transpose(1, 2).contiguous())


class Extension(WorkerExtension):
    """Faults that only a worker can make."""

    weight_transfer_engine: Any

    def keep_head(self) -> bool:
        """Whether it computes with a packed copy of its own."""
        head = language_model(self.model_runner.get_model()).lm_head
        self._head = head.cpu_linear
        return has_packed_copy(head)

    def restore_head(self) -> None:
        language_model(self.model_runner.get_model()).lm_head.cpu_linear = self._head

    def engine_kind(self) -> str:
        return type(self.weight_transfer_engine).__name__

    def imitate_ascend(self) -> bool:
        """From the next load on, experts lie as vLLM-Ascend has them; none can compute any more."""
        found = False
        for layer in self.model_runner.get_model().modules():
            if isinstance(getattr(layer, "quant_method", None), UnquantizedFusedMoEMethod):
                found = True
                method: Any = object.__new__(AscendUnquantizedFusedMoEMethod)
                vars(method).update(vars(layer.quant_method))
                method.unquantized_backend = UnquantizedMoeBackend.OOT
                layer.quant_method = method
                restore_parameters(layer)
                method.process_weights_after_loading(layer)
        return found

    def forbid_reading(self) -> None:
        layer = language_model(self.model_runner.get_model()).model.layers[1].self_attn.o_proj
        layer.quant_method = type("Unheard", (), {})()


def language_model(model: Any) -> Any:
    """The model itself, where it has no vision tower."""
    return getattr(model, "language_model", model)


def restore_parameters(layer: torch.nn.Module) -> None:
    """With the shapes and loaders that they had before the host packed them."""
    parameters, _ = get_layerwise_info(layer).restore_metadata
    for name, value in parameters.items():
        parameter = torch.nn.Parameter(torch.zeros_like(value, device="cpu"), False)
        vars(parameter).update(vars(value))
        setattr(layer, name, parameter)


def main(folder: Path, dtype: str, tensor_parallel: int, worker: str) -> None:
    arguments: dict[str, Any] = {
        "worker_extension_cls": "tests.rollout.loaded.Extension",
        "worker_cls": worker,
    }
    if read_model_folder(folder).num_experts and tensor_parallel > 1:
        arguments["enable_expert_parallel"] = True
        VllmEngine.probe = _do_nothing  # It asks for tokens; see Checks.run.
    rollout = {"max_tokens": 400, "tensor_parallel": tensor_parallel}
    print_checks(Checks, folder, dtype, arguments, rollout=rollout)


async def _do_nothing(self: VllmEngine) -> None: ...


class Checks:
    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.weights = load_file(folder / "model.safetensors")
        torch.manual_seed(1)
        self.others = {
            name: (value + 0.1 * torch.randn_like(value)).to(value.dtype)
            for name, value in self.weights.items()
        }
        self.step, self.by_vllm = 0, loads_by_vllm(engine)

    async def run(self) -> dict[str, Any]:
        found: dict[str, Any] = {"engine": await self.call("engine_kind")}
        first, second = self.shadow(self.weights), self.shadow(self.others)
        for name, shadow in (("first", first), ("second", second)):
            await self.load(shadow)
            found[name] = await self.wrong(shadow.manifest)
        found["by vllm"] = len(self.by_vllm)
        found["another version"] = len(await self.wrong(first.manifest))
        found["blocks"] = first.manifest.num_blocks
        found["numbers"] = sorted(await self.engine.read_back(second.manifest, ((1, 3), (7, 8))))
        for name in self.weights:
            if re.search(r"(layers|blocks)\.1", name) or not re.search("layers|blocks", name):
                found[f"corrupt {name}"] = await self.corrupted(name)
        if "lm_head.weight" not in self.weights:
            await self.load(first)
            is_packed = any(await self.call("keep_head"))
            await self.load(second)
            await self.call("restore_head")
            if is_packed:
                found["stale head"] = await self.wrong(second.manifest)
        found["changes"] = await self.changes(first)
        lacking = [name for name in self.weights if "layers.1" in name and "up_proj" in name][-1]
        rest = {name: value for name, value in self.weights.items() if name != lacking}
        try:
            await self.load(self.shadow(rest))
        except TransferError as error:
            found["incomplete"] = str(error)
        await self.load(first)
        found["after the incomplete one"] = await self.wrong(first.manifest)
        # On the host, vLLM's kernel takes no map of experts: it would look for others' in its own.
        if not self.engine.llm.vllm_config.parallel_config.enable_expert_parallel:
            found["tokens beside"] = await self.tokens_beside_reading(first.manifest)
        if any(await self.call("imitate_ascend")):
            await self.load(second)
            found["ascend"] = await self.wrong(second.manifest)
            expert = [name for name in self.weights if "layers.1.mlp.experts" in name][-1]
            found[f"corrupt {expert} (ascend)"] = await self.corrupted(expert)
        await self.call("forbid_reading")
        try:
            await self.wrong(first.manifest)
        except Exception as error:
            found["forbidden"] = str(error)
        return found

    def shadow(self, weights: dict[str, torch.Tensor]) -> Shadow:
        return shadow_of(self.folder, weights)

    async def load(self, shadow: Shadow) -> None:
        self.step += 1
        await self.engine.load_weights(shadow, VersionId(0, self.step))

    async def corrupted(self, name: str) -> list[Any]:
        """Of a version whose last element of `name` changes after it was proven in the shadow."""
        shadow = self.shadow(self.weights)
        piece = [piece for piece in shadow.layout.pieces if piece.block.tensor.name == name][-1]
        shadow.buffer[piece.end - 2] ^= 1
        await self.load(shadow)
        return await self.wrong(shadow.manifest)

    async def changes(self, first: Shadow) -> dict[str, Any]:
        """Of a version that is a few elements away from the one that is loaded; then of one whose last
        change is another than the manifest's, and of the first version again."""
        others = {
            name: torch.where(torch.rand(value.shape) < 0.02, 1.5 * value, value)
            for name, value in self.weights.items()
        }
        good, bad = (patched_shadow_of(self.folder, self.weights, others) for _ in range(2))
        assert good.changes and bad.changes
        *_, last = bad.changes.tensors(bad.manifest.tensors)
        last.values[-1] += 1
        found: dict[str, Any] = {"last": last.info.name}
        for name, shadow in (("good", good), ("bad", bad)):
            await self.load(first)
            assert not await self.wrong(first.manifest)
            before = len(self.by_vllm)
            await self.load(shadow)
            by_vllm = len(self.by_vllm) - before
            found[name] = {"by vllm": by_vllm, "wrong": await self.wrong(shadow.manifest)}
        return found

    async def wrong(self, manifest: Manifest) -> list[Any]:
        return await find_wrong(self.engine, manifest)

    async def tokens_beside_reading(self, manifest: Manifest) -> int:
        """Tokens that a completion got while everything was read again and again."""
        request = GenerationRequest(0, (5, 6, 7), Sampling(1.0, 400, 1, 0), {0: ()})
        reading = asyncio.create_task(self.read_often(manifest))
        tokens = 0
        async for chunk in chunks_of(self.engine, request):
            if not reading.done():
                tokens += len(chunk.token_ids_T)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return tokens

    async def read_often(self, manifest: Manifest) -> None:
        while True:
            await self.wrong(manifest)

    async def call(self, method: str) -> Any:
        return await self.engine.llm.collective_rpc(method)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] if sys.argv[4:] else "auto")
