"""Published algorithms by name: the keys that each sets. `algorithm: {recipe: dapo}`

What a run gives itself goes before. docs/algorithms.md names the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, get_args

Tree = dict[str, Any]
RecipeName = Literal["grpo", "dr_grpo", "dapo", "gspo"]


def _grpo(max_tokens: int) -> Tree:
    return {"algorithm": {"aggregation": "sequence_mean", "kl": {"coefficient": 0.04}}}


def _dr_grpo(max_tokens: int) -> Tree:
    advantage = {"type": "group", "normalize_std": False}
    aggregation = {"type": "fixed", "tokens": max_tokens}
    return {"algorithm": {"advantage": advantage, "aggregation": aggregation}}


def _dapo(max_tokens: int) -> Tree:
    return {
        "algorithm": {
            "loss": {"type": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28},
            "aggregation": "token_mean",
            "dynamic_sampling": {"max_replaced": 10},
        },
        "reward": {"rules": {"overlong": {"options": {"max_tokens": max_tokens}}}},
    }


def _gspo(max_tokens: int) -> Tree:
    return {"algorithm": {"loss": "gspo", "aggregation": "sequence_mean"}}


RECIPES: Mapping[str, Callable[[int], Tree]] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "dapo": _dapo,
    "gspo": _gspo,
}
"""Name -> function of `rollout.max_tokens`."""
assert RECIPES.keys() == set(get_args(RecipeName))


def follow_recipe(tree: Mapping[str, Any], max_tokens: int) -> Tree:
    """The configuration `tree` with what its `algorithm.recipe` sets, where it names one.

    Example: follow_recipe({"algorithm": {"recipe": "gspo"}}, 1024)["algorithm"]["loss"] == "gspo"
    """
    given = dict(tree)
    name = _branch(given.get("algorithm")).get("recipe")
    if not isinstance(name, str) or name not in RECIPES:
        return given
    recipe = RECIPES[name](max_tokens)
    if not _branch(given.get("reward")).get("rules"):
        recipe.pop("reward", None)  # a shaping term alone is no reward
    return _merge(recipe, given)


def _merge(recipe: Tree, given: Mapping[str, Any]) -> Tree:
    merged = {**recipe, **given}
    for key in recipe.keys() & given.keys():
        if isinstance(recipe[key], dict) and isinstance(given[key], dict):
            mine, theirs = _branch(recipe[key]), _branch(given[key])
            is_same_type = theirs.get("type", mine.get("type")) == mine.get("type")
            merged[key] = _merge(mine, theirs) if is_same_type else theirs
    return merged


def _branch(value: Any) -> Tree:
    return cast(Tree, value) if isinstance(value, dict) else {}
