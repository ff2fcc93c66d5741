"""How vLLM behaves where its names do not show it, in both generations."""

from __future__ import annotations

from tests.contract.stack import Stack


def test_vllm_plugins_names_all_that_may_load(stack: Stack) -> None:
    """A value without our plugin's name drops our weight-transfer engine in the workers."""
    text = stack.text("vllm.plugins", "load_plugins_by_group")
    assert "allowed_plugins = envs.VLLM_PLUGINS" in text
    assert "if allowed_plugins is None or plugin.name in allowed_plugins:" in text
    assert "'vllm.general_plugins'" in stack.text("vllm.plugins", "DEFAULT_PLUGINS_GROUP")


def test_renames_alone_are_known_from_0_30_on(stack: Stack) -> None:
    """`Finder` does without them on 0.23, which is right for models whose names need none."""
    mapper = stack.types.class_of("vllm.model_executor.models.utils", "WeightsMapper")
    has_it = stack.types.member(mapper, "get_rename_mapper") is not None
    assert has_it == (stack.version != "0.23.0")
    assert stack.types.member(mapper, "apply_list")
    ours = stack.text("services.rollout.vllm.loading.modules", "Finder", "__init__")
    assert "getattr(mapper, 'get_rename_mapper', None)" in ours


def test_normalizing_on_the_device_can_be_switched_off_where_it_exists(stack: Stack) -> None:
    """`normalize_once` does it by this name and no other."""
    arguments = stack.types.class_of("vllm.engine.arg_utils", "AsyncEngineArgs")
    has_it = stack.types.member(arguments, "mm_device_do_normalize") is not None
    assert has_it == (stack.version != "0.23.0")
    ours = stack.text("services.rollout.vllm.images", "normalize_once")
    assert "arguments.mm_device_do_normalize = False" in ours


def test_the_core_has_the_patches_that_a_request_only_names(stack: Stack) -> None:
    """By the digests that we give them. It takes them in as it takes requests in, one after the other."""
    text = stack.text("vllm.v1.engine.core", "EngineCore", "preprocess_add_request")
    assert "self.mm_receiver_cache.get_and_update_features(request.mm_features)" in text
    keeps = ("vllm.multimodal.cache", "MultiModalReceiverCache", "get_and_update_item")
    assert "(cached_item := self._cache.get(mm_hash)) is not None" in stack.text(*keeps)
    features = stack.text("vllm.multimodal.cache", "BaseMultiModalReceiverCache")
    assert "feature.mm_hash or feature.identifier" in features
    config = stack.text("vllm.config.multimodal", "MultiModalConfig")
    assert "mm_processor_cache_type: MMCacheType = 'lru'" in config
    made = stack.text("vllm.v1.engine.input_processor", "InputProcessor", "process_inputs")
    assert "data=decoder_mm_inputs[modality][idx]" in made


def test_llama_and_qwen2_say_which_projections_are_fused(stack: Stack) -> None:
    """`Finder` reads `packed_modules_mapping`."""
    for module, name in (("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM")):
        text = stack.text(f"vllm.model_executor.models.{module}", name)
        mapping = text[text.index("packed_modules_mapping") :]
        assert "'qkv_proj': ['q_proj', 'k_proj', 'v_proj']" in mapping
        assert "'gate_up_proj': ['gate_proj', 'up_proj']" in mapping


def test_a_layer_registers_its_weight(stack: Stack) -> None:
    """Nothing assigns `layer.weight`; see REGISTERED in uses.py."""
    layers = "vllm.model_executor.layers"
    for module, name in (
        (f"{layers}.linear", "UnquantizedLinearMethod"),
        (f"{layers}.vocab_parallel_embedding", "UnquantizedEmbeddingMethod"),
    ):
        text = stack.text(module, name, "create_weights")
        assert "layer.register_parameter('weight', weight)" in text


def test_a_pause_keeps_requests_and_drops_their_cache(stack: Stack) -> None:
    text = stack.text("vllm.v1.engine.async_llm", "AsyncLLM", "pause_generation")
    assert "self.engine_core.pause_scheduler_async(mode=mode, clear_cache=clear_cache)" in text
    pause = stack.sources.find("vllm.v1.engine", "PauseMode")
    assert pause and "'keep'" in stack.text(pause.module, pause.name)


def test_a_taken_name_of_an_engine_is_a_value_error(stack: Stack) -> None:
    """`plugin.register` takes that for "registered before"."""
    factory = ("vllm.distributed.weight_transfer.factory", "WeightTransferEngineFactory")
    assert "raise ValueError" in stack.text(*factory, "register_engine")


def test_the_processed_mode_is_one_that_vllm_knows(stack: Stack) -> None:
    modes = stack.sources.find("vllm.config.model", "LogprobsMode")
    assert modes and "'processed_logprobs'" in stack.text(modes.module, modes.name)


def test_an_answer_that_nothing_waits_for_reaches_no_other_call(stack: Stack) -> None:
    """So a deadline may cut off a collective_rpc; see `VllmWorkers._call`."""
    core = stack.text("vllm.v1.engine.core", "EngineCore", "collective_rpc")
    assert core.endswith("return self.model_executor.collective_rpc(method, timeout, args, kwargs)")
    executor = ("vllm.v1.executor.multiproc_executor", "MultiprocExecutor")
    waits = stack.text(*executor, "collective_rpc")
    assert "non_block: bool=False" in waits
    assert "return future if non_block else future.result()" in waits
    taken = stack.text("vllm.v1.engine.core_client", "_process_utility_output")
    assert "future = utility_results.pop(output.call_id)" in taken
    assert "except asyncio.InvalidStateError:" in taken
