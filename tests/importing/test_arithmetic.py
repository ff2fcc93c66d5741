"""Batches of the other projects are the same batches here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from commands.importing.layout import Shape
from tests.importing.test_tables import converted, words
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError


def config_of(name: str, **given_keys: Any) -> RunConfig:
    made = converted(name, **given_keys)
    assert made.having("refused") == {}
    return parse_config(made.tree)


@dataclass(frozen=True)
class Counted:
    """What a rank does in a step, in sequences."""

    per_rank: int
    per_update: int
    updates: int
    accumulated: int
    """Forward passes of one update."""


def as_they_count(prompts: int, answers: int, mini: int, micro: int, ranks: int) -> Counted:
    """EasyR1's arithmetic (the guide, section 4.1)."""
    per_rank = prompts * answers // ranks
    per_update = mini * answers // ranks
    return Counted(per_rank, per_update, per_rank // per_update, per_update // micro)


def as_we_count(config: RunConfig, ranks: int) -> Counted:
    """Where every sequence has the greatest length, and the ranks are as many as theirs."""
    sequences = config.run.groups_per_step * config.rollout.group_size
    per_update = sequences // config.algorithm.updates_per_batch // ranks
    micro = config.trainer.micro_batch_tokens // config.max_model_tokens
    return Counted(
        sequences // ranks, per_update, config.algorithm.num_updates, per_update // micro
    )


def test_verl_and_mindspeed_rl_count_prompts_of_an_update_too() -> None:
    verl = config_of(
        "verl",
        **words(
            "data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=2048"
            " A.actor.ppo_mini_batch_size=32 A.actor.ppo_micro_batch_size_per_gpu=4 A.rollout.n=5"
        ),
    )
    assert as_we_count(verl, 16) == as_they_count(512, 5, 32, 4, 16) == Counted(160, 10, 16, 2)
    theirs = config_of(
        "mindspeed-rl",
        **words(
            "mt.global_batch_size=256 rl.mini_batch_size=32 rl.n_samples_per_prompt=16 rl.max_prompt_length=2048"
            " actor_config.micro_batch_size=1 sc.max_tokens=20480"
        ),
    )
    counted = Counted(1024, 128, 8, 128)
    assert as_we_count(theirs, 4) == as_they_count(256, 16, 32, 1, 4) == counted


@given(
    mini=st.integers(1, 64),
    updates=st.integers(1, 16),
    answers=st.integers(1, 16),
    micro=st.integers(1, 8),
    epochs=st.integers(1, 3),
)
def test_updates_are_the_same_for_any_sizes(
    mini: int, updates: int, answers: int, micro: int, epochs: int
) -> None:
    prompts = mini * updates
    config = config_of(
        "easyr1",
        **words(
            f"data.rollout_batch_size={prompts} w.actor.global_batch_size={mini} w.actor.ppo_epochs={epochs}"
            f" w.actor.micro_batch_size_per_device_for_update={micro} w.rollout.n={answers + 1}"
        ),
    )
    sequences = config.run.groups_per_step * config.rollout.group_size
    assert sequences == prompts * (answers + 1)
    assert sequences / config.algorithm.updates_per_batch == mini * (answers + 1)
    assert config.algorithm.num_updates == updates * epochs
    assert config.trainer.micro_batch_tokens // config.max_model_tokens == micro


def test_a_bound_in_tokens_is_of_the_ranks_that_share_a_sequence() -> None:
    shared = "A.actor.ulysses_sequence_parallel_size=4 A.actor.ppo_max_token_len_per_gpu=3000"
    config = config_of("verl", **words(f"A.actor.use_dynamic_bsz=True {shared}"))
    assert (config.trainer.micro_batch_tokens, config.trainer.context_parallel) == (12000, 4)
    bounds = "rl.max_packing_token_size=10240 rl.update_max_packing_token_size=22528"
    packed = config_of("mindspeed-rl", **words(f"rl.use_dynamic_bsz=true {bounds}"))
    assert packed.trainer.micro_batch_tokens == 22528


@given(
    devices=st.sampled_from([2, 4, 8, 16, 32, 64, 256]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
    context=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 2, 8]),
    rollout_tensor=st.sampled_from([1, 2, 4]),
)
def test_devices_are_shared_out_so_that_every_size_divides(
    devices: int, tensor: int, pipeline: int, context: int, expert: int, rollout_tensor: int
) -> None:
    split = Shape(devices, rollout_tensor, tensor, pipeline, context, expert).split()
    assert split.trainers % (tensor * pipeline * context) == 0
    assert (tensor * context * split.data) % expert == 0
    if split.trainers + rollout_tensor <= devices:
        assert split.trainers + split.generators <= devices
        assert split.trainers + split.generators > devices - rollout_tensor
    else:
        assert split.replicas == 1
        assert "more than there" in split.text() or split.trainers + split.generators <= devices
    try:
        turns = Shape(devices, rollout_tensor, tensor, pipeline, context, expert).split(True)
    except InputError:
        assert split.trainers > devices or rollout_tensor > devices
    else:
        assert turns.trainers == turns.generators == devices
        assert (tensor * context * turns.data) % expert == 0
        assert turns.settings()["run.pools"] == "colocated"


def test_in_turns_every_project_has_as_many_devices_as_there() -> None:
    runs = {
        "verl": "trainer.n_gpus_per_node=8 A.rollout.tensor_model_parallel_size=2",
        "easyr1": "trainer.n_gpus_per_node=8 w.rollout.tensor_parallel_size=2",
        "mindspeed-rl": "rl.actor_resource.num_npus=8 gc.infer_tensor_parallel_size=2"
        " mt.tensor_model_parallel_size=4",
    }
    for name, given_keys in ((name, words(text)) for name, text in runs.items()):
        made = converted(name, in_turns=True, **given_keys)
        assert made.having("refused") == {}
        config = parse_config(made.tree)
        assert config.is_colocated and config.rollout.replicas == 4
        assert config.num_devices == config.num_trainer_ranks == config.num_rollout_devices == 8
        apart = config_of(name, **given_keys)
        assert not apart.is_colocated and apart.num_devices == 8
