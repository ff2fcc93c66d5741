"""A recipe sets what a paper sets, and gives way to what the run says itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.configs import configure
from trimaran.config import RunConfig, config_to_tree, parse_config
from trimaran.config.recipes import RECIPES
from trimaran.errors import InputError


def config_of(algorithm: dict[str, Any], **sections: Any) -> RunConfig:
    rules = {"rules": {"exact": 1}}
    return configure(**{"reward": rules, **sections, "algorithm": algorithm})


def test_dapo_is_clip_higher_dynamic_sampling_token_level_and_overlong_shaping() -> None:
    config = config_of({"recipe": "dapo"}, rollout={"max_tokens": 20480})
    loss: Any = config.algorithm.loss
    assert (loss.type, loss.clip_low, loss.clip_high) == ("ppo_clip", 0.2, 0.28)
    assert config.algorithm.aggregation.type == "token_mean"
    sampling = config.algorithm.dynamic_sampling
    assert sampling and sampling.term == "exact"
    assert config.algorithm.kl.coefficient == 0.0
    weights = {name: rule.weight for name, rule in config.reward.rules.items()}
    assert weights == {"exact": 1.0, "overlong": 1.0}


def test_what_the_run_gives_goes_before() -> None:
    algorithm = {"recipe": "dapo", "loss": {"clip_high": 0.3}, "dynamic_sampling": None}
    rules = {"exact": 1, "overlong": {"weight": 0.5, "options": {"max_tokens": 9}}}
    config = config_of(algorithm, reward={"rules": rules})
    loss: Any = config.algorithm.loss
    assert (loss.clip_low, loss.clip_high) == (0.2, 0.3)
    assert config.algorithm.dynamic_sampling is None
    assert config.reward.rules["overlong"].weight == 0.5
    assert config.reward.rules["overlong"].options == {"max_tokens": 9}
    length = {"exact": 1, "length": {"rule": "overlong"}}
    rules_of = config_of({"recipe": "dapo"}, reward={"rules": length}).reward.rules
    assert list(rules_of) == ["exact", "length"]
    other: Any = config_of({"recipe": "dapo", "loss": {"type": "gspo"}}).algorithm.loss
    assert other.clip_high == 4e-4


def test_dr_grpo_divides_by_the_longest_completion() -> None:
    config = config_of({"recipe": "dr_grpo"}, rollout={"max_tokens": 3000})
    advantage: Any = config.algorithm.advantage
    aggregation: Any = config.algorithm.aggregation
    assert (advantage.normalize_std, aggregation.type, aggregation.tokens) == (False, "fixed", 3000)
    environment = {"python": True, "max_tokens": 5000}
    episodes = config_of({"recipe": "dr_grpo"}, environment=environment).algorithm.aggregation
    assert episodes.model_dump()["tokens"] == 5000
    aggregation = config_of({"recipe": "dr_grpo"}).algorithm.aggregation
    assert aggregation.tokens == config_of({}).rollout.max_tokens


def test_options_without_a_type_are_those_of_the_recipe() -> None:
    loss: Any = config_of({"recipe": "gspo", "loss": {"clip_low": 0.001}}).algorithm.loss
    assert (loss.type, loss.clip_low, loss.clip_high) == ("gspo", 0.001, 4e-4)
    aggregation = config_of({"recipe": "grpo", "aggregation": {}}).algorithm.aggregation
    assert aggregation.type == "sequence_mean"
    named: Any = config_of({"recipe": "dapo", "loss": "ppo_clip"}).algorithm.loss
    assert named.clip_high == 0.28


@pytest.mark.parametrize("name", RECIPES)
def test_a_resolved_recipe_reads_back(name: str) -> None:
    config = config_of({"recipe": name})
    assert parse_config(config_to_tree(config)) == config


def test_an_unknown_recipe_is_an_error_and_brings_no_reward_with_it() -> None:
    with pytest.raises(InputError, match=r"algorithm\.recipe: .*'dapo'"):
        config_of({"recipe": "dappo"})
    with pytest.raises(InputError, match=r"reward\.rules: missing"):
        parse_config(
            {"model": {"path": "m"}, "data": {"train": "t"}, "algorithm": {"recipe": "dapo"}}
        )
