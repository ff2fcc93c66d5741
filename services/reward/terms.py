"""From configuration to terms: what is judged, by what, within which bounds.

Everything that can be known to be wrong without running foreign code is refused here, so that a
run is refused when it is submitted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.reward.rules import Rule, find_rule
from trimaran.config import PluginSection, RuleSection, RunConfig
from trimaran.errors import InputError
from trimaran.trust.allowed import Allowed
from trimaran.types import Prompt

OWN_TIMEOUT_SHARE = 0.8
TERM_NAME = re.compile(r"\w[\w:-]*")


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A Python function that runs in the pool: a built-in rule's, or the operator's own.

    Example:
        FunctionSpec("/home/me/style.py:score", '{"words": 30}').options  # {"words": 30}
    """

    target: str
    """"package.module:name" or "/path/to/file.py:name"."""
    options_json: str = "{}"
    """Keyword arguments; JSON, so that a spec can be hashed."""
    answer_key: str = "answer"
    """Under which TRL functions know the reference, besides "answer"."""

    @property
    def options(self) -> dict[str, Any]:
        return json.loads(self.options_json)


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """A scorer over HTTP."""

    plugin: PluginSection
    options_json: str = "{}"


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of the reward.

    Example:
        spec = FunctionSpec("services.reward.rules.numbers:gsm8k")
        Term("gsm8k", weight=1.0, minimum=0.0, maximum=1.0, spec=spec).worst  # 0.0
    """

    name: str
    """Chosen by the run; its metrics stand under it."""
    weight: float
    minimum: float
    maximum: float
    spec: FunctionSpec | PluginSpec
    tasks: tuple[str, ...] = ()
    """The term judges rows of these tasks; all rows if there are none."""

    @property
    def worst(self) -> float:
        """What an indigestible answer gets: the least weighted value."""
        return self.minimum if self.weight >= 0 else self.maximum


def make_terms(config: RunConfig, allowed: Allowed) -> tuple[Term, ...]:
    """Raises InputError that names the key and what would be right."""
    return tuple(
        _make_term(name, section, config, allowed) for name, section in config.reward.rules.items()
    )


def _make_term(name: str, section: RuleSection, config: RunConfig, allowed: Allowed) -> Term:
    key = f"reward.rules.{name}"
    if not TERM_NAME.fullmatch(name):
        raise InputError(
            f"{key}: a term's name is letters, digits, _ - and :; name the term as you like and"
            " give the function as {function: path/to/file.py:name}"
        )
    spec: FunctionSpec | PluginSpec
    minimum, maximum = 0.0, math.inf
    if section.plugin:
        allowed.check_url(section.plugin.url, f"{key}.plugin.url")
        spec = PluginSpec(section.plugin, _dump(section.options))
        minimum = -math.inf  # what the plugin says of itself bounds it
    elif section.function:
        target = allowed.check_function(section.function, f"{key}.function")
        spec = FunctionSpec(target, _dump(section.options), config.data.answer_key)
    else:
        rule = find_rule(section.rule or name, f"{key}.rule" if section.rule else key)
        options = _with_run_options(rule, section.options, config)
        rule.check_options(options, f"{key}.options")
        if options.get("timeout", 0) >= config.reward.timeout:
            raise InputError(
                f"{key}.options.timeout: must be less than reward.timeout"
                f" ({config.reward.timeout:g}), which ends the worker"
            )
        minimum, maximum = rule.bounds(options)
        if section.minimum is not None or section.maximum is not None:
            raise InputError(
                f"{key}: a built-in rule knows its minimum and maximum; leave them out"
            )
        spec = rule_function(rule, options)
    minimum = minimum if section.minimum is None else section.minimum
    maximum = maximum if section.maximum is None else section.maximum
    if minimum >= maximum:
        raise InputError(f"{key}: minimum {minimum:g} must be less than maximum {maximum:g}")
    if section.weight < 0 and math.isinf(maximum):
        raise InputError(f"{key}.maximum: missing; a negative weight needs the term's maximum")
    return Term(name, section.weight, minimum, maximum, spec, section.tasks)


def rule_function(rule: Rule, options: Mapping[str, Any]) -> FunctionSpec:
    """The function behind a built-in rule; `options` are those that the rule takes."""
    return FunctionSpec(rule.target, _dump(options))


def _with_run_options(
    rule: Rule, options: Mapping[str, Any], config: RunConfig
) -> Mapping[str, Any]:
    """`max_tokens` is the run's own, of an episode where there are such, where a rule takes it and it is not given;
    a rule's own `timeout` must act before the pool's, so that a slow answer is wrong and not indigestible."""
    if "max_tokens" in rule.options:
        longest = config.environment or config.rollout
        options = {"max_tokens": longest.max_tokens, **options}
    if "timeout" in rule.options:
        options = {"timeout": OWN_TIMEOUT_SHARE * config.reward.timeout, **options}
    return options


def check_row(config: RunConfig, prompt: Prompt, place: str) -> None:
    """Raises InputError when a built-in rule cannot use the row's reference answer, or none is for it."""
    rules = {n: one for n, one in config.reward.rules.items() if one.is_for(prompt.task)}
    if config.reward.rules and not rules:
        raise InputError(
            f"{place}: none of reward.rules is for the task {prompt.task!r}; name it in the tasks of one"
        )
    for name, section in rules.items():
        if section.plugin or section.function:
            continue
        rule = find_rule(section.rule or name, f"reward.rules.{name}")
        try:
            rule.check_reference(prompt.answer, section.options)
        except ValueError as error:
            raise InputError(
                f"{place}: reward.rules.{name} cannot use this row: {error};"
                " correct the row, or choose another rule or data.answer_key"
            ) from None


def _dump(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True)
