from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from services.trainer.learner import train_step
from tests.trainer.batches import random_batch
from tests.trainer.models import make_model
from tests.trainer.plain_policy import PlainPolicy
from tests.trainer.reference import loss_of, sequence_logprobs, with_rollout_logprobs
from trimaran.config import RunConfig
from trimaran.metrics import find_metric
from trimaran.types import Score

MakeConfig = Callable[..., RunConfig]
STANDSTILL = {"learning_rate": 1e-30}


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return make_model("llama")


def run(
    model: torch.nn.Module, config: RunConfig, data_rank: int = 0
) -> tuple[float, torch.Tensor]:
    """The loss and the gradient that one rank adds."""
    policy = PlainPolicy(model, data_rank)
    metrics = train_step(policy, random_batch(1), config).metrics
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
    assert policy.events == ["logprobs", "update", "reduce"]
    assert metrics["trainer/clipped/share"] == 0.0


def test_several_updates_measure_their_ratio_from_before_the_first(
    make_config: MakeConfig,
) -> None:
    policy = PlainPolicy(make_model("llama"))
    config = make_config(trainer={"learning_rate": 10.0}, algorithm={"updates_per_batch": 2})
    metrics = train_step(policy, random_batch(1), config).metrics
    assert policy.events == [*["old logprobs"] * 2, *["logprobs", "update"] * 2, "reduce"]
    assert metrics["trainer/clipped/share"] > 0.0


def test_the_reference_is_asked_only_with_a_divergence_term(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    policy = PlainPolicy(model)
    config = make_config(trainer=STANDSTILL, algorithm={"kl_coefficient": 0.1})
    metrics = train_step(policy, random_batch(1), config).metrics
    assert policy.events == ["reference", "logprobs", "update", "reduce"]
    assert metrics["trainer/kl"] == pytest.approx(0.0, abs=1e-6)


def test_the_temperature_of_the_rollout_is_the_trainers(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    batch = with_rollout_logprobs(model, random_batch(1), 0.7)
    metrics = train_step(PlainPolicy(model), batch, make_config(trainer=STANDSTILL)).metrics
    assert metrics["trainer/computed/logprob_diff/mean"] < 1e-6
    assert metrics["trainer/computed/importance_weight/max"] == pytest.approx(1.0, abs=1e-5)


def test_warm_up_is_linear(model: torch.nn.Module, make_config: MakeConfig) -> None:
    config = make_config(trainer={"learning_rate": 1e-20, "warmup_steps": 4})
    rates = [
        train_step(PlainPolicy(model), random_batch(step), config).metrics["trainer/learning_rate"]
        for step in (1, 3, 4, 9)
    ]
    assert rates == pytest.approx([0.25e-20, 0.75e-20, 1e-20, 1e-20])


def test_a_batch_without_any_signal_still_answers(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    batch = random_batch(1)
    equal = type(batch)(1, (batch.groups[2],) * 4)
    policy = PlainPolicy(model)
    metrics = train_step(policy, equal, make_config(trainer=STANDSTILL)).metrics
    assert policy.events == ["update", "reduce"]
    assert metrics["trainer/packed_tokens"] == metrics["trainer/loss"] == 0.0


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
    partial = {"entropy", "logprob_diff/mean", "importance_weight/mean", "importance_weight/max"}
    assert {name.partition("computed/")[2] for name in metrics} - {""} == {"tokens", *partial}
    assert "trainer/kl" not in metrics


def test_with_a_divergence_term_every_trained_token_is_computed(
    model: torch.nn.Module, make_config: MakeConfig
) -> None:
    config = make_config(trainer=STANDSTILL, algorithm={"kl_coefficient": 0.1})
    metrics = train_step(PlainPolicy(model), random_batch(1), config).metrics
    assert metrics["trainer/computed/tokens"] == metrics["trainer/trained_tokens"] > 0
    assert "trainer/kl" in metrics
    assert all(map(find_metric, metrics))


def test_the_clipped_share_is_over_all_trained_tokens(make_config: MakeConfig) -> None:
    """A token without an advantage is never clipped, computed or not."""
    fractions = []
    for kl in (0.0, 1e-30):  # the latter computes all, and changes nothing
        algorithm = {"updates_per_batch": 2, "kl_coefficient": kl}
        config = make_config(trainer={"learning_rate": 10.0}, algorithm=algorithm)
        metrics = train_step(PlainPolicy(make_model("llama")), random_batch(1), config).metrics
        fractions.append(metrics["trainer/clipped/share"])
    assert fractions[0] == pytest.approx(fractions[1])
    assert fractions[0] > 0
