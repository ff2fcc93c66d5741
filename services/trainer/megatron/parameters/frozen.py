"""Which parameters of megatron-core's model do not train.

A parameter may be made of several Hugging Face tensors (`rules.py`), and trains or stays as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.trainer.megatron.parameters.family_rules import TOWER
from services.trainer.megatron.parameters.rules import Rules
from trimaran.errors import InputError
from trimaran.model.freezing import KEY, check_patterns, is_frozen


def frozen_parameters(rules: Rules, patterns: Sequence[str]) -> frozenset[str]:
    """By megatron-core's names. `rules`: of the whole model, so that every rank refuses the same.

    Raises InputError for a pattern without a match, for one that matches a part of a parameter, and
    where nothing would train.
    """
    fixed = frozenset(name for name, rule in rules.items() if rule.is_fixed)
    if not patterns:
        return fixed
    check_patterns(patterns, (name for rule in rules.values() for name in rule.names))
    matched = {
        name: [one for one in rule.names if is_frozen(one, patterns)]
        for name, rule in rules.items()
    }
    for name, own in matched.items():
        if own and len(own) < len(rules[name].names):
            rest = [one for one in rules[name].names if one not in own]
            raise InputError(
                f"{KEY}: {own[0]} is one parameter with {', '.join(rest)}; freeze them together"
            )
    frozen = frozenset(name for name, own in matched.items() if own)
    _check_biases(rules, frozen)
    return frozen | fixed


def _check_biases(rules: Mapping[str, object], frozen: frozenset[str]) -> None:
    """megatron-core gives the bias of a linear layer no gradient where its weight is frozen. The vision
    tower is no part of it."""
    for name in filter(frozen.__contains__, rules):
        if name.startswith(TOWER):
            continue
        layer, _, last = name.rpartition(".")
        bias = f"{layer}.bias"
        if last == "weight" and bias in rules and bias not in frozen:
            raise InputError(
                f"{KEY}: matches the weight of {layer} and not its bias, which cannot train alone;"
                " freeze the bias, too, as with a pattern that ends in .*"
            )
