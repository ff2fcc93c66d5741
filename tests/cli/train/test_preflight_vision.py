"""A vision-language model and the engine that computes texts only."""

import pytest

from commands.cli.train.preflight import check_model
from tests.tiny_vision import write_tiny_vision
from trimaran.config import parse_config
from trimaran.errors import InputError


def test_the_small_engine_is_refused_before_anything_starts(tmp_path):
    model = write_tiny_vision(tmp_path / "model", num_layers=2)
    for engine, is_refused in (("vllm", False), ("transformers", True)):
        config = parse_config(
            {
                "model": {"path": str(model), "dtype": "float32"},
                "data": {"train": "unused.parquet"},
                "reward": {"rules": {"exact_match": 1.0}},
                "rollout": {"engine": engine, "max_tokens": 8, "max_prompt_tokens": 64},
            }
        )
        if not is_refused:
            check_model(config, model)
            continue
        with pytest.raises(
            InputError, match=r"rollout\.engine: .*vision-language model; choose vllm"
        ):
            check_model(config, model)
