"""`trimaran import`, and files of other systems where a run's is wanted."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from commands.cli.main import main
from tests.cli.conftest import Ran
from trimaran.config import config_to_tree, load_config
from trimaran.data.prompts import Dataset

EASYR1 = """
data: {train_files: train.jsonl, rollout_batch_size: 16, max_prompt_length: 64, max_response_length: 64}
algorithm: {adv_estimator: grpo, use_kl_loss: true, kl_penalty: low_var_kl, kl_coef: 1.0e-2}
worker:
  actor:
    global_batch_size: 8
    padding_free: true
    model: {model_path: model}
  rollout: {n: 4, gpu_memory_utilization: 0.6}
  reward: {reward_function: ./examples/reward_function/math.py:compute_score}
trainer: {max_steps: 3, experiment_name: math run, n_gpus_per_node: 4, logger: [console]}
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(EASYR1)
    (tmp_path / "model").mkdir()
    (tmp_path / "train.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n')
    return path


def test_a_run_is_written_that_our_own_commands_read(theirs: Path, ran: Ran) -> None:
    out = ran(["import", "easyr1", str(theirs), "worker.rollout.n=5", "-o", "ours/run.yaml"]).out
    assert "note     worker.rollout.gpu_memory_utilization: there the trainer takes" in out
    counts = "18 keys: 13 mapped, 3 mapped with a note, 2 ignored, 0 refused, 0 unknown; "
    assert out.splitlines()[-1].startswith(counts)
    config = load_config("ours/run.yaml")
    assert (config.run.name, config.run.steps, config.rollout.group_size) == ("math-run", 3, 5)
    assert config.model.path == theirs.parent / "model"
    assert config_to_tree(config)["data"]["train"] == str(theirs.parent / "train.jsonl")
    text = Path("ours/run.yaml").read_text()
    assert "# ignored: worker.actor.padding_free: micro-batches are packed" in text
    names = "run model data rollout reward algorithm trainer validation metrics"
    assert list(yaml.safe_load(text)) == names.split()


def test_turns_as_theirs_are_a_word_behind_the_file(theirs: Path, ran: Ran) -> None:
    words = ["import", "easyr1", str(theirs)]
    out = ran([*words, "-o", "apart.yaml"]).out
    assert "here 2 train and 2 generate (1 x 2)" in out
    assert "or say run.pools=colocated behind the file, for turns as there" in out
    out = ran([*words, "run.pools=colocated", "-o", "turns.yaml"]).out
    assert "4 devices of one host train and generate (2 x 2) in turns, as there" in out
    apart, turns = load_config("apart.yaml"), load_config("turns.yaml")
    assert (apart.run.pools, apart.num_devices) == ("separate", 4)
    assert (turns.run.pools, turns.num_devices, turns.num_trainer_ranks) == ("colocated", 4, 4)
    assert turns.rollout.replicas == 2
    for word, told in (
        ("trainer.n_gpus_per_node=5", "a replica has 2 devices, which do not both divide 5"),
        ("trainer.nnodes=2", "refused  trainer.nnodes: run.pools=colocated: turns are taken"),
    ):
        assert told in ran([*words, "run.pools=colocated", word], 2).out
    told = "run.pools=shared: give separate or colocated"
    assert told in ran([*words, "run.pools=shared"], 2).err
    assert not Path("run.yaml").exists()


def test_a_refused_or_unknown_key_writes_nothing(theirs: Path, ran: Ran) -> None:
    words = ["worker.rollout.top_p=0.9", "worker.rollout.temprature=1"]
    out, err = ran(["import", "easyr1", str(theirs), *words], 2)
    assert "refused  worker.rollout.top_p: answers are drawn from the whole" in out
    assert "unknown  worker.rollout.temprature: did you mean worker.rollout.temperature?" in out
    counts = "20 keys: 13 mapped, 3 mapped with a note, 2 ignored, 1 refused, 1 unknown; "
    assert out.splitlines()[-1].startswith(counts)
    assert "nothing is written" in err
    assert not Path("run.yaml").exists()
    words += ["~worker.rollout.temprature", "~worker.rollout.top_p"]
    assert main(["import", "easyr1", str(theirs), *words]) == 0
    assert "is there already" in ran(["import", "easyr1", str(theirs)], 2).err


@pytest.mark.parametrize(("name", "keys"), [("ppo_trainer", 1), ("ppo_megatron_trainer", 2)])
def test_the_name_of_verls_configuration_sets_its_trainer(name: str, keys: int, ran: Ran) -> None:
    words = ["--config-path=config", f"--config-name={name}.yaml", "actor_rollout_ref.rollout.n=5"]
    assert ran(["import", "verl", *words], 2).out.splitlines()[-1].startswith(f"{keys} keys: ")


def test_keys_that_a_file_must_have_are_counted(theirs: Path, ran: Ran) -> None:
    theirs.write_text("worker: {rollout: {n: 5}}\n")
    out = ran(["import", "easyr1", str(theirs)], 2).out
    refused = [line for line in out.splitlines() if line.startswith("refused ")]
    assert all(" (their default): " in line for line in refused)
    assert out.splitlines()[-1].endswith(
        f"defaults; refused of what the file lacks: {len(refused)}"
    )


def test_another_systems_file_is_recognized(theirs: Path, ran: Ran) -> None:
    told = f"it looks like one of EasyR1: trimaran import easyr1 {theirs}"
    assert told in ran(["import", "verl", str(theirs)], 2).err


@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_run_of_theirs_is_recognized_where_one_of_ours_is_wanted(
    command: str, theirs: Path, ran: Ran
) -> None:
    go_on = f"go on with: trimaran import easyr1 {theirs} -o run.yaml"
    told = f"error: {theirs}: is a file of EasyR1; {go_on}\n"
    assert ran([command, str(theirs)], 2).err == told
    Path("run.sh").write_text("python3 -m verl.trainer.main_ppo a=1\n")
    told = "run.sh: is a script; in a copy, write `trimaran import"
    assert told in ran([command, "run.sh"], 2).err


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("1: 2\n", "1: unknown key"),
        ("1: 2\nactor_rollout_ref: {rollout: {n: 4}}\n", "is a file of verl; go on with"),
        ("actor_rollout_ref: {rollout: {n: .inf}}\n", "is a file of verl; go on with"),
        ("actor_rollout_ref: {model: {path: %s}}\n" % ("x" * 300), "is a file of verl; go on"),
        ("actor_rollout_ref: &all {rollout: *all}\n", "is a file of verl; go on with"),
    ],
)
def test_a_file_with_odd_content_is_reported_in_one_line(
    text: str, reported: str, tmp_path: Path, ran: Ran
) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    assert reported in ran(["plan", str(path)], 2).err


SMALL = """
data: {train_files: train.parquet, val_files: test.parquet, train_batch_size: 2}
algorithm: {adv_estimator: grpo}
actor_rollout_ref:
  model: {path: model}
  actor: {ppo_mini_batch_size: 2}
  rollout: {n: 5, tensor_model_parallel_size: 2}
trainer: {total_epochs: 3}
"""


def test_a_small_file_of_verl_trains_as_it_stands_on_verls_own_rows(theirs: Path, ran: Ran) -> None:
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": "1 + 1?"}],
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "answer": "1 + 1 = 2, so #### 2",
        }
        for source in ("openai/gsm8k", "lighteval/MATH", "openai/gsm8k")
    ]
    for name in ("train", "test"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), f"{name}.parquet")
    Path("small.yaml").write_text(SMALL)
    out = ran(["import", "verl", "small.yaml", "-o", "ours.yaml"]).out
    assert "0 refused" in out.splitlines()[-1]
    config, text = load_config("ours.yaml"), Path("ours.yaml").read_text()
    assert (config.run.steps, config.run.epochs) == (3, None)
    assert "# noted: actor_rollout_ref.actor.use_dynamic_bsz: there ppo_micro" in text
    for section in config.data.train:
        first, second, _ = Dataset(section).texts()
        assert (first.answer, first.task, second.task) == ("2", "openai/gsm8k", "lighteval/MATH")
        for prompt in (first, second):
            judges = [
                name for name, rule in config.reward.rules.items() if rule.is_for(prompt.task)
            ]
            assert judges == [{"openai/gsm8k": "gsm8k"}.get(prompt.task, "boxed_equal")]


def test_words_alone_are_a_run_too(theirs: Path) -> None:
    words = [
        "data.train_files=train.jsonl",
        "worker.actor.model.model_path=model",
        "worker.reward.reward_function=./examples/reward_function/math.py:compute_score",
        "worker.rollout.n=5",
        "trainer.max_steps=3",
    ]
    assert main(["import", "easyr1", *words, "-o", "run.yaml"]) == 0
    assert load_config("run.yaml").rollout.group_size == 5
