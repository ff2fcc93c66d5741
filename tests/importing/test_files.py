"""Files and words as dotted keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.importing.files import read_given
from trimaran.errors import InputError

TREE = """
defaults: [ppo_trainer, _self_]
actor_rollout_ref:
  actor:
    _target_: verl.workers.config.FSDPActorConfig
    optim: {lr: 1e-6, betas: [0.9, 0.999]}
    use_dynamic_bsz: ${oc.select:actor_rollout_ref.dynamic,false}
    save: ${.strategy}
    strategy: fsdp
  rollout:
    name: ???
    n: 5
    response_length: ${data.max_response_length}
    missing: ${oc.select:nobody.has.this}
    nested: ${oc.select:nobody,${oc.select:nobody.either,null}}
    engine_kwargs: {}
data: {max_response_length: 2048}
trainer:
  project_name: p
  default_local_dir: checkpoints/${trainer.project_name}/${trainer.experiment_name}
  experiment_name: e
  address: 127.0.0.1
"""


def given(tmp_path: Path, *words: str) -> dict[str, object]:
    path = tmp_path / "theirs.yaml"
    path.write_text(TREE, encoding="utf-8")
    return dict(read_given(path, words))


def test_a_tree_is_flat_and_its_references_are_replaced(tmp_path: Path) -> None:
    assert given(tmp_path) == {
        "actor_rollout_ref.actor.optim.lr": 1e-6,
        "actor_rollout_ref.actor.optim.betas": [0.9, 0.999],
        "actor_rollout_ref.actor.use_dynamic_bsz": False,
        "actor_rollout_ref.actor.save": "fsdp",
        "actor_rollout_ref.actor.strategy": "fsdp",
        "actor_rollout_ref.rollout.n": 5,
        "actor_rollout_ref.rollout.response_length": 2048,
        "actor_rollout_ref.rollout.missing": None,
        "actor_rollout_ref.rollout.nested": None,
        "data.max_response_length": 2048,
        "trainer.project_name": "p",
        "trainer.default_local_dir": "checkpoints/p/e",
        "trainer.experiment_name": "e",
        "trainer.address": "127.0.0.1",
    }


def test_words_go_before_the_file_as_in_hydra(tmp_path: Path) -> None:
    values = given(
        tmp_path,
        "actor_rollout_ref.rollout.n=8",
        "+data.padding_mode=1",
        "++data.shuffle=False",
        "~actor_rollout_ref.actor",
        'trainer.logger=["console","wandb"]',
        "data.max_response_length=16",
        "trainer.total_training_steps='null'",
        "data.prompt={a: 1, b: {c: 2e-3}}",
    )
    assert values["actor_rollout_ref.rollout.n"] == 8
    assert values["actor_rollout_ref.rollout.response_length"] == 16
    assert (values["data.padding_mode"], values["data.shuffle"]) == (1, False)
    assert not [key for key in values if key.startswith("actor_rollout_ref.actor.")]
    assert values["trainer.logger"] == ["console", "wandb"]
    assert (values["data.prompt.a"], values["data.prompt.b.c"]) == (1, 0.002)


def test_a_section_is_laid_over_the_one_that_is_there(tmp_path: Path) -> None:
    values = given(
        tmp_path,
        "actor_rollout_ref.rollout={n:8,val_kwargs:{n:4,stop:'a,b:c'}}",
        "actor_rollout_ref.rollout.val_kwargs={temperature: 0.3}",
        "+data={files:[gs://a/b,c],seed:1}",
        "trainer.project_name={a:1}",
    )
    below = {key.rpartition("rollout.")[2]: value for key, value in values.items()}
    assert (below["n"], below["response_length"]) == (8, 2048)
    assert (below["val_kwargs.n"], below["val_kwargs.stop"]) == (4, "a,b:c")
    assert below["val_kwargs.temperature"] == 0.3
    assert (values["data.files"], values["data.seed"]) == (["gs://a/b", "c"], 1)
    assert values["data.max_response_length"] == 2048
    assert values["trainer.project_name.a"] == 1
    assert "trainer.project_name" not in values


@pytest.mark.parametrize(
    ("word", "reported"),
    [
        (
            "~trainer.projct_name",
            "trainer.projct_name is not given, so nothing would be taken away; did you mean"
            " ~trainer.project_name?",
        ),
        ("~data.shuffle", "data.shuffle is not given, so nothing would be taken away"),
        ("~actor_rollout_ref.rollout.n=6", "actor_rollout_ref.rollout.n is 5; "),
    ],
)
def test_a_word_that_takes_nothing_away_is_refused(
    tmp_path: Path, word: str, reported: str
) -> None:
    with pytest.raises(InputError) as caught:
        given(tmp_path, word)
    assert reported in str(caught.value)
    assert "actor_rollout_ref.rollout.n" not in given(tmp_path, "~actor_rollout_ref.rollout.n=5")


def test_a_word_of_easyr1_brings_its_file_along(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("worker: {rollout: {n: 5, top_p: 1.0}}\n")
    words = [f"config={file}", "worker.rollout.n=6"]
    assert read_given(None, words) == {"worker.rollout.n": 6, "worker.rollout.top_p": 1.0}
    with pytest.raises(InputError, match=r"nowhere\.yaml: cannot be read"):
        read_given(None, ["config=nowhere.yaml"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "not YAML"),
        ("- a", "must hold sections"),
        ("a: {b: '${a.c}', c: '${a.b}'}", "refers to itself"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_given(path, [])
    with pytest.raises(InputError, match=f"^{tmp_path / 'nowhere.yaml'}: cannot be read"):
        read_given(tmp_path / "nowhere.yaml", [])
    with pytest.raises(InputError, match="reads key=value"):
        given(tmp_path, "rollout.n")


def resolved(tmp_path: Path, reference: str) -> object:
    path = tmp_path / "theirs.yaml"
    path.write_text(f"a: {{x: '{reference}', y: 7, s: {{n: 1, m: '${{a.y}}'}}, w: y}}")
    return {key: v for key, v in read_given(path, []).items() if key.startswith("a.x")}


def test_a_reference_to_a_section_brings_its_values(tmp_path: Path) -> None:
    assert resolved(tmp_path, "${a.s}") == {"a.x.n": 1, "a.x.m": 7}


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("${mul:1e-6,2}", "asks for mul, .* give a.x=VALUE"),
        ("${eval:2+3}", "asks for eval"),
        ("${oc.decode:${oc.env:X,5}}", "asks for oc.decode"),
        ("${oc.select:nobody,${mul:1,2}}", "asks for mul"),
        ("${a.y", "without its }"),
        ("${nobody}", "refers to nobody, which is not given: give nobody=VALUE, or a.x=VALUE"),
        ("${oc.env:TRIMARAN_NOT_SET}", "set TRIMARAN_NOT_SET in the environment"),
    ],
)
def test_a_reference_that_is_not_understood_is_refused(
    tmp_path: Path, reference: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        resolved(tmp_path, reference)
