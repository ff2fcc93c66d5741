"""megatron-core calls the parts of our layer spec itself: with arguments that they must take."""

from __future__ import annotations

import ast

import pytest

from tests.contract.calls import Arguments, parameters
from tests.contract.stack import Stack

ATTENTION = "megatron.core.transformer.attention"
EMBEDDINGS = "megatron.core.models.common.embeddings"


def given(call: ast.Call, skip: int = 0) -> Arguments:
    names = tuple(keyword.arg for keyword in call.keywords if keyword.arg)
    is_open = any(keyword.arg is None for keyword in call.keywords)
    return Arguments(len(call.args) - skip, names, is_open)


def calls_of(stack: Stack, module: str, function: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(stack.sources.tree(module))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function
    ]


def built(stack: Stack, module: str, part: str) -> list[Arguments]:
    """build_module(submodules.<part>, ...) makes what the spec names there."""
    return [
        given(call, skip=1)
        for call in calls_of(stack, module, "build_module")
        if call.args and ast.unparse(call.args[0]).endswith(f"submodules.{part}")
    ]


def by_name(stack: Stack) -> dict[str, set[str]]:
    """Keywords that reach TransformerConfig in dictionaries, by the function or constant that makes them."""
    ours = stack.sources.tree("services.trainer.megatron.transformer_config")
    parts = {ast.unparse(part).split("(")[0]: ast.walk(part) for part in ours.body}
    return {
        name: {
            key.value
            for node in nodes
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
        for name, nodes in parts.items()
    }


def test_keywords_from_dictionaries_are_of_the_transformer_config(installed: Stack) -> None:
    module = "megatron.core.transformer.transformer_config"
    plain, latent = (
        installed.types.constructor(installed.types.class_of(module, name))
        for name in ("TransformerConfig", "MLATransformerConfig")
    )
    assert plain and latent
    keywords = by_name(installed)
    assert "num_moe_experts" in keywords["def _expert_config"]
    assert "v_head_dim" in keywords["def _attention_config"]
    for part, names in keywords.items():
        known = latent if part == "def _attention_config" else plain
        assert known.objection(Arguments(0, tuple(names), True)) == "", part


def test_core_attention_is_made_with_what_ours_takes(installed: Stack) -> None:
    made = [given(call) for call in calls_of(installed, ATTENTION, "submodules.core_attention")]
    made += built(installed, ATTENTION, "core_attention")
    ours = installed.method(
        "services.trainer.megatron.attention.attention", "PackedAttention", "__init__"
    )
    assert made and {parameters(ours, True).objection(call) for call in made} == {""}


def test_core_attention_is_called_with_what_ours_takes(installed: Stack) -> None:
    made = [
        given(call) for call in calls_of(installed, ATTENTION, "apply_module(self.core_attention)")
    ]
    ours = installed.method(
        "services.trainer.megatron.attention.attention", "PackedAttention", "forward"
    )
    assert made and {parameters(ours, True).objection(call) for call in made} == {""}


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ("megatron.core.transformer.transformer_layer", "input_layernorm"),
        ("megatron.core.transformer.transformer_layer", "pre_mlp_layernorm"),
        ("megatron.core.transformer.transformer_block", "layer_norm"),
    ],
)
def test_a_norm_is_made_with_what_ours_takes(installed: Stack, module: str, part: str) -> None:
    made = built(installed, module, part)
    ours = installed.method("services.trainer.megatron.layer_spec", "RMSNorm", "__init__")
    assert made and {parameters(ours, True).objection(call) for call in made} == {""}


def test_the_layer_has_the_parts_that_we_replace(installed: Stack) -> None:
    layer = "megatron.core.transformer.transformer_layer"
    parts = installed.types.constructor(
        installed.types.class_of(layer, "TransformerLayerSubmodules")
    )
    assert parts and {"input_layernorm", "pre_mlp_layernorm"} <= set(parts.positional)
    attention = installed.types.class_of(ATTENTION, "SelfAttentionSubmodules")
    parts = installed.types.constructor(attention)
    assert parts and "core_attention" in parts.positional


def test_decoder_and_embedding_take_what_we_hand_them(installed: Stack) -> None:
    """torch's Module calls `forward` for us, which the derivation does not follow."""
    model = installed.method("services.trainer.megatron.model", "PackedGPT", "outputs")
    for attribute, module, name in (
        ("embedding", f"{EMBEDDINGS}.language_model_embedding", "LanguageModelEmbedding"),
        ("decoder", "megatron.core.transformer.transformer_block", "TransformerBlock"),
    ):
        (call,) = [
            node
            for node in ast.walk(model)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"self.{attribute}"
        ]
        forward = installed.method(module, name, "forward")
        assert parameters(forward, True).objection(given(call)) == ""


def test_gradients_and_main_weights_lie_where_we_read_them(installed: Stack) -> None:
    """`parameter.main_grad` of the gradient buffer, `parameter.main_param` of the optimizer."""
    buffers = "megatron.core.distributed.param_and_grad_buffer"
    assert "param.main_grad = " in ast.unparse(installed.sources.tree(buffers))
    optimizer = "megatron.core.optimizer.optimizer"
    assert "main_param" in ast.unparse(installed.sources.tree(optimizer))


def test_the_optimizer_gives_groups_a_weight_decay_multiplier(installed: Stack) -> None:
    assert "'wd_mult'" in ast.unparse(installed.sources.tree("megatron.core.optimizer"))
