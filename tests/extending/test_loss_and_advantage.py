"""The recipes of a loss and of an advantage, in real steps of a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.extending.recipes import Recipe
from trimaran.config import RunConfig, parse_config

torch = pytest.importorskip("torch", reason="torch is not installed; the trainer needs it")

Follow = Callable[[str], Recipe]
STANDSTILL = 1e-30
"""A learning rate."""


def configure(**algorithm: Any) -> RunConfig:
    return parse_config(
        {
            "run": {"groups_per_step": 4},
            "model": {"path": "unused"},
            "data": {"train": "unused"},
            "reward": {"rules": {"exact_match": 1}},
            "trainer": {"learning_rate": STANDSTILL},
            "algorithm": algorithm,
        }
    )


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
    assert metrics["trainer/grad_norm"] == pytest.approx(usual["trainer/grad_norm"], rel=1e-5)
    key = "trainer/computed/importance_weight/mean"
    assert metrics[key] == usual[key]


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


def test_both_and_the_aggregation_together(follow: Follow, model: Any) -> None:
    named = follow("A loss").run["algorithm"] | follow("An advantage").run["algorithm"]
    assert named.keys() == {"loss", "advantage", "aggregation"}
    metrics, gradient = step(model, **named, updates_per_batch=2, kl={"coefficient": 0.1})
    assert metrics["trainer/nonfinite_updates"] == 0
    assert gradient.isfinite().all() and gradient.abs().max() > 0


def test_a_broken_loss_is_refused_with_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.extending.packages import install
    from trimaran.errors import InputError

    monkeypatch.syspath_prepend(install(tmp_path, {"trimaran.losses": {"mine": "nowhere:loss"}}))
    with pytest.raises(InputError, match=r"trimaran\.losses: mine = nowhere:loss cannot be loaded"):
        configure(loss="mine")


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("loss", "services.trainer.grpo.aggregations:TokenMean"),
        ("advantage", "services.trainer.grpo.losses:PpoClip"),
        ("aggregation", "services.trainer.grpo.advantages:Rloo"),
        ("loss", "json:dumps"),
    ],
)
def test_what_is_no_such_class_is_refused_with_the_configuration(
    key: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.extending.packages import install
    from trimaran.errors import InputError

    group = {"loss": "trimaran.losses"}.get(key, f"trimaran.{key}s")
    monkeypatch.syspath_prepend(install(tmp_path, {group: {"mine": place}}))
    kind = key.capitalize()
    with pytest.raises(
        InputError, match=rf"algorithm\.{key}: .*mine: .* does not derive from .*\.kinds\.{kind};"
    ):
        configure(**{key: "mine"})


def test_a_wrong_object_is_refused_as_its_name_is() -> None:
    from services.trainer.grpo.aggregations import TokenMean
    from trimaran.errors import InputError

    with pytest.raises(
        InputError, match=r"algorithm\.loss: .*TokenMean.* does not derive from .*Loss"
    ):
        configure(loss=TokenMean())
