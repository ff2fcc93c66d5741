"""Numbers that are not finite: an update with one changes nothing and names its group."""

from __future__ import annotations

import json

import pytest
import torch

from services.trainer.step.batch import PackedBatch
from services.trainer.step.learner import StepResult, train_step
from services.trainer.step.outputs import TokenOutputs
from tests.trainer.batches import random_batch
from tests.trainer.broken import bad_batch, change, exploding_batch, with_rewards
from tests.trainer.conftest import MakeConfig
from tests.trainer.models import make_model
from tests.trainer.plain_policy import PlainPolicy
from trimaran.config import RunConfig
from trimaran.types import TrainingBatch

NAN, INF = float("nan"), float("inf")
FAST = {"learning_rate": 0.1}
PLAIN = {"advantage": {"normalize_std": False}}


@pytest.fixture
def policy() -> PlainPolicy:
    return PlainPolicy(make_model("llama"))


def weights_of(policy: PlainPolicy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()])


def check_left_out(policy: PlainPolicy, batch: TrainingBatch, config: RunConfig) -> StepResult:
    """Nothing changed, and the row can be written."""
    before = weights_of(policy)
    result = train_step(policy, batch, config)
    assert torch.equal(weights_of(policy), before)
    assert "update" not in policy.events
    assert result.metrics["trainer/nonfinite_updates"] == 1.0
    json.dumps(result.metrics, allow_nan=False)
    return result


@pytest.mark.parametrize("logprob", [NAN, INF, -INF])
def test_a_rollout_logprob_that_is_not_finite_never_reaches_the_forward_pass(
    policy: PlainPolicy, make_config: MakeConfig, logprob: float
) -> None:
    result = check_left_out(policy, bad_batch(1, logprob), make_config(trainer=FAST))
    assert not {"forward", "backward", "reference"} & set(policy.events)
    fault = f"group 1: completion 0: log-probability {logprob} of token 1, from r"
    assert result.nonfinite == fault


@pytest.mark.parametrize("reward", [NAN, INF, -INF])
def test_a_reward_that_is_not_finite_is_named(
    policy: PlainPolicy, make_config: MakeConfig, reward: float
) -> None:
    batch = random_batch(1)
    batch = change(batch, 3, with_rewards(batch.groups[3], 1.0, reward, 0.0))
    result = check_left_out(policy, batch, make_config(trainer=FAST))
    assert result.nonfinite == f"group 3: completion 1: reward {reward}"


@pytest.mark.parametrize("huge", [1e200, 1.5e308])
def test_rewards_whose_deviation_overflows_are_named_and_train_nothing(
    policy: PlainPolicy, make_config: MakeConfig, huge: float
) -> None:
    """Else every advantage would be 0, and weight decay alone would change the weights."""
    batch = random_batch(1)
    for place, scored in enumerate(batch.groups):
        batch = change(batch, place, with_rewards(scored, huge, -huge, huge))
    nonfinite = check_left_out(policy, batch, make_config(trainer=FAST)).nonfinite
    assert f"group 0: completion 0: reward {huge}" in nonfinite


def test_a_gradient_that_is_not_finite_leaves_the_update_out(
    policy: PlainPolicy, make_config: MakeConfig
) -> None:
    """All losses are finite."""
    config = make_config(trainer=FAST, algorithm=PLAIN)
    result = check_left_out(policy, exploding_batch(1), config)
    assert result.nonfinite == "groups 0 to 3: their loss or gradient is not finite"


class Unsteady(PlainPolicy):
    """Its log-probability of the token `broken` is not finite, whatever the weights."""

    value = NAN
    broken = -1

    def _outputs(self, packed: PackedBatch, entropy: bool) -> TokenOutputs:
        logprobs_M = super()._outputs(packed, entropy).logprobs_M
        return TokenOutputs(torch.where(packed.targets_M == self.broken, self.value, logprobs_M))


@pytest.mark.parametrize("value", [NAN, -INF])
@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("updates", [1, 2])
def test_a_logprob_of_the_trainer_that_is_not_finite_is_found_behind_every_limit(
    make_config: MakeConfig, value: float, kl: float, updates: int
) -> None:
    """Limited exponents make finite losses of infinite log-probabilities."""
    policy = Unsteady(make_model("llama"))
    batch = random_batch(1)
    # A token that only one group has.
    tokens = [{t for c in g.group.completions_G for t in c.token_ids_T[1:]} for g in batch.groups]
    policy.value, policy.broken = value, min(tokens[1] - tokens[0] - tokens[2] - tokens[3])
    algorithm = {"kl": {"coefficient": kl}, "updates_per_batch": updates}
    before = weights_of(policy)
    config = make_config(trainer=FAST, algorithm=algorithm)
    result = train_step(policy, batch, config)
    assert result.nonfinite.endswith("their loss or gradient is not finite")
    assert policy.events.count("update") == updates - 1
    assert weights_of(policy).isfinite().all()
    assert torch.equal(weights_of(policy), before) == (updates == 1)


def test_the_other_updates_of_a_step_are_made(make_config: MakeConfig) -> None:
    """Groups 0 and 1 are the first update, with the bad one; 2 and 3 are the second."""
    config = make_config(trainer=FAST, algorithm={"updates_per_batch": 2})
    policy = PlainPolicy(make_model("llama"))
    result = train_step(policy, bad_batch(1), config)
    assert policy.events == ["forward", "forward", "reduce", "backward", "update", "reduce"]
    assert result.metrics["trainer/nonfinite_updates"] == 1.0
    alone = PlainPolicy(make_model("llama"))
    half = TrainingBatch(1, random_batch(1).groups[2:])
    train_step(alone, half, make_config(trainer=FAST, run={"groups_per_step": 2}))
    assert torch.equal(weights_of(policy), weights_of(alone))


def test_a_rank_whose_own_numbers_are_finite_leaves_the_update_out_with_the_others(
    make_config: MakeConfig,
) -> None:
    class WithABadNeighbour(PlainPolicy):
        def any_rank(self, flags: torch.Tensor) -> torch.Tensor:
            self.events.append("any rank")
            return torch.ones_like(flags)

    policy = WithABadNeighbour(make_model("llama"))
    result = check_left_out(policy, random_batch(1), make_config(trainer=FAST))
    assert result.nonfinite == "groups 0 to 3: their loss or gradient is not finite"


def test_a_group_beside_a_bad_one_is_looked_up_for_its_next_epoch(make_config: MakeConfig) -> None:
    """Else it would be compared with log-probabilities of 0, which are finite and wrong."""
    algorithm = {"updates_per_batch": 2, "epochs": 2, "shuffle": True, "kl": {"coefficient": 0.1}}
    config = make_config(trainer={"learning_rate": 1e-30}, algorithm=algorithm)
    for step in range(1, 6):
        policy = PlainPolicy(make_model("llama"))
        metrics = train_step(policy, bad_batch(step), config).metrics
        assert metrics["trainer/kl"] == pytest.approx(0.0, abs=1e-5)
        assert metrics["trainer/policy/clipped/share"] == 0.0


@pytest.mark.parametrize("advantage", ["reinforce_pp", {"type": "group", "whiten": True}])
@pytest.mark.parametrize("kl", [{}, {"coefficient": 0.1, "place": "reward"}])
def test_a_bad_group_does_not_spoil_the_statistics_of_the_batch(
    make_config: MakeConfig, advantage: object, kl: dict[str, object]
) -> None:
    algorithm = {"updates_per_batch": 4, "advantage": advantage, "kl": kl}
    config = make_config(trainer=FAST, algorithm=algorithm)
    batch = random_batch(1)
    batch = change(batch, 3, with_rewards(batch.groups[3], 1.0, NAN, 0.0))
    result = train_step(PlainPolicy(make_model("llama")), batch, config)
    assert result.nonfinite == "group 3: completion 1: reward nan"
    assert result.metrics["trainer/nonfinite_updates"] == 1.0
