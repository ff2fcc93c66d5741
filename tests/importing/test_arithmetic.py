"""Batches of the other projects are the same batches here."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commands.importing.layout import Shape
from tests.importing.test_tables import config_of, converted, words
from trimaran.config import parse_config
from trimaran.errors import InputError


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
    for name, text in runs.items():
        made = converted(name, in_turns=True, **words(text))
        assert made.having("refused") == {}
        config = parse_config(made.tree)
        assert config.is_colocated and config.rollout.replicas == 4
        assert config.num_devices == config.num_trainer_ranks == config.num_rollout_devices == 8
        apart = config_of(name, **words(text))
        assert not apart.is_colocated and apart.num_devices == 8
