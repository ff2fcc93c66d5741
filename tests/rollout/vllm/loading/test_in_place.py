"""Which parameters of a vLLM model are the version's own numbers, judged by their layers' types."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import Module, Parameter

from trimaran.errors import InternalError
from trimaran.types import TensorInfo
from weights.memory.changes import ChangedTensor, Changes, lay_out_changes
from weights.memory.host_memory import HostMemory, block_view
from weights.memory.shadow import Shadow
from weights.version.manifest import build_manifest, manifest_to_json

pytestmark = pytest.mark.e2e

NORM = TensorInfo("norm.weight", "F32", (3, 4), 1, (2,))


def model_of(**attributes: Any) -> Module:
    """With one layer, `norm`, which vLLM does not split; `attributes` are the layer's."""
    model, layer = Module(), Module()
    layer.weight = Parameter(torch.zeros(3, 4), requires_grad=False)
    for name, value in attributes.items():
        setattr(layer, name, value)
    model.add_module("norm", layer)
    return model


def targets_of(model: Module) -> Any:
    from services.rollout.vllm.loading.in_place import Targets  # vLLM takes seconds to import

    return Targets(model)


def changes_of(*tensors: TensorInfo) -> tuple[Changes, dict[str, Any]]:
    """Three elements of each become 7, 8 and 9. With what a worker gets."""
    counts = {tensor.name: (2, 1) for tensor in tensors}
    changes = Changes("base", counts, HostMemory(lay_out_changes(tensors, counts)[1]))
    for changed in changes.tensors(tensors):
        changed.positions.copy_(torch.tensor([1, 4, 11]))
        changed.values.copy_(torch.tensor([7.0, 8.0, 9.0]))
    digested = [replace(tensor, digests=("a" * 32, "b" * 32)) for tensor in tensors]
    manifest = manifest_to_json(build_manifest(digested))
    return changes, {"manifest": manifest, "changes": changes.description()}


def worker_of(model: Module) -> Any:
    from services.rollout.vllm.worker import WorkerExtension

    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(get_model=lambda: model)
    return worker


def preparing(model: Module, description: dict[str, Any], path: str = "/nowhere") -> Any:
    worker = worker_of(model)
    assert worker.begin_writes(path, description) == ""
    return worker


@pytest.mark.parametrize("is_written", [True, False])
def test_a_list_of_changes_stays_mapped_until_it_is_written_or_dropped(is_written: bool) -> None:
    """Its owner lets go of it after the load, and the next one lies in memory of its own: 17 GB of 141."""
    changes, description = changes_of(NORM)
    inode = str(os.stat(changes.memory.path).st_ino)
    model = model_of()
    norm: Any = model.get_submodule("norm").weight
    worker = preparing(model, description)
    assert worker.prepare_writes(1.0) == ("", True)
    assert not norm.any()
    getattr(worker, "make_writes" if is_written else "drop_writes")()
    made = [0, 7, 0, 0, 8, 0, 0, 0, 0, 0, 0, 9]
    assert norm.flatten().tolist() == (made if is_written else [0] * 12)
    del changes
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert not [line for line in maps if line.split()[4] == inode]
    with pytest.raises(AssertionError, match="no writes are prepared"):
        worker.make_writes()


def test_changes_are_prepared_in_slices_of_time_and_written_together() -> None:
    second = replace(NORM, name="second.weight")
    changes, description = changes_of(NORM, second)
    model = model_of()
    model.add_module("second", model_of().get_submodule("norm"))
    worker = preparing(model, description)
    assert [worker.prepare_writes(0.0) for _ in range(3)] == [("", False), ("", False), ("", True)]
    assert not any(parameter.any() for parameter in model.parameters())
    worker.make_writes()
    assert [float(parameter.sum()) for parameter in model.parameters()] == [24, 24]
    assert changes.counts


@pytest.mark.parametrize("fault", ["of another form", "no room"])
def test_changes_that_cannot_be_prepared_touch_nothing(fault: str, monkeypatch: Any) -> None:
    from services.rollout.vllm.loading.in_place import ParameterPart

    def prepare(target: Any, changed: ChangedTensor) -> Any:
        raise torch.OutOfMemoryError("no room")

    changes, description = changes_of(NORM, replace(NORM, name="second.weight"))
    model = model_of()
    other = model_of(weight=Parameter(torch.zeros(0), False))
    model.add_module("second", other.get_submodule("norm"))
    if fault == "no room":
        monkeypatch.setattr(ParameterPart, "prepare", prepare)
    worker = preparing(model, description)
    why, is_ready = worker.prepare_writes(1.0)
    assert ("in another form" in why, is_ready) == (fault != "no room", False)
    assert why and not model.get_parameter("norm.weight").any()
    with pytest.raises(AssertionError, match="no writes are prepared"):
        worker.make_writes()
    assert changes.counts


def whole(tensors: dict[str, torch.Tensor], cuts: tuple[int, ...] = (2,)) -> Shadow:
    """A version of matrices cut along their second axis."""
    infos = [TensorInfo(n, "F32", tuple(t.shape), 1, cuts) for n, t in tensors.items()]
    digested = [replace(info, digests=("a" * 32,) * info.num_blocks) for info in infos]
    shadow = Shadow(build_manifest(digested))
    for piece in shadow.layout.pieces:
        block, tensor = piece.block, tensors[piece.block.tensor.name]
        block_view(shadow.buffer, piece).copy_(tensor[:, block.start : block.stop])
    return shadow


def test_a_whole_version_is_written_where_its_parameters_lie() -> None:
    value = torch.arange(12.0).view(3, 4)
    shadow, model = whole({"norm.weight": value}), model_of()
    norm: Any = model.get_submodule("norm").weight
    worker = preparing(model, shadow.description(), shadow.path)
    assert worker.prepare_writes(1.0) == ("", True)
    assert not norm.any()
    worker.make_writes()
    assert torch.equal(norm, value)


def packed_model() -> tuple[Module, Any]:
    """Its only layer, too: fused of three outputs and two, and packed as vLLM does it on a host."""
    from vllm.model_executor.layers.linear import (
        MergedColumnParallelLinear,
        UnquantizedLinearMethod,
    )

    kind = MergedColumnParallelLinear
    layer: Any = kind.__new__(kind)
    Module.__init__(layer)
    layer.tp_rank, layer.tp_size, layer.output_sizes = 0, 1, [3, 2]
    layer.output_size_per_partition, layer.input_size_per_partition = 5, 4
    layer.output_size, layer.input_size = 5, 4
    layer.params_dtype, layer.quant_method = torch.float32, UnquantizedLinearMethod()
    layer.weight = Parameter(torch.ones(5, 4), requires_grad=False)
    layer.quant_method.process_weights_after_loading(layer)
    if layer.weight.numel():
        pytest.skip("vllm does not pack on this host")
    model, mlp = Module(), Module()
    mlp.add_module("gate_up_proj", layer)
    model.add_module("mlp", mlp)
    return model, layer


def test_a_packed_layer_is_packed_again_out_of_all_its_parts() -> None:
    model, layer = packed_model()
    gate, up = torch.arange(12.0).view(3, 4), -torch.arange(8.0).view(2, 4)
    shadow = whole({"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up})
    worker = preparing(model, shadow.description(), shadow.path)
    assert worker.prepare_writes(1.0) == ("", True)
    rows = torch.eye(4)
    assert layer.quant_method.apply(layer, rows).eq(1).all()
    worker.make_writes()
    assert torch.equal(layer.quant_method.apply(layer, rows), torch.cat([gate, up]).t())


def test_a_packed_layer_that_lacks_a_part_is_not_packed_again() -> None:
    model, _ = packed_model()
    shadow = whole({"mlp.gate_proj.weight": torch.ones(3, 4)})
    worker = preparing(model, shadow.description(), shadow.path)
    why, is_ready = worker.prepare_writes(1.0)
    assert "mlp.gate_up_proj.weight, or a part" in why and not is_ready


def test_single_elements_of_a_packed_layer_cannot_be_replaced() -> None:
    model, _ = packed_model()
    changes, description = changes_of(replace(NORM, name="mlp.gate_proj.weight"))
    why, is_ready = preparing(model, description).prepare_writes(1.0)
    assert "mlp.gate_up_proj.weight is packed for the host's processor" in why and not is_ready
    assert changes.counts


@pytest.mark.parametrize("lacks", ["a parameter", "a part"])
def test_a_version_that_lacks_something_is_not_written(lacks: str) -> None:
    """vLLM's own loader says what, and nothing is live then."""
    shadow, model = whole({"norm.weight": torch.ones(3, 4)}), model_of()
    model.add_module("second", model_of().get_submodule("norm"))
    if lacks == "a part":
        shadow = whole({"norm.weight": torch.ones(3, 4), "second.weight": torch.ones(3, 4)})
        shadow = Shadow(shadow.manifest, ((0, 3),))
    worker = preparing(model, shadow.description(), shadow.path)
    why, is_ready = worker.prepare_writes(1.0)
    assert "second.weight" in why and not is_ready
    assert not any(parameter.any() for parameter in model.parameters())
    with pytest.raises(AssertionError, match="no writes are prepared"):
        worker.make_writes()


def vocabulary_of(kind: Any, num_rows: int) -> Any:
    """A layer of three tokens, without vLLM's distributed state."""
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    layer: Any = kind.__new__(kind)
    Module.__init__(layer)
    layer.weight = Parameter(torch.zeros(num_rows, 4), requires_grad=False)
    layer.embedding_dim, layer.quant_method = 4, UnquantizedEmbeddingMethod()
    layer.shard_indices = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=3)
    return layer


def test_the_padding_of_a_vocabulary_needs_no_values() -> None:
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    embedding = vocabulary_of(VocabParallelEmbedding, num_rows=64)
    model = Module()
    model.add_module("embed", embedding)
    info = TensorInfo("embed.weight", "F32", (3, 4), 0, (), ("a" * 32,))
    shadow = Shadow(build_manifest([info]))
    shadow.buffer.view(torch.float32)[:12] = 1
    worker = preparing(model, shadow.description(), shadow.path)
    assert worker.prepare_writes(1.0) == ("", True)
    worker.make_writes()
    assert embedding.weight.sum() == 12 and not embedding.weight[3:].any()


def test_an_output_layer_is_packed_again_by_every_load() -> None:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    head = vocabulary_of(ParallelLMHead, num_rows=3)
    head.cpu_linear = lambda *_: None
    model = Module()
    model.add_module("norm", head)
    assert targets_of(model).find(NORM).part.data_ptr() == head.weight.data_ptr()


@pytest.mark.parametrize("head", ["named", "inside", "the only vocabulary"])
def test_an_embedding_that_is_the_output_layer_is_packed_again(head: str) -> None:
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    embedding = vocabulary_of(VocabParallelEmbedding, num_rows=3)
    packed: list[float] = []
    embedding.quant_method.process_weights_after_loading = lambda layer: packed.append(
        float(layer.weight.sum())
    )
    model, inner = Module(), Module()
    inner.add_module("embed", embedding)
    model.add_module("language_model", inner)
    if head != "the only vocabulary":
        (model if head == "named" else inner).add_module("lm_head", embedding)
    shadow = whole({"language_model.embed.weight": torch.ones(3, 4)})
    worker = preparing(model, shadow.description(), shadow.path)
    assert worker.prepare_writes(1.0) == ("", True)
    worker.make_writes()
    assert packed == [12]


def test_a_layer_that_vllm_does_not_pack_any_more_ends_the_load(monkeypatch: Any) -> None:
    model, layer = packed_model()
    shadow = whole(
        {"mlp.gate_proj.weight": torch.ones(3, 4), "mlp.up_proj.weight": torch.ones(2, 4)}
    )
    worker = preparing(model, shadow.description(), shadow.path)
    assert worker.prepare_writes(1.0) == ("", True)
    monkeypatch.setattr(layer.quant_method, "process_weights_after_loading", lambda layer: None)
    with pytest.raises(InternalError, match="was not packed again"):
        worker.make_writes()


def method_of(module: str) -> Any:
    """A subclass of vLLM's, as if `module` had it."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    bases, attributes = (UnquantizedLinearMethod,), {"__module__": module}
    return object.__new__(type("AscendUnquantizedLinearMethod", bases, attributes))


ASCEND = "vllm_ascend.ops.linear"


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        (lambda: {"cpu_linear": lambda *_: None}, "packed for the host's processor"),
        (lambda: {"quant_method": method_of("elsewhere")}, "AscendUnquantizedLinearMethod"),
        (lambda: {"quant_method": method_of(ASCEND), "precast_fp32_weight": True}, "in float32"),
        (lambda: {"weight": Parameter(torch.zeros(4, 3).t(), False)}, "in another form"),
        (lambda: {"weight": Parameter(torch.zeros(0), False)}, "in another form"),
    ],
)
def test_a_layer_that_keeps_another_form_is_not_written_to(attributes: Any, why: str) -> None:
    with pytest.raises(InternalError, match=rf"norm.weight: .*{why}"):
        targets_of(model_of(**attributes())).find(NORM)


def test_a_linear_layer_of_vllm_ascend_is_written_to() -> None:
    """What its method does after a load is looked up in tests/contract/test_vllm_ascend.py."""
    from vllm.model_executor.layers.linear import ReplicatedLinear

    layer: Any = ReplicatedLinear.__new__(ReplicatedLinear)
    Module.__init__(layer)
    layer.weight = Parameter(torch.zeros(3, 4), requires_grad=False)
    layer.quant_method = method_of(ASCEND)
    model = Module()
    model.add_module("norm", layer)
    assert targets_of(model).find(NORM).part.data_ptr() == layer.weight.data_ptr()


@pytest.mark.parametrize("value", [None, "absent"])
def test_a_tensor_that_the_layer_does_not_have_is_vllms_to_pass_over(value: Any) -> None:
    """Such as the frequencies of a rotary embedding, or a bias that is not used."""
    model = model_of(**({} if value else {"bias": None}))
    with pytest.raises(InternalError, match=r"norm.bias: norm has no bias"):
        targets_of(model).find(replace(NORM, name="norm.bias"))


def with_attention(name: str) -> Any:
    """A model with such a layer."""
    model = model_of()
    kind = type(name, (Module,), {"process_weights_after_loading": lambda *_: None})
    model.add_module("attention", kind())
    return model


def test_a_model_with_a_layer_that_derives_from_weights_is_not_written_to() -> None:
    with pytest.raises(InternalError, match="attention: a MLAAttention may keep"):
        targets_of(with_attention("MLAAttention"))
    # vLLM's FlashInfer keeps a copy of them in float32, and makes it again after each load of its own.
    with_sinks = with_attention("Attention")
    with_sinks.attention.impl = SimpleNamespace(sinks=torch.zeros(2))
    with pytest.raises(InternalError, match="attention: a Attention may keep a copy of its"):
        targets_of(with_sinks)


@pytest.mark.parametrize("name", ["Attention", "MMEncoderAttention", "AscendMMEncoderAttention"])
def test_scales_of_keys_and_values_are_not_derived_from_weights(name: str) -> None:
    targets_of(with_attention(name)).find(NORM)
