"""A whole run: what does not fit is said with what to change, and only what is sure refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from commands.cli.inspect.plan_table import describe, groups, number
from tests.configs import configure
from tests.trimaran.model.memory.models import QWEN3_30B, QWEN25_7B
from trimaran.errors import InputError
from trimaran.model.memory.plan import (
    GIB,
    RUNTIME,
    DeviceCapacity,
    MemoryPlan,
    find_faults,
    make_plan,
    refuse_impossible,
)
from trimaran.model.memory.replica import replica_memory

KEYS = 2 * 28 * 4 * 128 * 2
"""Bytes of a token's keys and values in Qwen2.5-7B."""


def plan_of(on_host: bool = False, **sections: dict[str, Any]) -> MemoryPlan:
    return make_plan(configure(**sections), QWEN25_7B, on_host, on_host)


def test_a_replica_by_hand() -> None:
    replica = replica_memory(QWEN25_7B, 2, max_model_tokens=2048, bucket_mib=64)
    assert replica.weights == QWEN25_7B.matrices
    assert replica.shadow == 2 * QWEN25_7B.matrices
    assert replica.key_value_token == KEYS // 2
    assert replica.staging == 128 << 20
    assert replica.sequences(5 * 2048 * KEYS // 2 + 1) == 5
    assert replica.key_value_room(0) == 0


def test_each_of_many_devices_has_one_key_head_at_least() -> None:
    assert replica_memory(QWEN25_7B, 8, 2048, 64).key_value_token == KEYS // 4


def test_a_model_that_no_device_holds_is_refused_with_a_layout_that_would_do() -> None:
    plan = plan_of()
    with pytest.raises(InputError) as caught:
        refuse_impossible(plan, DeviceCapacity(trainer=80 * GIB, replica=80 * GIB))
    (line,) = str(caught.value).splitlines()
    assert line.startswith("trainer: weights, gradients and optimizer of a rank take 127.66 GiB")
    assert line.endswith("set trainer.tensor_parallel=4 trainer.pipeline_parallel=1")
    better = plan_of(trainer={"tensor_parallel": 4})
    assert find_faults(better, DeviceCapacity(trainer=80 * GIB, replica=80 * GIB)) == ()


def test_an_episode_is_as_long_as_the_model_lets_it_be() -> None:
    sections: dict[str, dict[str, Any]] = {
        "rollout": {"max_tokens": 512, "max_prompt_tokens": 1000},
        "trainer": {"tensor_parallel": 4, "micro_batch_tokens": 1000},
    }
    one_turn = plan_of(False, **sections)
    assert (one_turn.work.completion, one_turn.tokens) == (512, 2000)
    episodes = plan_of(False, **sections, environment={"python": True, "max_tokens": 9000})
    assert (episodes.work.completion, episodes.tokens) == (9000, 1000 + 9000 - 1)
    assert episodes.replica.sequence == 10000 * KEYS
    (fault,) = find_faults(episodes, DeviceCapacity(trainer=40 * GIB))
    assert "lower environment.max_tokens or rollout.max_prompt_tokens" in fault


@pytest.mark.parametrize("how", [{"python": True, "history": "template"}, {"agent": {}}])
def test_an_episode_may_have_a_sequence_for_each_turn(how: dict[str, Any]) -> None:
    """They fill a micro-batch that those of one sequence each do not."""
    sections: dict[str, dict[str, Any]] = {
        "rollout": {"max_tokens": 100, "max_prompt_tokens": 100, "group_size": 4},
        "run": {"groups_per_step": 1},
        "trainer": {"micro_batch_tokens": 1000},
    }
    environment = {"max_turns": 4, "max_tokens": 101}
    exact = plan_of(False, **sections, environment={"python": True, **environment})
    plan = plan_of(False, **sections, environment={**how, **environment})
    assert (exact.work.batch_tokens, exact.tokens) == (100 + 4 * 100, 500)
    assert (plan.work.batch_tokens, plan.tokens) == (100 + 4 * 4 * 100, 1000)
    row = "sequences of an episode, at most"
    lines = ["\n".join(describe(one, DeviceCapacity())) for one in (exact, plan)]
    assert row not in lines[0] and f"{row} " in lines[1]


def test_what_is_estimated_is_told_and_refuses_nothing() -> None:
    plan = plan_of(
        trainer={"tensor_parallel": 4, "micro_batch_tokens": 65536}, rollout={"max_tokens": 8192}
    )
    room = DeviceCapacity(trainer=72 * GIB)
    refuse_impossible(plan, room)
    (fault,) = find_faults(plan, room)
    largest = plan.largest_micro_batch(room)
    assert fault.endswith(f"set trainer.micro_batch_tokens={largest} or less")
    mended = plan_of(
        trainer={"tensor_parallel": 4, "micro_batch_tokens": largest}, rollout={"max_tokens": 8192}
    )
    assert find_faults(mended, room) == ()


def test_where_no_completion_fits_the_layout_or_the_length_has_to_change() -> None:
    plan = plan_of(trainer={"tensor_parallel": 4}, rollout={"max_tokens": 16384})
    (fault,) = find_faults(plan, DeviceCapacity(trainer=48 * GIB))
    assert "no micro-batch of 17407 tokens fits" in fault
    assert "raise trainer.tensor_parallel" in fault


def test_nothing_is_said_of_devices_that_nobody_knows() -> None:
    plan = plan_of()
    refuse_impossible(plan, DeviceCapacity())
    assert find_faults(plan, DeviceCapacity()) == ()
    assert plan.largest_micro_batch(DeviceCapacity()) is None


def test_a_replica_that_cannot_hold_its_weights_or_one_sequence() -> None:
    plan = plan_of(trainer={"tensor_parallel": 4})
    (fault,) = find_faults(plan, DeviceCapacity(replica=16 * GIB))
    assert fault.startswith("rollout: the weights take 14.18 GiB")
    weights = plan.replica.weights / 0.85
    (fault,) = find_faults(plan, DeviceCapacity(replica=int(weights) + 2047 * KEYS))
    assert "one sequence of 2048 tokens" in fault


def test_on_a_cpu_everything_shares_the_host() -> None:
    plan = plan_of(on_host=True, rollout={"replicas": 2, "kv_cache_gib": 3})
    weights = 2 * QWEN25_7B.matrices
    fixed = RUNTIME + weights + weights + 2 * (weights + 3 * GIB)  # snapshot, shadow, replicas
    copy = 12 * QWEN25_7B.matrices  # of a checkpoint, while it is written
    assert plan.sure_on_host() == fixed + 18 * QWEN25_7B.matrices + copy
    assert plan.peak_on_host() == plan.sure_on_host() + plan.ranks[0].passing(plan.tokens)
    refuse_impossible(plan, DeviceCapacity(host=plan.sure_on_host()))
    with pytest.raises(InputError, match=r"this host: .*lower rollout\.replicas"):
        refuse_impossible(plan, DeviceCapacity(host=plan.sure_on_host() - 1))
    (fault,) = find_faults(plan, DeviceCapacity(host=plan.peak_on_host() - 1))
    assert "set trainer.micro_batch_tokens=" in fault
    assert find_faults(plan, DeviceCapacity(host=plan.peak_on_host())) == ()


def test_replicas_of_one_host_have_one_shadow() -> None:
    for transport, replicas, hosts, expected in (
        ("auto", 4, 1, 1),
        ("relay", 4, 1, 4),
        ("auto", 2, 2, 3),
    ):
        weight_sync = {"transport": transport}
        rollout = {"replicas": replicas, "hosts": hosts, "tensor_parallel": hosts}
        assert plan_of(rollout=rollout, weight_sync=weight_sync).num_shadows == expected


def test_colocated_pools_have_the_trainers_state_on_the_host() -> None:
    sections: dict[str, Any] = {
        "trainer": {"tensor_parallel": 4},
        "rollout": {"tensor_parallel": 4},
    }
    apart = plan_of(**sections)
    together = plan_of(**sections, run={"pools": "colocated"})
    away = sum(rank.weights + rank.optimizer for rank in apart.ranks)
    assert together.sure_on_host() == apart.sure_on_host() + away
    text = "\n".join(describe(together, DeviceCapacity()))
    of_rank = apart.ranks[0].weights + apart.ranks[0].optimizer
    for row, size in (("on the host", of_rank), ("the trainer's state", away)):
        assert re.search(rf"^{row} in the rollout's turn .*{number(size)}", text, re.M)


def test_ranks_on_a_cpu_have_equal_parts_of_what_others_leave() -> None:
    plan = plan_of(on_host=True, trainer={"data_parallel": 2})
    sender, other = plan.ranks
    assert (sender.snapshot, other.snapshot) == (2 * QWEN25_7B.matrices, 0)
    assert (sender.copied, other.copied) == (12 * QWEN25_7B.matrices, 0), "one of them saves"
    assert plan.rank_room(DeviceCapacity(host=plan.peak_on_host())) == other.peak(plan.tokens)


def test_ranks_that_take_the_same_stand_in_one_column() -> None:
    plan = plan_of(trainer={"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2})
    named = [name for name, _ in groups(plan.ranks)]
    assert named == ["0-1", "2-3", "4-5", "6-7"]  # data rank 1 sends nothing; the stages differ


def test_the_plan_names_every_part() -> None:
    text = "\n".join(
        describe(plan_of(trainer={"tensor_parallel": 4}), DeviceCapacity(80 * GIB, 80 * GIB))
    )
    for word in (
        *("parameters", "gradients", "moments", "activations", "logits", "snapshot", "shadow"),
        *("copy of a checkpoint", "copies of a checkpoint"),
        *("keys and values", "largest micro-batch", "peak"),
    ):
        assert word in text


def test_replayed_choices_are_in_the_plan_of_a_30b_model_by_hand() -> None:
    """64 groups of 16 completions of 8,192 tokens; 48 layers, 8 of 128 experts a token."""
    sizes = {"tensor_parallel": 4, "data_parallel": 8, "pipeline_parallel": 2}
    common: dict[str, Any] = {
        "run": {"groups_per_step": 64},
        "rollout": {"group_size": 16, "max_tokens": 8192, "max_prompt_tokens": 1024},
    }

    def of(**trainer: Any) -> MemoryPlan:
        run = configure(**common, trainer=sizes | trainer)
        return make_plan(run, QWEN3_30B, False, False)

    plain, plan = of(), of(router={"replay": True})
    step = 64 * (1024 + 16 * 8191) * 48 * 8
    assert plan.controller == 2 * step
    first, other = plan.ranks[0], plan.ranks[1]
    # In half of the layers: its eighth of the groups, as it came and as it is packed.
    assert other.replayed == 2 * step // 8 // 2
    assert first.replayed == step + other.replayed
    assert plan.sure_on_host() - plain.sure_on_host() == sum(
        (plan.controller, *(rank.replayed for rank in plan.ranks))
    )
    assert (plain.controller, plain.ranks[0].replayed) == (0, 0)
    text = "\n".join(describe(plan, DeviceCapacity(80 * GIB, 80 * GIB)))
    assert "choices of experts: controller" in text and "choices of experts on the host" in text
    assert "choices of experts" not in "\n".join(
        describe(plain, DeviceCapacity(80 * GIB, 80 * GIB))
    )


def test_a_run_that_recomputes_fits_larger_micro_batches() -> None:
    room = DeviceCapacity(trainer=80 * GIB)
    kept, again = (
        plan_of(trainer={"tensor_parallel": 4, "recompute": one}).largest_micro_batch(room)
        for one in (False, True)
    )
    assert kept is not None and again is not None and again > 2 * kept


def test_a_pipeline_says_how_long_its_stages_wait() -> None:
    plan = plan_of(trainer={"pipeline_parallel": 2, "pipeline_layers": [4, 24]})
    text = "\n".join(describe(plan, DeviceCapacity()))
    assert re.search(r"^stage of the pipeline.*\n-+\n.* 4 +24\n.* 85 +1$", text, re.M)
    assert "stage of" not in "\n".join(describe(plan_of(), DeviceCapacity()))
