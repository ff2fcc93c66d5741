from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import SHAPE, tiny_tokenizer


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A random tied Llama in float32 whose heads are of a size that vLLM's attention takes.

    Position 0 of the residual stream is 1 whatever the layers do, and the end token's
    embedding points against it: completions practically never end by themselves.
    """
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("models") / "rollout"
    torch.manual_seed(0)
    shape: dict[str, Any] = SHAPE | {"hidden_size": 128, "max_position_embeddings": 2048}
    shape |= {"tie_word_embeddings": True, "initializer_range": 0.2}
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding[:, 0] = 1
        embedding[SHAPE["eos_token_id"], 0] = -1000
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
