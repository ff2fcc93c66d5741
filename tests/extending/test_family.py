"""The recipe of a model family: a tiny Seed-OSS trains as plain transformers trains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.configs import configure
from tests.extending.recipes import Recipe
from trimaran.errors import InputError
from trimaran.model.folder import read_model_folder

torch = pytest.importorskip("torch", reason="torch is not installed; the trainer needs it")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.e2e


def save_seed_oss(folder: Path) -> Any:
    from tests.trainer.models import SHAPE

    torch.manual_seed(0)
    without = {"attention_dropout": 0.0, "residual_dropout": 0.0}
    shape = {**SHAPE, "vocab_size": 96, "tie_word_embeddings": False, **without}
    model = transformers.SeedOssForCausalLM(transformers.SeedOssConfig(**shape))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.05))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model


async def test_a_family_like_llama_trains(follow: Callable[[str], Recipe], tmp_path: Path) -> None:
    from tests.trainer.batches import random_batch
    from tests.trainer.processes import running_ranks
    from tests.trainer.reference import ReferenceTrainer, with_rollout_logprobs
    from tests.trainer.test_parity import whole_root

    folder = tmp_path / "model"
    model = save_seed_oss(folder)
    with pytest.raises(InputError, match="family 'seed_oss'; supported are llama, qwen2"):
        read_model_folder(folder)
    follow("A model family")
    assert read_model_folder(folder).family == "seed_oss"
    config = configure(
        run={"groups_per_step": 4},
        model={"path": str(folder), "dtype": "float32"},
        rollout={"max_tokens": 32, "max_prompt_tokens": 32, "temperature": 0.7},
        trainer={"learning_rate": 1e-3, "weight_decay": 0.1, "device": "cpu"},
    )
    reference = ReferenceTrainer(model, config)

    async with running_ranks(config, tmp_path / "run") as client:
        assert client.first.root == whole_root(folder, tied=False)
        for step in (1, 2):
            batch = with_rollout_logprobs(model, random_batch(step), 0.7)
            reference.check(await client.train(batch), batch)
