"""What the example runs are here, by their published values."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from commands.cli.main import main
from tests.guides.examples import EXAMPLES, FILES, words_of, write_models
from trimaran.config import config_to_tree, load_config

COUNTS = (
    "run.groups_per_step",
    "rollout.group_size",
    "algorithm.updates_per_batch",
    "rollout.max_prompt_tokens",
    "rollout.max_tokens",
    "trainer.micro_batch_tokens",
)
SHARES = (
    "trainer.tensor_parallel",
    "trainer.pipeline_parallel",
    "trainer.data_parallel",
    "rollout.replicas",
    "rollout.tensor_parallel",
)
COUNTED: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "verl-gsm8k": ((1024, 5, 4, 512, 1024, 40 * 1536), (1, 1, 4, 2, 2)),
    "verl-geo3k": ((512, 5, 4, 1024, 2048, 10 * 3072), (1, 1, 4, 2, 2)),
    "easyr1-gsm8k": ((512, 5, 4, 2048, 2048, 4096), (1, 1, 4, 2, 2)),
    "easyr1-geo3k": ((512, 5, 4, 2048, 2048, 4096), (1, 1, 4, 2, 2)),
    "mindspeed-rl-gsm8k": ((32, 8, 1, 2048, 2048, 4 * 4096), (2, 2, 2, 8, 1)),
    "mindspeed-mm-geo3k": ((512, 5, 16, 1024, 2048, 3072), (1, 1, 4, 4, 1)),
}
"""COUNTS and SHARES of each."""
KL = {"place": "loss", "estimator": "k3"}
SETTINGS: dict[str, dict[str, Any]] = {
    "verl-gsm8k": {
        "run.name": "qwen2_7b_function_rm",
        "reward.rules": {"gsm8k": {"weight": 1.0}},
        "algorithm.kl": {"coefficient": 0.001, **KL, "offload": True},
        "algorithm.loss": {"type": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2},
        "validation.every": 5,
        "run.checkpoint_every": 20,
        "metrics.sinks": ["wandb"],
    },
    "verl-geo3k": {
        "reward.rules": {"geo3k": {"weight": 1.0}},
        # Of the model's own preprocessor_config.json.
        "data.min_pixels": 28 * 28,
        "data.max_pixels": 64 * 28 * 28,
    },
    "easyr1-gsm8k": {
        "run.name": "qwen2_5_7b_math_grpo",
        "reward.rules": {"math": {"weight": 1.0}},
        "data.prompt_key": "prompt",
        "algorithm.loss": {"type": "ppo_clip", "clip_low": 0.2, "clip_high": 0.3},
        "trainer.offload": ["optimizer"],
        "validation.temperature": 0.6,
        "run.keep_checkpoints": 3,
    },
    "easyr1-geo3k": {
        "data.image_key": "images",
        "data.min_pixels": 262144,
        "data.max_pixels": 4194304,
        "rollout.limit_images": 4,
    },
    "mindspeed-rl-gsm8k": {
        "run.steps": 500,
        "reward.rules": {"math_17k_acc": {"weight": 1.0}},
        "algorithm.kl": {"coefficient": 0.001, **KL},
        "trainer.beta2": 0.95,
        "trainer.sequence_parallel": True,
        "rollout.max_concurrency": 1024,
        "rollout.eager": True,
    },
    "mindspeed-mm-geo3k": {
        "reward.rules": {"geo3k": {"weight": 1.0}},
        "data.image_key": "images",
        "data.max_pixels": 2048 * 2048,
        "data.shuffle": False,
        "rollout.limit_images": 1,
    },
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    return write_models(tmp_path_factory.mktemp("models"))


def at(tree: Any, key: str) -> Any:
    return reduce(lambda branch, part: branch[part], key.split("."), tree)


def within(found: Any, wanted: Any) -> bool:
    """Of sections, the keys that are wanted."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and within(found[key], wanted[key]) for key in wanted)
    return found == wanted


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_published_example_is_the_same_run_here(
    name: str, tmp_path: Path, models: dict[bool, Path]
) -> None:
    example = EXAMPLES[name]
    example.prepare(tmp_path)
    path = example.bring_in(tmp_path, models[example.has_images], example.published)
    tree = config_to_tree(load_config(path))
    counts, shares = COUNTED[name]
    assert tuple(at(tree, key) for key in COUNTS) == counts
    assert tuple(at(tree, key) for key in SHARES) == shares
    wrong = {
        key: at(tree, key) for key, w in SETTINGS[name].items() if not within(at(tree, key), w)
    }
    assert wrong == {}
    assert main(["data", "check", str(path)]) == 0


def test_a_launch_scripts_options_are_the_shells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MindSpeed-MM's script takes --data_path and --model_path in a loop, and its last line ends in a pipe."""
    options = (f"--data_path={tmp_path}/geo3k", f"--model_path={tmp_path}")
    words = words_of(FILES / "mindspeed_mm_qwen3vl_8b.sh", tmp_path, *options)
    command = ["import", "verl", *words, "-o", str(tmp_path / "run.yaml")]
    bounds = {"shortest_edge": 65536, "longest_edge": 16777216}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": bounds}))
    assert main(command) == 0
    config = load_config(tmp_path / "run.yaml")
    assert (config.run.steps, config.run.groups_per_step) == (100, 512)
    assert (config.data.min_pixels, config.data.max_pixels) == tuple(bounds.values())
    assert list(config.reward.rules) == ["geo3k"]
    assert "their default): stages have equally" not in capsys.readouterr().out
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "run.yaml").unlink()
    assert main(command) == 2
    assert "names no least and most pixels" in capsys.readouterr().out


def test_easyr1s_prompt_template_has_to_be_in_the_rows(
    tmp_path: Path, models: dict[bool, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    example = EXAMPLES["easyr1-geo3k"]
    example.prepare(tmp_path)
    wrong = "data.format_prompt=examples/format_prompt/r1v.jinja"
    with pytest.raises(AssertionError):
        example.bring_in(tmp_path, models[True], (*example.published, wrong))
    assert "--template r1v" in capsys.readouterr().out
    (tmp_path / "data" / "train.card.json").unlink()
    with pytest.raises(AssertionError):
        example.bring_in(tmp_path, models[True], example.published)
    assert "--template think_boxed" in capsys.readouterr().out
