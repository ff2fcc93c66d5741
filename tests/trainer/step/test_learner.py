from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from services.trainer.step.batch import PackedBatch
from services.trainer.step.learner import train_step
from services.trainer.step.learning_rate import learning_rate
from tests.trainer.batches import completion, random_batch, scored_group
from tests.trainer.conftest import MakeConfig
from tests.trainer.episodes import Tokens, episode, random_episodes
from tests.trainer.models import make_model
from tests.trainer.plain_policy import PlainPolicy
from tests.trainer.reference import loss_of, sequence_logprobs, with_rollout_logprobs
from trimaran.config import RunConfig, TrainerSection
from trimaran.telemetry.metrics import find_metric
from trimaran.telemetry.other_names import Facts, OtherNames
from trimaran.types import Score, TrainingBatch

STANDSTILL = {"learning_rate": 1e-30}


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return make_model("llama")


def run(
    model: torch.nn.Module, config: RunConfig, data_rank: int = 0
) -> tuple[float, torch.Tensor]:
    """The loss and the gradient that one rank adds."""
    policy = PlainPolicy(model, data_rank)
    batch = random_batch(1, config.run.groups_per_step)
    metrics = train_step(policy, batch, config).metrics
    return metrics["trainer/loss"], policy.gradients()


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize(("ranks", "tokens"), [(1, 1), (1, 60), (2, 4096), (2, 1), (4, 4096)])
def test_loss_and_gradient_are_equal_under_any_split(
    model: torch.nn.Module, make_config: MakeConfig, aggregation: str, ranks: int, tokens: int
) -> None:
    algorithm = {"aggregation": aggregation}
    whole_loss, whole = run(model, make_config(trainer=STANDSTILL, algorithm=algorithm))
    section = {**STANDSTILL, "data_parallel": ranks, "micro_batch_tokens": tokens}
    config = make_config(trainer=section, algorithm=algorithm)
    parts = [run(model, config, data_rank) for data_rank in range(ranks)]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole_loss, abs=1e-6)
    torch.testing.assert_close(sum(gradient for _, gradient in parts), whole, rtol=0, atol=1e-6)
    assert whole.abs().max() > 1e-2


@pytest.mark.parametrize(("ranks", "tokens"), [(1, 1), (1, 4096), (2, 60)])
def test_the_loss_of_episodes_is_the_one_worked_out_sequence_by_sequence(
    model: torch.nn.Module, make_config: MakeConfig, ranks: int, tokens: int
) -> None:
    batch = random_episodes(1)
    section = {**STANDSTILL, "data_parallel": ranks, "micro_batch_tokens": tokens}
    config = make_config(trainer=section)
    loss, gradient = 0.0, torch.zeros(())
    for data_rank in range(ranks):
        policy = PlainPolicy(model, data_rank)
        loss += train_step(policy, batch, config).metrics["trainer/loss"]
        gradient = gradient + policy.gradients()
    model.zero_grad()
    wanted = loss_of(model, batch, config)
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), abs=1e-6)
    torch.testing.assert_close(gradient, PlainPolicy(model).gradients(), rtol=0, atol=1e-6)
    assert gradient.abs().max() > 1e-2


@pytest.mark.parametrize("loss", ["ppo_clip", "gspo", "geometric_mean"])
@pytest.mark.parametrize(
    "aggregation", ["token_mean", "sequence_mean", "sequence_sum", {"type": "fixed", "tokens": 8}]
)
def test_an_episode_counts_as_one_completion_in_every_loss_and_aggregation(
    model: torch.nn.Module, make_config: MakeConfig, loss: str, aggregation: Any
) -> None:
    """What was sampled last is sampled behind the same tokens in a branch: nothing else may change, and
    whatever fits into a micro-batch."""
    ids = (7, 8, 30, 31, 9, 32, 6, 5)
    is_sampled = (True, True, False, False, True, False, True, True)
    whole = episode(Tokens(ids, is_sampled))
    parted = episode(Tokens(ids[:5], is_sampled[:5]), Tokens(ids, (*[False] * 6, *is_sampled[6:])))
    other = completion([2, 1, 3])
    config = make_config(
        run={"groups_per_step": 1},
        trainer={**STANDSTILL, "micro_batch_tokens": 1},
        algorithm={
            "loss": loss,
            "aggregation": aggregation,
            "correction": {"weights": "sequence", "geometric_bounds": [0.1, 10.0]},
        },
    )
    found = []
    for one in (whole, parted):
        policy = PlainPolicy(model)
        batch = TrainingBatch(1, (scored_group([4, 5], [one, other], [1.0, 0.0]),))
        batch = with_rollout_logprobs(model, batch, 0.75)
        metrics = train_step(policy, batch, config).metrics
        found.append(
            (metrics["trainer/loss"], metrics["trainer/trained_tokens"], policy.gradients())
        )
    (loss_of_one, tokens, gradient), (loss_of_two, same, again) = found
    assert tokens == same == 8
    assert loss_of_one == pytest.approx(loss_of_two, abs=1e-6)
    torch.testing.assert_close(gradient, again, rtol=0, atol=1e-6)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("algorithm", "passes"),
    [
        ({"loss": "ppo_clip"}, 3),
        ({"loss": "gspo"}, 2),
        ({"correction": {"weights": "sequence"}}, 2),
        ({"correction": {"geometric_bounds": [0.5, 2.0]}}, 2),
    ],
)
def test_branches_stand_together_only_where_a_loss_compares_their_tokens(
    model: torch.nn.Module, make_config: MakeConfig, algorithm: dict[str, Any], passes: int
) -> None:
    long = Tokens((7, 8, 30), (True, False, True))
    whole = episode(long, Tokens((9, 32, 6), (False, True, True)))
    batch = TrainingBatch(1, (scored_group([4, 5], [whole, completion([2, 1, 3])], [1.0, 0.0]),))
    trainer = {**STANDSTILL, "micro_batch_tokens": 1}
    config = make_config(run={"groups_per_step": 1}, trainer=trainer, algorithm=algorithm)
    policy = PlainPolicy(model)
    assert train_step(policy, batch, config).metrics["trainer/trained_tokens"] == 7
    assert policy.events.count("backward") == passes


def test_what_has_no_gradient_is_skipped_and_the_gradient_is_the_same(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    config = make_config(trainer=STANDSTILL)
    policy = PlainPolicy(model)
    metrics = train_step(policy, random_batch(1), config).metrics
    model_gradient = policy.gradients()
    model.zero_grad()
    # The reference goes through every scored completion.
    loss = loss_of(model, random_batch(1), config)
    loss.backward()
    torch.testing.assert_close(model_gradient, policy.gradients(), rtol=0, atol=1e-6)
    assert metrics["trainer/loss"] == pytest.approx(loss.item(), abs=1e-6)
    scored = [group for group in random_batch(1).groups if group.group.number != 2]
    needed = sum(
        len(group.group.prompt_token_ids)
        + sum(
            len(one.token_ids_T) - 1
            for one, verdict in zip(group.group.completions_G, group.verdicts_G, strict=True)
            if hasattr(verdict, "reward")
        )
        for group in scored
    )
    assert metrics["trainer/packed_tokens"] == needed


def test_one_update_takes_its_own_logprobs_as_old(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    policy = PlainPolicy(model)
    metrics = train_step(policy, random_batch(1), make_config(trainer=STANDSTILL)).metrics
    assert policy.events == ["backward", "update", "reduce"]
    assert metrics["trainer/policy/clipped/share"] == 0.0


def test_several_updates_measure_their_ratio_from_before_the_first(make_config: MakeConfig) -> None:
    policy = PlainPolicy(make_model("llama"))
    config = make_config(trainer={"learning_rate": 10.0}, algorithm={"updates_per_batch": 2})
    metrics = train_step(policy, random_batch(1), config).metrics
    assert policy.events == [*["forward"] * 2, "reduce", *["backward", "update"] * 2, "reduce"]
    assert metrics["trainer/policy/clipped/share"] > 0.0


def test_the_reference_is_asked_only_with_a_divergence_term(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    policy = PlainPolicy(model)
    config = make_config(trainer=STANDSTILL, algorithm={"kl": {"coefficient": 0.1}})
    metrics = train_step(policy, random_batch(1), config).metrics
    assert policy.events == ["reference", "reduce", "backward", "update", "reduce"]
    assert metrics["trainer/kl"] == pytest.approx(0.0, abs=1e-6)


def test_the_temperature_of_the_rollout_is_the_trainers(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    batch = with_rollout_logprobs(model, random_batch(1), 0.7)
    metrics = train_step(PlainPolicy(model), batch, make_config(trainer=STANDSTILL)).metrics
    assert metrics["trainer/computed/logprob_diff/mean"] < 1e-6
    assert metrics["trainer/computed/importance_weight/max"] == pytest.approx(1.0, abs=1e-5)


def test_metrics_say_over_which_tokens_they_are(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    """Group 2 has no advantage: its tokens count in the loss, and nothing is computed for them."""
    batch = random_batch(1)
    policy = PlainPolicy(model)
    metrics = train_step(policy, batch, make_config(trainer=STANDSTILL)).metrics
    with torch.no_grad():
        logprobs = [
            sequence_logprobs(model, group.group.prompt_token_ids, one, 0.7)[segment.start :]
            for group in batch.groups
            if group.group.number != 2
            for one, verdict in zip(group.group.completions_G, group.verdicts_G, strict=True)
            if isinstance(verdict, Score)
            for segment in one.segments[-1:]
        ]
    computed = torch.cat(logprobs)
    others = sum(len(one.token_ids_T) for one in batch.groups[2].group.completions_G)
    assert metrics["trainer/computed/tokens"] == len(computed)
    assert metrics["trainer/trained_tokens"] == len(computed) + others
    assert metrics["trainer/computed/entropy"] == pytest.approx(-computed.mean().item(), rel=1e-4)
    difference = (computed - -4.0).abs().mean().item()  # what every rollout gave
    assert metrics["trainer/computed/logprob_diff/mean"] == pytest.approx(difference, rel=1e-4)
    assert all(map(find_metric, metrics))
    assert "trainer/kl" not in metrics


def test_where_nothing_was_computed_nothing_was_measured(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    """An entropy of 0 would look like a policy that has collapsed."""
    batch = random_batch(1)
    equal = replace(batch, groups=(batch.groups[2],))
    metrics = train_step(PlainPolicy(model), equal, make_config(trainer=STANDSTILL)).metrics
    computed = {key: value for key, value in metrics.items() if "/computed/" in key}
    assert computed == {"trainer/computed/tokens": 0}
    assert metrics["trainer/trained_tokens"] > 0
    assert (metrics["trainer/loss"], metrics["trainer/grad_norm"]) == (0, 0)
    assert metrics["trainer/policy/clipped/share"] == 0
    names = OtherNames(("verl", "mindspeed-rl"), Facts(devices=2)).of(metrics)
    assert "actor/entropy" not in names
    assert names["actor/pg_clipfrac"] == 0


def test_each_epoch_trains_every_group_and_compares_with_the_policy_before_the_first(
    make_config: MakeConfig,
) -> None:
    algorithm = {"updates_per_batch": 2, "epochs": 2, "shuffle": True}
    config = make_config(trainer={"learning_rate": 1e-30}, algorithm=algorithm)
    policy = PlainPolicy(make_model("llama"))
    metrics = train_step(policy, random_batch(1), config).metrics
    assert policy.events[:2] == ["forward"] * 2  # for the old ones: the first epoch alone
    assert policy.events.count("update") == policy.events.count("backward") == 4
    once = train_step(PlainPolicy(policy.model), random_batch(1), make_config()).metrics
    assert metrics["trainer/trained_tokens"] == 2 * once["trainer/trained_tokens"]
    # Packed in other shapes in the second epoch, the ratios are 1 all the same, up to rounding.
    assert metrics["trainer/loss"] == pytest.approx(once["trainer/loss"], abs=0.5)
    assert metrics["trainer/policy/clipped/share"] == 0.0


def test_the_kl_in_the_reward_is_taken_off_before_the_advantages(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    """Against a reference that likes one token less: the completions with it are worth less."""

    class Disliking(PlainPolicy):
        def forward_reference(self, micro_batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
            self.events += ["reference"] * len(micro_batches)
            return [
                self._outputs(packed, False).logprobs_M - (packed.completions_M == 0).float()
                for packed in micro_batches
            ]

    algorithm = {
        "kl": {"coefficient": 0.1, "place": "reward", "estimator": "k1"},
        "advantage": {"normalize_std": False},
    }
    one = random_batch(1)
    batch = type(one)(1, one.groups[2:3])  # equal rewards: all signal is the penalty
    config = make_config(trainer=STANDSTILL, run={"groups_per_step": 1}, algorithm=algorithm)
    policy = Disliking(model)
    metrics = train_step(policy, batch, config).metrics
    events = "forward reduce reference reduce backward update reduce"
    assert policy.events == events.split()
    lengths = [len(one.token_ids_T) for one in batch.groups[0].group.completions_G]
    assert metrics["trainer/kl"] == pytest.approx(lengths[0] / sum(lengths), rel=1e-5)
    # Of the first completion: its penalty, less the group's mean of penalties.
    penalty = 0.1 * lengths[0]
    advantages = [-penalty * 2 / 3, penalty / 3, penalty / 3]
    losses = []
    for one, advantage in zip(batch.groups[0].group.completions_G, advantages, strict=True):
        prompt = batch.groups[0].group.prompt_token_ids
        logprobs = sequence_logprobs(model, prompt, one, 0.7).detach()
        weights = (logprobs - torch.tensor(one.logprobs_S)).exp().clamp(max=2.0)
        losses.append(-(weights * advantage).sum())
    assert metrics["trainer/loss"] == pytest.approx(
        torch.stack(losses).sum().item() / sum(lengths), rel=1e-4
    )


def test_the_coefficient_follows_its_target_from_step_to_step(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    adaptive = {"target": 0.1, "horizon": 64}
    config = make_config(
        trainer=STANDSTILL,
        rollout={"group_size": 8},
        algorithm={"kl": {"coefficient": 0.5, "adaptive": adaptive}},
    )
    policy, batch = PlainPolicy(model), random_batch(1)
    first = train_step(policy, batch, config).metrics
    assert first["trainer/kl_coefficient"] == 0.5
    above = {"trainer/kl_coefficient": 0.5, "trainer/kl": 0.4}
    # 32 of 64 completions, and an error of a fifth at most.
    assert train_step(policy, batch, config, above).metrics["trainer/kl_coefficient"] == 0.5 * 1.1
    below = {"trainer/kl_coefficient": 0.5, "trainer/kl": 0.0}
    assert train_step(policy, batch, config, below).metrics["trainer/kl_coefficient"] == 0.5 * 0.9
    # A step without an update has no KL, and hands the coefficient on.
    none = {"trainer/kl_coefficient": 0.25}
    assert train_step(policy, batch, config, none).metrics["trainer/kl_coefficient"] == 0.25


def test_an_entropy_bonus_adds_its_gradient_and_computes_every_token(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    plain, bonus = PlainPolicy(model), PlainPolicy(model)
    usual = train_step(plain, random_batch(1), make_config(trainer=STANDSTILL)).metrics
    gradient = plain.gradients()
    config = make_config(trainer=STANDSTILL, algorithm={"entropy": {"coefficient": 0.3}})
    metrics = train_step(bonus, random_batch(1), config).metrics
    assert metrics["trainer/computed/tokens"] == metrics["trainer/trained_tokens"]
    entropy = metrics["trainer/computed/exact_entropy"]
    assert metrics["trainer/loss"] == pytest.approx(usual["trainer/loss"] - 0.3 * entropy, rel=1e-4)
    assert (bonus.gradients() - gradient).abs().max() > 1e-3
    measured = make_config(trainer=STANDSTILL, algorithm={"entropy": {"exact": True}})
    metrics = train_step(plain, random_batch(1), measured).metrics
    assert torch.equal(plain.gradients(), gradient)
    assert 0 < metrics["trainer/computed/exact_entropy"] < 5


def test_the_ratio_may_be_to_the_rollouts_own_numbers(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    """Then nothing is left to correct, and the clip sees the difference."""
    algorithm = {"correction": {"old": "rollout"}}
    config = make_config(trainer=STANDSTILL, algorithm=algorithm)
    metrics = train_step(PlainPolicy(model), random_batch(1), config).metrics
    assert metrics["trainer/computed/importance_weight/max"] == 1.0
    assert metrics["trainer/policy/clipped/share"] > 0.0
    assert metrics["trainer/computed/logprob_diff/mean"] > 0.01


def test_truncated_completions_that_are_masked_train_nothing(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    batch = random_batch(1)
    group = batch.groups[0].group
    cut = replace(group.completions_G[0], finish_reason="length")
    group = replace(group, completions_G=(cut, *group.completions_G[1:]))
    batch = replace(batch, groups=(replace(batch.groups[0], group=group), *batch.groups[1:]))
    trained = []
    for truncated in ("train", "mask"):
        config = make_config(trainer=STANDSTILL, algorithm={"truncated": truncated})
        metrics = train_step(PlainPolicy(model), batch, config).metrics
        trained.append(metrics["trainer/trained_tokens"])
    assert trained[0] - trained[1] == len(cut.token_ids_T)


def test_the_learning_rate_falls_to_its_least_at_the_last_step() -> None:
    rates: dict[Any, list[float]] = {
        "constant": [0.5, 1.0, 1.0, 1.0, 1.0],
        "linear": [0.5, 1.0, 0.775, 0.1, 0.1],
        "cosine": [0.5, 1.0, 0.1 + 0.9 * (1 + 2**-0.5) / 2, 0.1, 0.1],
    }
    for schedule, wanted in rates.items():
        section = TrainerSection(
            learning_rate=1.0, warmup_steps=10, schedule=schedule, min_learning_rate=0.1
        )
        found = [learning_rate(section, step, 110) for step in (5, 10, 35, 110, 200)]
        assert found == pytest.approx(wanted)


def test_a_step_has_the_rate_of_the_total_that_its_batch_bears(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    """A run may be extended, and a replay meets both totals."""
    config = make_config(run={"steps": 7}, trainer={"learning_rate": 1e-20, "schedule": "linear"})
    rates = [
        train_step(
            PlainPolicy(model), replace(random_batch(2), num_steps=num_steps), config
        ).metrics["trainer/learning_rate"]
        for num_steps in (2, 4)
    ]
    assert rates == pytest.approx([0.0, 0.5e-20], rel=1e-6, abs=0)
