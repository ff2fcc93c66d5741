"""Which keys of a config.json a model may have: one that is not known could change what the model computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimaran.errors import InputError
from trimaran.model.families.family import Family

READ = frozenset(
    {
        *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
        *("rms_norm_eps", "tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
        *("text_config", "vision_config", "image_token_id", "quantization_config"),
        "partial_rotary_factor",
    }
)
# Keys that begin with "_" are of transformers itself, and are passed over.
HARMLESS = frozenset(
    {
        # About the file, its tokens, generation and training elsewhere.
        *("architectures", "transformers_version", "dtype", "torch_dtype"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"),
        *("decoder_start_token_id", "id2label", "label2id", "num_labels", "problem_type"),
        *("finetuning_task", "task_specific_params", "tokenizer_class", "prefix"),
        *("initializer_range", "initializer_factor", "use_cache", "return_dict", "use_return_dict"),
        *("output_attentions", "output_hidden_states", "chunk_size_feed_forward", "auto_map"),
        *("is_llama_config", "transformers.js_config", "unsloth_version"),
        *("unsloth_fixed", "torchscript", "is_decoder"),
        # Of generation, as transformers 4 writes them where they are not its defaults.
        *("max_length", "min_length", "do_sample", "num_beams", "temperature", "top_k", "top_p"),
        *("repetition_penalty", "no_repeat_ngram_size", "num_return_sequences", "max_new_tokens"),
        # How other code computes the same.
        *("pretraining_tp", "use_flash_attention", "gradient_checkpointing"),
        # Tokens of images and videos, beside the one that is read.
        *("vision_start_token_id", "vision_end_token_id", "vision_token_id", "video_token_id"),
    }
)
FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attention_dropout": (0,),
    "hidden_dropout": (0,),
    "use_sliding_window": (False, None),
    "use_mrope": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
    "rope_interleaved": (False,),
}
"""Keys that need one of these values in each family."""
WINDOW = frozenset({"sliding_window", "max_window_layers", "layer_types"})


def check_keys(config: Mapping[str, Any], family: Family, where: str) -> None:
    """Raises InputError, which begins with `where`, for a key that would make the model another one, or that is
    not known."""
    fixed = {**FIXED, **{key: (value,) for key, value in family.required.items()}}
    fixed |= dict.fromkeys(family.switches, (True, False))
    if quantized := config.get("quantization_config"):
        raise InputError(
            f"{where}: the weights are quantized ({quantized.get('quant_method')}), which are not trained; take a"
            " folder with weights in bfloat16, and without quantization_config"
        )
    for key, value in config.items():
        if key in fixed:
            if value not in fixed[key]:
                raise InputError(
                    f"{where}: {key}: {value!r} is not supported; it must be {fixed[key][0]!r}"
                )
        elif not key.startswith("_") and key not in READ | HARMLESS | WINDOW | family.known:
            raise InputError(
                f"{where}: {key} is not known, and could change what the model computes; take it out where it"
                " changes nothing, or name it in the `known` or `required` of the family (docs/extending.md)"
            )
    has_window = config.get("sliding_window") and config.get("use_sliding_window", True)
    has_window = has_window or set(config.get("layer_types") or ()) - {"full_attention"}
    if has_window and not family.window:
        raise InputError(
            f"{where}: has sliding-window attention (sliding_window: {config.get('sliding_window')!r}), which is"
            " not supported; set sliding_window to null where it was trained without"
        )
