"""Published algorithms by name: the keys that each sets. `algorithm: {recipe: dapo}`

What a run gives itself goes before. docs/algorithms.md names the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, get_args

Tree = dict[str, Any]
RecipeName = Literal["grpo", "dr_grpo", "dapo", "gspo"]


def _grpo(max_tokens: int) -> Tree:
    return {"aggregation": {"type": "sequence_mean"}, "kl": {"coefficient": 0.04}}


def _dr_grpo(max_tokens: int) -> Tree:
    advantage = {"type": "group", "normalize_std": False}
    return {"advantage": advantage, "aggregation": {"type": "fixed", "tokens": max_tokens}}


def _dapo(max_tokens: int) -> Tree:
    return {
        "loss": {"type": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28},
        "aggregation": {"type": "token_mean"},
        "dynamic_sampling": {"max_replaced": 10},
    }


def _gspo(max_tokens: int) -> Tree:
    return {"loss": {"type": "gspo"}, "aggregation": {"type": "sequence_mean"}}


RECIPES: Mapping[str, Callable[[int], Tree]] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "dapo": _dapo,
    "gspo": _gspo,
}
"""Name -> function of the longest completion that gives the section `algorithm`: `rollout.max_tokens`, or
`environment.max_tokens` where a run has one."""
OVERLONG = "overlong"
"""The reward rule of DAPO's overlong shaping."""
assert RECIPES.keys() == set(get_args(RecipeName))


def follow_recipe(tree: Mapping[str, Any], max_tokens: int) -> Tree:
    """The configuration `tree` with what its `algorithm.recipe` sets, where it names one.

    Example: follow_recipe({"algorithm": {"recipe": "gspo"}}, 1024)["algorithm"]["loss"] == {"type": "gspo"}
    """
    algorithm = _branch(tree.get("algorithm"))
    name = algorithm.get("recipe")
    if not isinstance(name, str) or name not in RECIPES:
        return dict(tree)
    recipe = RECIPES[name](max_tokens)
    followed = {**tree, "algorithm": _merge(recipe, algorithm)}
    if name == "dapo" and (rules := _branch(_branch(tree.get("reward")).get("rules"))):
        _shape(followed, rules)
    return followed


def _shape(tree: Tree, rules: Tree) -> None:
    """Answers that are nearly too long cost a little. Where the rest of the reward is one term,
    groups that are right or wrong throughout are found by that term."""
    others = [term for term, rule in rules.items() if _rule_of(term, rule) != OVERLONG]
    if len(others) == len(rules):
        tree["reward"] = {**tree["reward"], "rules": {**rules, OVERLONG: 1.0}}
    sampling = _branch(tree["algorithm"].get("dynamic_sampling"))
    if len(others) == 1 and sampling:
        tree["algorithm"]["dynamic_sampling"] = {"term": others[0], **sampling}


def _rule_of(term: str, rule: Any) -> str:
    section = _branch(rule)
    is_own = section.get("function") or section.get("plugin")
    return "" if is_own else str(section.get("rule") or term)


def _merge(recipe: Tree, given: Tree) -> Tree:
    """What is given goes before. A name alone is a section with that type."""
    merged = {**recipe, **given}
    for key in recipe.keys() & given.keys():
        mine, theirs = recipe[key], given[key]
        if not isinstance(mine, dict):
            continue
        mine = cast(Tree, mine)
        if isinstance(theirs, str) and "type" in mine:
            theirs = {"type": theirs}
        if isinstance(theirs, dict):
            theirs = cast(Tree, theirs)
            is_same_type = theirs.get("type", mine.get("type")) == mine.get("type")
            merged[key] = _merge(mine, theirs) if is_same_type else theirs
    return merged


def _branch(value: Any) -> Tree:
    return cast(Tree, value) if isinstance(value, dict) else {}
