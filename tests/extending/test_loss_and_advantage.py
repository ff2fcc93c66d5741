"""The recipes of a loss and of an advantage, in real steps of a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import configs
from tests.extending.recipes import Recipe
from trimaran.config import RunConfig

torch = pytest.importorskip("torch", reason="torch is not installed; the trainer needs it")

Follow = Callable[[str], Recipe]
STANDSTILL = 1e-30
"""A learning rate."""


def configure(**algorithm: Any) -> RunConfig:
    run, trainer = {"groups_per_step": 4}, {"learning_rate": STANDSTILL}
    return configs.configure(run=run, trainer=trainer, algorithm=algorithm)


@pytest.fixture(scope="module")
def model() -> Any:
    from tests.trainer.models import make_model

    return make_model("llama")


def step(model: Any, **algorithm: Any) -> tuple[dict[str, float], Any]:
    """The metrics and the gradient of one step."""
    from services.trainer.step.learner import train_step
    from tests.trainer.batches import random_batch
    from tests.trainer.plain_policy import PlainPolicy

    policy = PlainPolicy(model)
    metrics = train_step(policy, random_batch(1), configure(**algorithm)).metrics
    return metrics, policy.gradients()


def test_the_loss_trains_and_has_the_gradient_that_the_recipe_promises(
    follow: Follow, model: Any
) -> None:
    usual, usual_gradient = step(model)
    named = follow("A loss").run["algorithm"]["loss"]
    metrics, gradient = step(model, loss=named)
    assert 0 < metrics["trainer/policy/pushed_up/share"] < 1
    torch.testing.assert_close(gradient, usual_gradient, rtol=0, atol=1e-6)
    assert gradient.abs().max() > 1e-2
    # Its value is not: it has logprobs where ppo_clip has ratios, which are 1.
    assert abs(metrics["trainer/loss"] - usual["trainer/loss"]) > 0.01


def test_the_aggregation_weighs_tokens(follow: Follow, model: Any) -> None:
    from tests.trainer.batches import random_batch

    named = follow("A loss").run["algorithm"]["aggregation"]
    usual_metrics, usual = step(model)
    _, gradient = step(model, aggregation=named)
    groups = random_batch(1).groups
    num_scored = sum(len(group.verdicts_G) for group in groups) - 1  # one is faulted
    scale = usual_metrics["trainer/trained_tokens"] / (num_scored * 1024)
    torch.testing.assert_close(gradient, usual * scale, rtol=1e-4, atol=1e-8)


def test_the_advantage_is_the_rewards_distance_from_the_others(follow: Follow, model: Any) -> None:
    from services.trainer.grpo.kinds import Rewards

    named = follow("An advantage").run["algorithm"]["advantage"]
    advantage: Any = configure(advantage=named).algorithm.advantage

    def of(groups: list[int], rewards: list[float]) -> list[float]:
        totals, lengths = torch.tensor(rewards).double(), torch.ones(len(rewards)).long()
        return advantage(Rewards(totals, {}, {}, torch.tensor(groups), lengths, lengths)).tolist()

    assert of([0, 0, 0, 1, 1], [1.0, 0.0, 0.5, 1.0, 0.0]) == [0.75, -0.75, 0.0, 1.0, -1.0]
    assert of([0, 0, 0, 1], [0.1, 0.1, 0.1, 1.0]) == [0.0] * 4
    _, usual = step(model)
    _, gradient = step(model, advantage=named)
    assert (gradient - usual).abs().max() > 1e-3


def test_a_wrong_object_is_refused_as_its_name_is() -> None:
    from services.trainer.grpo.aggregations import TokenMean
    from trimaran.errors import InputError

    with pytest.raises(
        InputError, match=r"algorithm\.loss: .*TokenMean.* does not derive from .*Loss"
    ):
        configure(loss=TokenMean())
