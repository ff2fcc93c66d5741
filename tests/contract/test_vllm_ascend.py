"""How vLLM-Ascend behaves where its names do not show it, and what we do because of it.

Each test says in a line why it matters. Texts are Python sources in one spelling (ast.unparse).
"""

from __future__ import annotations

import ast
import json
import re

from tests.contract.stack import ROOT, WORKER, Stack, counterparts

FACTS = ROOT / "tests" / "trimaran" / "device_facts.json"
NPU = json.loads(FACTS.read_text(encoding="utf-8"))["npu"]
SAMPLER = "vllm_ascend.sample.sampler"
RUNNER = ("vllm_ascend.worker.model_runner_v1", "NPUModelRunner")
LINEAR = "vllm_ascend.ops.linear"
IN_PLACE = "services.rollout.vllm.loading.in_place"
IS_OLD = "0.23.0"


def test_the_sampler_is_made_without_a_log_probability_mode(stack: Stack) -> None:
    """So `logprobs_mode` of the engine's arguments is lost, and we set it after the start."""
    made = re.findall(r"self\.sampler = AscendSampler\(.*\)", stack.text(*RUNNER))
    assert made == ["self.sampler = AscendSampler()"]
    assert "logprobs_mode=DEFAULT_LOGPROBS_MODE" in stack.text(SAMPLER, "AscendSampler", "__init__")
    assert stack.text(SAMPLER, "DEFAULT_LOGPROBS_MODE").endswith("= 'raw_logprobs'")


def test_both_samplers_look_at_their_mode_in_each_step(stack: Stack) -> None:
    """So setting `logprobs_mode` of the sampler and of its `topk_topp_sampler` is enough."""
    sampler = stack.types.class_of(SAMPLER, "AscendSampler")
    inner = stack.types.class_of(SAMPLER, "AscendTopKTopPSampler")
    assert stack.types.member(sampler, "topk_topp_sampler")
    assert stack.types.member(sampler, "logprobs_mode")
    assert stack.types.member(inner, "logprobs_mode")
    init = stack.text(SAMPLER, "AscendSampler", "__init__")
    assert "self.topk_topp_sampler = AscendTopKTopPSampler(" in init
    for method in ("forward", "sample"):
        text = stack.text(SAMPLER, "AscendSampler", method)
        assert "logprobs_mode_override or self.logprobs_mode" in text
    native = stack.text(SAMPLER, "AscendTopKTopPSampler", "forward_native")
    assert "self.logprobs_mode == 'processed_logprobs'" in native


def test_the_second_model_runner_runs_only_where_it_is_asked_for(stack: Stack) -> None:
    """Its sampler is another one; vLLM itself would choose it by default in 0.30."""
    module = "vllm_ascend.patch.platform.patch_use_v2_model_runner"
    chosen = stack.text(module, "_patched_use_v2_model_runner")
    assert "envs.VLLM_USE_V2_MODEL_RUNNER" in chosen and chosen.endswith("return False")
    assert "VllmConfig.use_v2_model_runner = property(" in stack.sources.text(module)


def test_0_23_refuses_an_update_unless_the_variable_turns_nz_off(installed: Stack) -> None:
    """`weight_nz_mode` alone does not do there: the check asks the variable, which is on."""
    check = installed.text(*WORKER, "_check_nz_disabled")
    assert "if envs_ascend.VLLM_ASCEND_ENABLE_NZ:" in check and "raise ValueError" in check
    variables = installed.text("vllm_ascend.envs", "env_variables")
    assert "int(os.getenv('VLLM_ASCEND_ENABLE_NZ', 1))" in variables
    mode = installed.text("vllm_ascend.ascend_config", "AscendConfig", "__init__")
    assert "'weight_nz_mode', 'VLLM_ASCEND_ENABLE_NZ'" in mode


def test_0_30_refuses_an_update_unless_weight_nz_mode_is_0(candidate: Stack) -> None:
    """The variable is gone there, so `additional_config` must say it."""
    check = candidate.text(*WORKER, "_check_nz_disabled")
    assert "if get_ascend_config().weight_nz_mode:" in check and "raise ValueError" in check
    assert "VLLM_ASCEND_ENABLE_NZ" not in candidate.sources.text("vllm_ascend.envs")
    config = candidate.text("vllm_ascend.ascend_config", "AscendConfig")
    assert "weight_nz_mode: int = 1" in config


def test_an_update_starts_with_that_check(stack: Stack) -> None:
    assert "self._check_nz_disabled()" in stack.text(*WORKER, "start_weight_update")


def test_310p_takes_nz_whatever_the_mode_is(stack: Stack) -> None:
    """So we refuse it."""
    decides = stack.text("vllm_ascend.utils", "_should_trans_nz")
    asks = "is_310p()" if stack.version == IS_OLD else "WeightLayoutPolicy.FORCE_NZ"
    assert asks in decides
    assert decides.index(asks) < decides.index("nz_mode = config.weight_nz_mode")
    if stack.version != IS_OLD:
        profiles = [m for m in stack.sources.modules("vllm_ascend") if "hardware_profile" in m]
        assert any("FORCE_NZ" in stack.sources.text(m) for m in profiles)


def test_with_mode_0_no_weight_becomes_nz(stack: Stack) -> None:
    """Of other devices than the 310P: what is loaded stays as the read-back expects it."""
    decides = stack.text("vllm_ascend.utils", "_should_trans_nz")
    assert "if not nz_mode:\n        return False" in decides
    assert "if not _should_trans_nz(weight):\n        return weight" in stack.text(
        "vllm_ascend.utils", "maybe_trans_nz"
    )


def test_the_worker_of_0_23_hands_load_weights(installed: Stack) -> None:
    """By keyword and always, and runs the layerwise reload around the engine itself."""
    start, update, finish = (
        installed.text(*WORKER, name)
        for name in ("start_weight_update", "update_weights", "finish_weight_update")
    )
    assert "initialize_layerwise_reload(model)" in start
    assert update.count("receive_weights(") == update.count("load_weights=") == 2
    assert "load_weights=model.load_weights" in update
    assert "finalize_layerwise_reload(model, self.model_config)" in finish
    # So nothing packs tied heads there unless we do: the engine is not asked at the end.
    assert "self.weight_transfer_engine." not in finish


def test_the_worker_of_0_30_leaves_the_update_to_the_engine(candidate: Stack) -> None:
    for name in ("start_weight_update", "update_weights", "finish_weight_update"):
        text = candidate.text(*WORKER, name)
        assert f"self.weight_transfer_engine.{name}(" in text
        assert "layerwise_reload" not in text


def test_an_update_that_was_left_open_is_seen_by_one_attribute(stack: Stack) -> None:
    """`WorkerExtension.abandon_update` looks at it."""
    for name in ("start_weight_update", "finish_weight_update"):
        assert "if self._weight_update_active" in stack.text(*WORKER, name) or (
            "if not self._weight_update_active" in stack.text(*WORKER, name)
        )
    assert "self._weight_update_active = False" in stack.text(*WORKER, "__init__")
    ours = stack.text("services.rollout.vllm.worker", "WorkerExtension", "abandon_update")
    assert "'_weight_update_active'" in ours


def test_an_order_of_calls_that_the_worker_accepts_is_ours(stack: Stack) -> None:
    """start, update, finish, each by collective_rpc; it raises for any other order."""
    update = stack.text("services.rollout.vllm.workers", "VllmWorkers", "_update")
    places = [
        update.index(f"call('{name}'")
        for name in ("start_weight_update", "update_weights", "finish_weight_update")
    ]
    assert places == sorted(places)
    assert "must be called before update_weights" in stack.text(*WORKER, "update_weights")
    assert "must be called before finish_weight_update" in stack.text(
        *WORKER, "finish_weight_update"
    )


def test_entry_points(stack: Stack) -> None:
    """vLLM finds the platform and the plugins by these; ours must not have a name of theirs."""
    (text,) = [
        text
        for path, text in stack.sources.metadata.items()
        if "ascend = vllm_ascend:register" in text
        and ("entry_points.txt" in path or path == "setup.py")
    ]
    assert "vllm.platform_plugins" in text and "vllm.general_plugins" in text
    names = set(re.findall(r"(\w+) = vllm_ascend:", text))
    assert names == {
        "ascend",
        "ascend_kv_connector",
        "ascend_model_loader",
        "ascend_service_profiling",
        "ascend_model",
    }
    registered = stack.text("vllm_ascend", "register_connector")
    assert "register_engine()" in registered
    assert stack.text("vllm_ascend", "register").endswith(
        "return 'vllm_ascend.platform.NPUPlatform'"
    )


def test_the_name_of_our_weight_transfer_engine_is_free(stack: Stack) -> None:
    text = "".join(
        ast.unparse(stack.sources.tree(module))
        for module in (
            "vllm.distributed.weight_transfer.factory",
            "vllm_ascend.distributed.weight_transfer",
        )
    )
    taken = set(re.findall(r"register_engine\('(\w+)'", text))
    assert {"hccl", "npu_ipc", "nccl"} <= taken
    backend = stack.text("services.rollout.vllm.plugin", "BACKEND").partition(" = ")[2]
    assert ast.literal_eval(backend) not in taken


def test_devices_are_chosen_by_the_variable_that_we_set(stack: Stack) -> None:
    """tests/trimaran/host/test_device.py compares ours with the recorded one."""
    platform = stack.text("vllm_ascend.platform", "NPUPlatform")
    variable = NPU["visible_devices_variable"]
    assert f"device_control_env_var: str = '{variable}'" in platform


def test_the_worker_needs_atb(stack: Stack) -> None:
    """Ascend Transformer Boost has a set_env.sh of its own, beside CANN's."""
    assert "_register_atb_extensions()" in stack.text(*WORKER, "__init__")
    assert stack.sources.find("torch_npu.op_plugin.atb._atb_ops", "_register_atb_extensions")


def test_each_layer_that_the_read_back_knows_is_still_one_of_its_kind(stack: Stack) -> None:
    """It asks `isinstance` of vLLM's classes; vLLM-Ascend puts subclasses in their place."""
    found = {base.name: theirs for base, theirs in counterparts(stack.types).items()}
    assert {
        "ColumnParallelLinear",
        "MergedColumnParallelLinear",
        "QKVParallelLinear",
        "ReplicatedLinear",
        "RowParallelLinear",
        "VocabParallelEmbedding",
        "ParallelLMHead",
    } <= set(found)
    method = stack.types.class_of(LINEAR, "AscendUnquantizedLinearMethod")
    assert "UnquantizedLinearMethod" in [c.name for c in stack.types.mro(method)]
    assert "AscendUnquantizedLinearMethod()" in stack.text(LINEAR, "AscendLinearBase")
    embedding = stack.text(
        "vllm_ascend.ops.vocab_parallel_embedding", "AscendVocabParallelEmbedding"
    )
    assert "UnquantizedEmbeddingMethod()" in embedding


def test_dense_weights_stay_untransposed(stack: Stack) -> None:
    """Only one projection of DeepSeek V4 (wo_a), a model that we do not serve, is reshaped."""
    after = stack.method(LINEAR, "AscendUnquantizedLinearMethod", "process_weights_after_loading")
    for node in ast.walk(after):
        if isinstance(node, ast.If) and "_should_reshape_wo_a_to_3d" in ast.unparse(node.test):
            node.body = [ast.Pass()]
    assert "transpose" not in ast.unparse(after)


def test_a_linear_layer_keeps_nothing_that_is_derived_from_its_weight(stack: Stack) -> None:
    """But for NZ and what a layer asks for by a flag: so a version may be written into the weight itself
    (services/rollout/vllm/loading/in_place.py)."""
    method = (LINEAR, "AscendUnquantizedLinearMethod")
    assert stack.text(IN_PLACE, "ASCEND_LINEAR") == f"ASCEND_LINEAR = {method}"
    flag = ast.literal_eval(stack.text(IN_PLACE, "FLOAT32_COPY").partition(" = ")[2])
    after = stack.method(*method, "process_weights_after_loading")
    for node in ast.walk(after):
        if isinstance(node, ast.If) and flag in ast.unparse(node.test):
            node.body = [ast.Pass()]
    assigned = [n for n in ast.walk(after) if isinstance(n, ast.Assign)]
    kept = {ast.unparse(t) for n in assigned for t in n.targets if not isinstance(t, ast.Name)}
    assert kept == {"layer.weight.data"}
    called = {ast.unparse(n.func) for n in ast.walk(after) if isinstance(n, ast.Call)}
    named = {name.partition("(")[0] for name in called} - {"layer.weight.data.view"}
    shapes = {"_should_keep_nd_for_310p_weight", "_should_keep_nd_for_compatibility_weight"}
    assert named <= {"super", "getattr", "maybe_trans_nz", "_should_reshape_wo_a_to_3d"} | shapes
    bases = stack.types.mro(stack.types.class_of(*method))
    hooks = {c.name for c in bases if "process_weights_after_loading" in ast.unparse(c.node)}
    assert hooks <= {
        method[1],
        "UnquantizedLinearMethod",
        "QuantizeMethodBase",
        "WeightSwitchMixin",
    }


def test_attention_of_a_vision_tower_renews_only_what_vllms_own_does(stack: Stack) -> None:
    tower = stack.types.class_of("vllm_ascend.ops.mm_encoder_attention", "AscendMMEncoderAttention")
    assert "MMEncoderAttention" in [base.name for base in stack.types.mro(tower)]
    assert "process_weights_after_loading" not in ast.unparse(tower.node)


def test_expert_weights_are_transposed_after_loading(stack: Stack) -> None:
    """w13 and w2 of a fused mixture of experts: a read-back must know that, or refuse them."""
    module = "fused_moe" if stack.version == IS_OLD else "routed_experts"
    text = ast.unparse(stack.sources.tree(f"vllm_ascend.ops.fused_moe.{module}"))
    for name in ("w13", "w2"):
        assert f"layer.{name}_weight.data).transpose(1, 2).contiguous()" in text


def test_no_output_layer_keeps_a_packed_copy(stack: Stack) -> None:
    """`pack_heads` has nothing to do on an NPU, and does no harm."""
    head = stack.types.class_of("vllm_ascend.ops.vocab_parallel_embedding", "AscendParallelLMHead")
    method = "vllm.model_executor.layers.vocab_parallel_embedding", "UnquantizedEmbeddingMethod"
    packing = stack.text(*method, "process_weights_after_loading")
    assert "is_cpu()" in packing
    assert "process_weights_after_loading" not in ast.unparse(head.node)
