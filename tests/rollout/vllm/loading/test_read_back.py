"""What real vLLM engines have loaded, read back through their fusions, ranks and packings."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.version import Version

from services.rollout.read_back import join, run_slice
from tests import tiny_vision
from tests.rollout.programs import run_program
from tests.tiny_model import EXPERTS, SHAPE, write_tiny_model
from trimaran.errors import InternalError
from trimaran.types import TensorInfo
from weights.version.manifest import build_manifest

pytestmark = pytest.mark.e2e

EMBEDDING = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
OLDER_WORKER = "tests.rollout.older_worker.OlderWorker"
PLAIN_WORKER = "tests.rollout.plain_worker.PlainWorker"
ENGINES = {
    "llama, tied, one rank": ("llama", True, "bfloat16", 1, 2, "auto"),
    "llama, tied, vllm 0.23's worker": ("llama", True, "bfloat16", 1, 2, OLDER_WORKER),
    "qwen2, untied, two ranks": ("qwen2", False, "float32", 2, 2, "auto"),
    "qwen2, two ranks with plain parameters": ("qwen2", False, "bfloat16", 2, 2, PLAIN_WORKER),
    "qwen2, tied, two ranks that share a head": ("qwen2", True, "bfloat16", 2, 1, "auto"),
    "qwen2 with experts, one of them shared": ("qwen2_moe", False, "bfloat16", 1, 2, "auto"),
    "qwen2.5-vl, one rank": ("qwen2_5_vl", False, "float32", 1, 2, "auto"),
    "qwen2.5-vl with the names of newer folders": ("qwen2_5_vl", False, "float32", 1, 2, "auto"),
    "qwen3-vl, tied, two ranks with a tower each": ("qwen3_vl", True, "bfloat16", 2, 2, "auto"),
    "qwen3-vl, tied, with plain parameters": ("qwen3_vl", True, "bfloat16", 1, 2, PLAIN_WORKER),
    "qwen3-vl with stacked experts": ("qwen3_vl_moe", False, "float32", 1, 2, "auto"),
    "deepseek-v3, latent attention": ("deepseek_v3", False, "bfloat16", 1, 4, "auto"),
    "glm-4.5": ("glm4_moe", False, "bfloat16", 1, 2, "auto"),
    "qwen3, experts on two ranks": ("qwen3_moe", True, "float32", 2, 2, "auto"),
}


@pytest.fixture(scope="module", params=ENGINES)
def report(request, tmp_path_factory):
    family, tied, dtype, tensor_parallel, num_kv_heads, worker = ENGINES[request.param]
    folder = tmp_path_factory.mktemp("model")
    shape = SHAPE | {"num_key_value_heads": num_kv_heads, "vocab_size": 160}
    if family in EXPERTS:
        dtype, experts = experts_for_this_vllm(family, dtype, tensor_parallel)
        shape |= experts
    if family in tiny_vision.FAMILIES:
        text = {**tiny_vision.TEXT, "num_key_value_heads": num_kv_heads, "vocab_size": 160}
        tiny_vision.write_tiny_vision(folder, family, dtype, tied=tied, num_layers=2, text=text)
        if "newer folders" in request.param:
            tiny_vision.nest_names(folder)
    else:
        write_tiny_model(folder, family, tied, dtype, shape=shape)
    found = run_program("loaded", folder, dtype, tensor_parallel, worker)
    assert found["engine"] == ["ShadowTransferEngine"] * tensor_parallel
    return found


def experts_for_this_vllm(family, dtype, tensor_parallel):
    """Also for vLLM 0.23, which computes on a host only with experts that it can pack: in bfloat16
    where the processor has AMX, and of an inner size that is a multiple of 32. With any others it
    ends with "Current vLLM config is not set", whatever starts it."""
    from vllm import __version__

    if Version(__version__) >= Version("0.30"):
        return dtype, EXPERTS[family]
    if tensor_parallel > 1:
        pytest.skip("on a host, vllm 0.23 looks for all experts on each rank, and crashes")
    return "bfloat16", EXPERTS[family] | {"moe_intermediate_size": 96}


def test_a_loaded_version_reads_back_as_its_manifest_says(report):
    assert report["first"] == report["second"] == []
    assert report["another version"] == report["blocks"], "every block differs"
    assert report["numbers"] == [1, 2, 7], "what alone was asked for"


def test_vllm_loads_the_first_version_and_every_one_where_a_layer_keeps_more(report, request):
    keeps_more = any(word in request.node.name for word in ("experts", "latent", "glm"))
    assert report["by vllm"] == (2 if keeps_more else 1)


def test_experts_that_are_transposed_after_each_load_read_back_as_well(report):
    """As vLLM-Ascend does; its method is imitated in vLLM's own engine on the host."""
    if "ascend" not in report:
        pytest.skip("this model has no experts")
    assert report["ascend"] == []


def test_one_changed_element_is_found_in_its_block_and_nowhere_else(report, request):
    checks = {name: wrong for name, wrong in report.items() if name.startswith("corrupt ")}
    assert len(checks) > 10
    for name, wrong in checks.items():
        assert [tensor for tensor, _ in wrong] == [name.split()[1]], name
    if "-vl" in request.node.name:
        assert len([name for name in checks if "visual" in name]) > 10


def test_after_a_delta_changes_alone_are_loaded_where_parameters_are_plain(report, request):
    changes, is_plain = report["changes"], "plain parameters" in request.node.name
    by_vllm = 0 if is_plain else 1
    assert changes["good"] == {"by vllm": by_vllm, "wrong": []}
    assert changes["bad"]["by vllm"] == by_vllm
    found = [tensor for tensor, _ in changes["bad"]["wrong"]]
    assert found == ([changes["last"]] if is_plain else [])


def test_a_stale_packed_head_is_found(report):
    if "stale head" not in report:
        pytest.skip("this output layer has no packed copy: not tied, or no AVX-512")
    [stale] = {tensor for tensor, _ in report["stale head"]}
    assert stale in EMBEDDING


def test_tokens_are_made_beside_a_read_back(report):
    if "tokens beside" not in report:
        pytest.skip("vllm does not compute with experts on two ranks of a host")
    assert report["tokens beside"] > 0


def test_a_layer_of_an_unknown_kind_is_named_and_never_proven(report):
    assert re.search(r"model\.layers\.1\.self_attn\.o_proj.*Unheard", report["forbidden"])


def test_a_version_that_lacks_a_tensor_is_refused_and_a_whole_one_loads_after_it(report):
    lacking = r"the version lacks .*part of (language_model\.)?model\.layers\.1\.mlp\."
    assert re.search(lacking, report["incomplete"])
    assert report["after the incomplete one"] == []


def manifest():
    tensor = TensorInfo("w", "F32", (4,), 0, (2,), ("a" * 32, "b" * 32))
    return build_manifest([tensor])


def test_what_two_workers_hold_must_be_right_on_both():
    right, wrong = {0: "a" * 32, 1: "b" * 32}, {1: "c" * 32}
    everything = ((0, 2),)
    assert join(manifest(), everything, [right, {}]) == right
    for found in ([right, wrong], [wrong, right]):
        assert join(manifest(), everything, found) == {0: "a" * 32, 1: "c" * 32}


def test_a_block_that_no_worker_holds_is_an_error():
    with pytest.raises(InternalError, match="w: elements 2 to 4"):
        join(manifest(), ((0, 2),), [{0: "a" * 32}])


def test_a_slice_ends_when_its_time_is_over_and_the_next_one_goes_on():
    reader = iter([None, (0, "x"), None, (1, "y")])
    assert run_slice(reader, 0) == ({}, False)
    assert run_slice(reader, 0) == ({0: "x"}, False)
    assert run_slice(reader, 60) == ({1: "y"}, True)


def test_the_packed_copy_of_an_embedding_that_is_the_output_layer_is_read() -> None:
    """Of vLLM 0.23, whose Qwen2 is so where the output layer is tied."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from services.rollout.vllm.loading.modules import ParameterPlace
    from services.rollout.vllm.loading.read_back import _read_copies

    packed = torch.randn(4, 8)
    embedding: Any = VocabParallelEmbedding.__new__(VocabParallelEmbedding)
    torch.nn.Module.__init__(embedding)
    embedding.weight = torch.nn.Parameter(torch.randn(4, 8))
    embedding.embedding_dim, embedding.params_dtype = 8, torch.float32
    embedding.cpu_linear = None
    embedding.quant_method = SimpleNamespace(apply=lambda _, rows, bias: rows @ packed.t())
    model: Any = torch.nn.Module()
    model.embed_tokens = model.lm_head = embedding
    reading = _read_copies(model, True, ParameterPlace(embedding, "embed_tokens", "weight", None))
    try:
        while True:
            next(reading)
    except StopIteration as end:
        looked_up, computed = end.value
    assert looked_up is embedding.weight
    assert torch.equal(computed, packed)
