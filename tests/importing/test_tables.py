"""Every key of the published examples and of the guides has a row, and each row is of one kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from commands.importing.conversion import Conversion, SourceSystem, convert
from commands.importing.files import read_given
from commands.importing.systems import SYSTEMS, recognize
from trimaran.config import RunConfig, parse_config

PREFIXES = {
    "A.": "actor_rollout_ref.",
    "w.": "worker.",
    "mt.": "megatron_training.",
    "rl.": "rl_config.",
    "gc.": "generate_config.",
    "sc.": "generate_config.sampling_config.",
}
"""Short names of sections, as the document has them."""
PUBLISHED = Path(__file__).parent / "published"
"""Keys of the published examples, one a line: EasyR1's config.yaml and scripts, the GRPO scripts of verl and of
MindSpeed-MM, MindSpeed-RL's GRPO and DAPO files (August 2026)."""


def words(text: str) -> dict[str, Any]:
    """Keys and values of words of a command line, with the short names of sections."""
    return {whole(key): value for key, value in read_given(None, text.split()).items()}


def whole(key: str) -> str:
    short = next((short for short in PREFIXES if key.startswith(short)), "")
    return PREFIXES.get(short, "") + key.removeprefix(short)


LEAST = {
    "verl": words(
        "algorithm.adv_estimator=grpo data.train_files=gsm8k/train.parquet data.train_batch_size=1024"
        " A.actor.ppo_micro_batch_size_per_gpu=4 A.model.path=qwen A.rollout.n=5 trainer.total_training_steps=10"
    ),
    "easyr1": words(
        "data.train_files=train.jsonl w.actor.model.model_path=qwen w.rollout.n=5 trainer.max_steps=10"
        " w.reward.reward_function=./examples/reward_function/math.py:compute_score"
    ),
    "mindspeed-rl": words(
        "mt.tokenizer_name_or_path=qwen mt.data_path=train.parquet mt.global_batch_size=32 mt.train_iters=10"
        " mt.save_interval=10 actor_config.micro_batch_size=4 actor_config.finetune=true rl.mini_batch_size=32"
        " rl.n_samples_per_prompt=8 rl.actor_resource.num_npus=16 sc.top_k=-1 sc.max_tokens=2048"
    ),
}
"""What has to be given for a run of each."""
each_system = pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)


def converted(name: str, in_turns: Any = False, **given: Any) -> Conversion:
    """`__` stands for a dot."""
    changes = {key.replace("__", "."): value for key, value in given.items()}
    return convert(SYSTEMS[name], LEAST[name] | changes, in_turns)


def config_of(name: str, **given: Any) -> RunConfig:
    made = converted(name, **given)
    assert made.having("refused") == {}
    return parse_config(made.tree)


@each_system
def test_every_key_of_the_published_examples_has_a_row(system: SourceSystem) -> None:
    keys = (PUBLISHED / f"{system.name}.txt").read_text(encoding="utf-8").split()
    assert len(keys) > 90
    assert [key for key in keys if system.find(key) is None] == []


@each_system
def test_a_key_has_one_row(system: SourceSystem) -> None:
    keys = [row.key for row in system.rows]
    assert [key for key in set(keys) if keys.count(key) > 1] == []


@each_system
def test_the_least_that_a_run_gives_passes_our_own_check(system: SourceSystem) -> None:
    assert config_of(system.name).algorithm.correction.weights == "none"
    assert converted(system.name).unknown == {}


@each_system
def test_a_default_of_theirs_is_no_surprise(system: SourceSystem) -> None:
    """Each row takes its own default without being refused, or it is one of these."""
    needed = words(
        "algorithm.adv_estimator= A.actor.use_dynamic_bsz= rl.mini_batch_size= rl.actor_resource.num_npus="
        " mt.global_batch_size= mt.train_iters= mt.micro_batch_size= sc.top_k= data.train_files= A.model.path="
        " w.actor.model.model_path= mt.tokenizer_name_or_path= mt.data_path= trainer.total_epochs="
        " reward.custom_reward_function.path= w.reward.reward_function="
    )
    made = convert(system, {})
    assert made.having("refused").keys() <= needed.keys()


def test_unknown_keys_are_listed_with_the_nearest_one() -> None:
    made = converted("verl", actor_rollout_ref__rollout__tempreature=1.0, nonsense__key=1)
    assert made.unknown == {
        "actor_rollout_ref.rollout.tempreature": "actor_rollout_ref.rollout.temperature",
        "nonsense.key": "",
    }


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["actor_rollout_ref.rollout.n", "data.train_files"], "verl"),
        (["worker.rollout.n", "data.train_files"], "easyr1"),
        (["rl_config.epochs"], "mindspeed-rl"),
        (["rollout.replicas", "reward.rules"], None),
    ],
)
def test_a_file_is_recognized_by_its_sections(keys: list[str], name: str | None) -> None:
    found = recognize(keys)
    assert (found.name if found else None) == name


DOCUMENT = Path(__file__).parents[2] / "docs" / "migrating.md"


def test_the_documents_keys_are_those_of_the_tables() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.partition("### What all three have")[2].partition("Their names of values")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    named = [re.findall(r"`([\w.]+\.[\w.]+)", cell) for row in rows for cell in row]
    assert [key for keys in named[::4] for key in keys if not is_ours(key)] == []
    for column, system in enumerate(SYSTEMS.values(), start=1):
        for key in (key for keys in named[column::4] for key in keys):
            name = whole(key)
            if name != key or name.partition(".")[0] in ("data", "trainer", "algorithm"):
                assert system.find(name), name


def is_ours(key: str) -> bool:
    model: Any = RunConfig
    for part in key.split("."):
        fields = getattr(model, "model_fields", {})
        if fields and part not in fields:
            return False
        model = fields[part].annotation if fields else None
    return True
