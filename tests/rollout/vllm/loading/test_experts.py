"""Fused experts, as each device's method leaves them: stand-ins for the layer, real vLLM methods."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import Module, Parameter

from services.rollout.read_back import join
from tests.rollout.programs import ascend_module
from trimaran.errors import InternalError
from trimaran.types import Manifest, TensorInfo
from weights.memory.host_memory import DTYPE_NAMES
from weights.sending.snapshot import TensorPart, take_snapshot
from weights.version.manifest import list_blocks, list_digests

pytestmark = pytest.mark.e2e

NUM_EXPERTS, INNER, HIDDEN = 4, 16, 32
"""Gate above up is a square, so its shape does not say whether it is transposed."""
QWEN, MIXTRAL = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")


def method_of(backend: str, kind: type | None = None) -> Any:
    """vLLM's method of fused experts; `kind`: a subclass of it. vLLM takes seconds to import."""
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
    )

    method: Any = object.__new__(kind or UnquantizedFusedMoEMethod)
    Module.__init__(method)
    method.unquantized_backend = UnquantizedMoeBackend[backend]
    return method


def ascend_method() -> Any:
    from tests.rollout.loaded import AscendUnquantizedFusedMoEMethod

    return method_of("OOT", AscendUnquantizedFusedMoEMethod)


class Layer(Module):
    """What vLLM has of the experts' weights on one rank."""

    def __init__(self, weights, names, method, rank=0, ranks=1):
        super().__init__()
        self.quant_method = method
        parallel = SimpleNamespace(tp_size=ranks, tp_rank=rank, enable_eplb=False)
        self.moe_config = SimpleNamespace(moe_parallel_config=parallel)
        gate, up, down = (
            [weights[f"mlp.experts.{e}.{name}.weight"] for e in range(NUM_EXPERTS)]
            for name in names
        )
        inner = slice(rank * INNER // ranks, (rank + 1) * INNER // ranks)
        w13 = [torch.cat([g[inner], u[inner]]) for g, u in zip(gate, up, strict=True)]
        self.w13_weight = Parameter(torch.stack(w13), requires_grad=False)
        self.w2_weight = Parameter(torch.stack([d[:, inner] for d in down]), requires_grad=False)

    def _map_global_expert_id_to_local_expert_id(self, expert: int) -> int:
        return expert


def model_of(layer: Module, level: str = "routed_experts") -> Module:
    """`level`: vLLM 0.23 has none between the experts' name and their weights."""
    model, model.mlp = Module(), Module()
    if level:
        model.mlp.experts = Module()
        model.mlp.experts.register_module(level, layer)
    else:
        model.mlp.experts = layer
    return model


def weights_of(names=QWEN) -> dict[str, torch.Tensor]:
    shapes = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    return {
        f"mlp.experts.{e}.{name}.weight": torch.randn(shape)
        for e in range(NUM_EXPERTS)
        for name, shape in zip(names, shapes, strict=True)
    }


def manifest_of(weights, ranks: int = 1) -> Manifest:
    """Cut where each of `ranks` begins along the inner size."""
    cuts = tuple(INNER // ranks * rank for rank in range(1, ranks))
    tensors = tuple(
        TensorInfo(
            name, DTYPE_NAMES[value.dtype], tuple(value.shape), value.shape.index(INNER), cuts
        )
        for name, value in weights.items()
    )
    parts = [TensorPart(t.name, 0, t.shape[t.axis], weights[t.name]) for t in tensors]
    num_blocks = sum(tensor.num_blocks for tensor in tensors)
    return take_snapshot(tensors, parts, ((0, num_blocks),)).manifest


def wrong(manifest: Manifest, models: list[Module]) -> list[str]:
    """Tensors of which a block, as joined from all ranks, is not the manifest's."""
    from services.rollout.vllm.loading.read_back import read_loaded

    everything = ((0, manifest.num_blocks),)
    found = [
        dict(pair for pair in read_loaded(model, False, manifest, everything) if pair)
        for model in models
    ]
    digests, joined = list_digests(manifest), join(manifest, everything, found)
    blocks = list_blocks(manifest.tensors)
    return [block.tensor.name for block in blocks if joined[block.number] != digests[block.number]]


@pytest.mark.parametrize("level", ["routed_experts", ""])
@pytest.mark.parametrize("names", [QWEN, MIXTRAL])
@pytest.mark.parametrize("transposed", [False, True])
def test_experts_are_read_under_tensor_parallelism(transposed, names, level):
    method = ascend_method() if transposed else method_of("TRITON")
    weights = weights_of(names)
    layers = [Layer(weights, names, method, rank, 2) for rank in range(2)]
    if transposed:
        for layer in layers:
            method.process_weights_after_loading(layer)
    models = [model_of(layer, level) for layer in layers]
    manifest = manifest_of(weights, ranks=2)
    assert wrong(manifest, models) == []
    layers[1].w2_weight[3, 0, 0] += 1
    assert wrong(manifest, models) == [f"mlp.experts.3.{names[2]}.weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("generation", ["0.23", "0.30"])
def test_experts_that_the_host_has_packed_are_unpacked(generation, dtype):
    from vllm._custom_ops import cpu_prepack_moe_weight
    from vllm.model_executor.utils import replace_parameter

    weights = {name: value.to(dtype) for name, value in weights_of().items()}
    layer = Layer(weights, QWEN, method_of("CPU"))
    packed = {name: cpu_prepack_moe_weight(w, "vec") for name, w in layer.named_parameters()}
    assert not any(torch.equal(packed[name], w) for name, w in layer.named_parameters())
    for name, weight in packed.items():
        replace_parameter(layer, name, weight)
    packer = SimpleNamespace(isa="vec")
    if generation == "0.30":
        layer.quant_method.moe_kernel = SimpleNamespace(fused_experts=packer)
    else:
        layer.quant_method.cpu_fused_moe = packer
    manifest = manifest_of(weights)
    assert wrong(manifest, [model_of(layer)]) == []
    layer.w2_weight[1, 0, 0] += 1
    assert wrong(manifest, [model_of(layer)]) == ["mlp.experts.1.down_proj.weight"]
    packer.isa = "none"  # 0.23 computes with something else then
    with pytest.raises(InternalError, match="stay unproven"):
        wrong(manifest, [model_of(layer)])


def test_a_square_that_is_read_the_wrong_way_round_is_no_proof():
    weights = weights_of()
    layer = Layer(weights, QWEN, ascend_method())  # not transposed, as its method would leave it
    with pytest.raises(InternalError, match="loaded with a shape"):
        wrong(manifest_of(weights), [model_of(layer)])
    del layer.w2_weight
    halves = {name: value for name, value in weights.items() if "down" not in name}
    assert set(wrong(manifest_of(halves), [model_of(layer)])) == set(halves)


@pytest.mark.parametrize("fault", ["swizzled", "a list", "moving experts", "another method"])
def test_what_is_not_known_is_named_and_stays_unproven(fault):
    weights = weights_of()
    layer = Layer(weights, QWEN, method_of("TRITON"))
    if fault == "swizzled":
        layer.quant_method = method_of("FLASHINFER_CUTLASS")
    elif fault == "a list":
        del layer.w13_weight
    elif fault == "moving experts":
        layer.moe_config.moe_parallel_config.enable_eplb = True
    else:
        layer.quant_method = Module()
    with pytest.raises(InternalError, match=r"mlp.experts.0.gate_proj.weight: .* stay unproven"):
        wrong(manifest_of(weights), [model_of(layer)])


@pytest.mark.parametrize(
    ("version", "module"), [("0.23.0", "fused_moe"), ("0.30.0rc2", "routed_experts")]
)
def test_vllm_ascends_own_method_leaves_what_is_read(version, module):
    """Run here as it stands there."""
    tree = ascend_module(version, f"vllm_ascend.ops.fused_moe.{module}")
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
    )
    from vllm.model_executor.utils import replace_parameter

    name = "AscendUnquantizedFusedMoEMethod"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    (kind,) = [node for node in classes if node.name == name]
    kind.body = [node for node in kind.body if getattr(node, "name", "").startswith("process_")]
    space: dict[str, Any] = {
        "UnquantizedFusedMoEMethod": UnquantizedFusedMoEMethod,
        "torch": torch,
        "get_ascend_config": lambda: SimpleNamespace(enable_fused_mc2=0),
        "maybe_trans_nz": lambda weight: weight,
        "replace_parameter": replace_parameter,
    }
    exec(compile(ast.Module([kind], []), module, "exec"), space)
    weights = weights_of()
    layer = Layer(weights, QWEN, method_of("OOT", space[name]))
    layer.quant_method.process_weights_after_loading(layer)
    assert wrong(manifest_of(weights), [model_of(layer)]) == []
