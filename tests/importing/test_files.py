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
  rollout:
    name: ???
    n: 5
    engine_kwargs: {}
data: {max_response_length: 2048}
trainer:
  project_name: p
  address: 127.0.0.1
"""


def given(tmp_path: Path, *words: str) -> dict[str, object]:
    path = tmp_path / "theirs.yaml"
    path.write_text(TREE, encoding="utf-8")
    return dict(read_given(path, words))


def test_a_tree_is_flat(tmp_path: Path) -> None:
    assert given(tmp_path) == {
        "actor_rollout_ref.actor.optim.lr": 1e-6,
        "actor_rollout_ref.actor.optim.betas": [0.9, 0.999],
        "actor_rollout_ref.rollout.n": 5,
        "data.max_response_length": 2048,
        "trainer.project_name": "p",
        "trainer.address": "127.0.0.1",
    }


def test_words_go_before_the_file_as_in_hydra(tmp_path: Path) -> None:
    values = given(
        tmp_path,
        "+data.padding_mode=1",
        "++data.shuffle=False",
        "~actor_rollout_ref.actor",
        'trainer.logger=["console","wandb"]',
        "trainer.total_training_steps='null'",
    )
    assert (values["data.padding_mode"], values["data.shuffle"]) == (1, False)
    assert not [key for key in values if key.startswith("actor_rollout_ref.actor.")]
    assert values["trainer.logger"] == ["console", "wandb"]


def test_a_section_is_laid_over_the_one_that_is_there(tmp_path: Path) -> None:
    values = given(
        tmp_path,
        "actor_rollout_ref.actor={optim:{lr:1,name:'a,b:c'}}",
        "+data={files:[gs://a/b,c],seed:1}",
        "trainer.project_name={a:1}",
    )
    optim = {key.rpartition("optim.")[2]: value for key, value in values.items() if "optim" in key}
    assert optim == {"lr": 1, "name": "a,b:c", "betas": [0.9, 0.999]}
    assert (values["data.files"], values["data.seed"]) == (["gs://a/b", "c"], 1)
    assert values["trainer.project_name.a"] == 1
    assert "trainer.project_name" not in values


@pytest.mark.parametrize(
    ("word", "reported"),
    [
        ("~trainer.projct_name", "not given, .* did you mean ~trainer.project_name?"),
        ("data.path=${oc.env:HOME}/rows", "data.path: refers to another value"),
        ("rollout.n", "reads key=value"),
    ],
)
def test_a_word_that_cannot_be_followed_is_refused(
    tmp_path: Path, word: str, reported: str
) -> None:
    with pytest.raises(InputError, match=reported):
        given(tmp_path, word)


def test_a_word_of_easyr1_brings_its_file_along(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("worker: {rollout: {n: 5, top_p: 1.0}}\n")
    words = [f"config={file}", "worker.rollout.n=6"]
    assert read_given(None, words) == {"worker.rollout.n": 6, "worker.rollout.top_p": 1.0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a: [", "not YAML"), ("- a", "must hold sections"), (None, "cannot be read")],
)
def test_a_bad_file_is_named_with_what_is_wrong(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    path = tmp_path / "theirs.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=f"^{path}: {reason}"):
        read_given(path, [])
