"""`trimaran plan`, and what it refuses at the start of a run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from commands.cli.inspect import plan as plan_command
from commands.cli.inspect.plan import check_memory, plan_here
from commands.cli.main import main
from commands.cli.train.preflight import check_model
from commands.doctor.checks.memory import Memory
from services.trainer.checkpoints.convert.convert import huggingface_to_checkpoint
from tests.cli.conftest import Ran
from tests.tiny_model import write_tiny_model
from tests.tiny_vision import nest_names, write_tiny_vision
from trimaran.config import load_config, parse_config
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.host.machine import Machine

CPU = Machine({}, frozenset(), 0, 0)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path / "model")
    tree = {
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "reward": {"rules": {"last_integer": 1.0}},
        "rollout": {
            "max_tokens": 64,
            "max_prompt_tokens": 64,
            "kv_cache_gib": 0.01,
            "device": "cpu",
        },
        "trainer": {"device": "cpu"},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_device_memory_is_that_of_each_device(run_file: Path, ran: Ran) -> None:
    devices = ["trainer.device=npu", "rollout.device=npu"]
    lines = ran(["plan", str(run_file), *devices, "--device-memory", "0.004"], 2).err.splitlines()
    assert lines[0].startswith("error: trainer: weights, gradients and optimizer")
    assert main(["plan", str(run_file), *devices, "--device-memory", "80"]) == 0


def test_a_plan_needs_no_more_of_a_model_than_its_config(
    run_file: Path, tmp_path: Path, ran: Ran
) -> None:
    whole = ran(["plan", str(run_file)]).out.splitlines()[1:]
    config = (load_config(run_file).model.path / "config.json").read_text()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text(config)
    words = [f"model.path={tmp_path / 'bare'}", "trainer.freeze=[model.embed_tokens.*]"]
    assert ran(["plan", str(run_file), *words[:1]]).out.splitlines()[1:] == whole
    assert main(["plan", str(run_file), *words]) == 0
    with pytest.raises(InputError, match=r"lacks model\.safetensors"):
        check_memory(load_config(run_file, words), CPU)


def test_a_model_that_is_not_here_is_bad_input(run_file: Path, ran: Ran) -> None:
    arguments = ["plan", str(run_file), "model.path=nowhere", "model.source=s3://models/x"]
    assert "is not here yet" in ran(arguments, 2).err


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_act", "gelu", "hidden_act: 'gelu' is not supported; it must be 'silu'"),
        ("rope_parameters", {"rope_type": "longrope"}, "rope type 'longrope' is not supported"),
        ("max_position_embeddings", 64, "128 is more than the 64 positions of the model"),
    ],
)
def test_a_model_that_cannot_be_trained_is_reported_before_anything_starts(
    key: str, value: object, words: str, run_file: Path, ran: Ran
) -> None:
    """By the trainer's own check, here and where a run starts, without torch."""
    path = run_file.parent / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    message = ran(["plan", str(run_file)], 2).err
    assert (message.count("\n"), words in message) == (1, True), message
    with pytest.raises(InputError, match=re.escape(words)):
        check_model(load_config(run_file), path.parent)


@pytest.mark.parametrize("has_weights", [True, False])
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("*.mlp.gate.weight", "'*.mlp.gate.weight' matches no tensor of the model; near it are"),
        ("*", "matches every tensor of the model"),
    ],
)
def test_parameters_that_cannot_be_frozen_are_named_before_anything_starts(
    pattern: str, words: str, has_weights: bool, run_file: Path, ran: Ran
) -> None:
    model = run_file.parent / "model"
    if not has_weights:
        (model / "model.safetensors").unlink()
    keys = [f"trainer.freeze=['{pattern}']"]
    message = ran(["plan", str(run_file), *keys], 2).err
    assert "trainer.freeze: " in message and words in message
    if has_weights:
        with pytest.raises(InputError, match=re.escape(words)):
            check_model(load_config(run_file, keys), model)


@pytest.mark.parametrize("is_nested", [False, True])
def test_patterns_over_a_vision_models_names_are_checked_by_its_config_alone(
    is_nested: bool, run_file: Path, ran: Ran
) -> None:
    """Those of Qwen2.5-VL may be either kind. With weights one of the two is refused."""
    model = write_tiny_vision(run_file.parent / "vision")
    weights = (model / "model.safetensors").rename(run_file.parent / "weights")
    words = ["plan", str(run_file), f"model.path={model}"]
    kinds = [("visual.", "model.layers.1."), ("model.visual.", "model.language_model.layers.1.")]
    (mine, _), (_, other) = kinds[is_nested], kinds[not is_nested]
    frozen = ran([*words, f"trainer.freeze=[{mine}*]"]).out.splitlines()[2:]
    assert ran([*words, "trainer.freeze=['*visual.*']"]).out.splitlines()[2:] == frozen
    assert ran(words).out.splitlines()[2:] != frozen
    near = "'visual.blok.*' matches no tensor of the model; near it are visual.blocks.*.norm"
    assert near in ran([*words, "trainer.freeze=[visual.blok.*]"], 2).err
    mixed = [*words, f"trainer.freeze=[{mine}*, {other}*]"]
    assert "matches no tensor of the model" in ran(mixed, 2).err
    weights.rename(model / "model.safetensors")
    if is_nested:
        nest_names(model)
    assert main([*words, f"trainer.freeze=[{mine}*]"]) == 0
    assert main([*words, f"trainer.freeze=[{other}*]"]) == 2


def test_a_plan_needs_no_torch(run_file: Path) -> None:
    words = ["plan", str(run_file), "trainer.freeze=[model.embed_tokens.*]"]
    code = (
        "import sys; from commands.cli.main import main\n"
        f"code = main({words!r}); sys.exit(code or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


def test_a_run_is_refused_where_its_fixed_parts_are_too_much(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(run_file)
    check_memory(config, CPU)
    monkeypatch.setattr(plan_command, "read_memory", lambda system: Memory(1 << 28, 1 << 28))
    with pytest.raises(InputError, match="this host: the run's processes take"):
        check_memory(config, CPU)


def test_a_reader_that_has_enough_ends_a_command_without_a_word(run_file: Path) -> None:
    """As after `| head`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "commands.cli", "plan", str(run_file)]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_what_is_frozen_and_had_trained_in_the_run_before_is_in_the_plan_of_checkpoints(
    run_file: Path, tmp_path: Path
) -> None:
    """Hand-worked: two layers of 128 channels, MLPs of 256, a tied vocabulary of 96."""
    mlp, table = "'*.mlp.*'", "model.embed_tokens.weight"
    freeze = f"trainer.freeze=[{mlp}, {table}]"
    sizes = {mlp: 2 * 3 * 128 * 256, table: 96 * 128}

    def copied(*words: str) -> list[int]:
        config = load_config(str(run_file), ["model.dtype=bfloat16", freeze, *words])
        return [rank.copied for rank in plan_here(config, CPU).ranks]

    [plain] = copied()
    first = tmp_path / "first"
    huggingface_to_checkpoint(tmp_path / "model", first, ParallelLayout(pipeline=2), "float32")
    load = f"trainer.load={first}"
    assert copied(load) == [plain + 2 * sum(sizes.values())]
    # Each rank writes it whole, and its part of the rest.
    split = ["trainer.data_parallel=2", "trainer.distributed_optimizer=true"]
    assert copied(load, *split) == [plain // 2 + 2 * sum(sizes.values())] * 2
    # The run before had frozen the MLPs as well.
    second = tmp_path / "second/checkpoints/step-00001"
    second.mkdir(parents=True)
    (second / "state.json").touch()
    held = {f"main.embedding.word_embeddings.weight@{start}": torch.ones(8) for start in (0, 8)}
    save_file(held, second / "shard-0.safetensors")
    assert copied(f"trainer.load={tmp_path / 'second'}") == [plain + 2 * sizes[table]]
    # It is on another host: as much as there may be.
    assert copied("trainer.load=/elsewhere/first") == copied(load)
    (second / "shard-0.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=r"trainer\.load: .*shard-0\.safetensors: cannot be read"):
        copied(f"trainer.load={tmp_path / 'second'}")


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
