"""Loads reward functions in a worker and recognises their signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from services.reward.functions.arguments import Reading
from services.reward.functions.callee import Callee
from services.reward.functions.returned import numbers_of, read_batch, read_one
from services.reward.functions.signatures import (
    SIGNATURES,
    Parameters,
    Signature,
    is_conversational,
    recognise,
)
from services.reward.outcome import NotApplicable, Value
from services.reward.terms import FunctionSpec
from trimaran.errors import InputError
from trimaran.host.user_code import ImportRefusedError, import_target
from trimaran.rewards import Sample


@dataclass(frozen=True, slots=True)
class LoadedFunction:
    """A function with the signature that is ours, whatever it was written for.

    Example:
        loaded = load_function(FunctionSpec("/home/me/verl_rewards.py:compute_score"))
        outcomes = loaded.judge_batch([Sample("7", answer="7")])  # [Value(1.0)]
    """

    judge_batch: Callable[[Sequence[Sample]], list[Value | NotApplicable]]
    """One outcome a sample, in order. Raises what the function raises, and FunctionFault where it
    returns what is no score, or needs an argument that there is not."""
    one_by_one: bool
    """The function takes one completion at a time: `judge_batch` gets batches of one."""
    splittable: bool
    """A batch may be cut: False only where the function judges a group as a whole."""


def load_function(spec: FunctionSpec) -> LoadedFunction:
    """Raises InputError for a module, file, name, signature or option that cannot be used."""
    try:
        module, name = import_target(spec.target)
    except ImportRefusedError as error:
        raise InputError(_refusal(spec, str(error))) from error
    function = getattr(module, name)
    parameters = _parameters(spec, function)
    signature = recognise(parameters, getattr(module, "REWARD_TYPE", None))
    if signature is None:
        taken = ", ".join(map(str, parameters.values()))
        raise InputError(_refusal(spec, f"its parameters ({taken}) are none that is known"))
    reading, options = _split_options(spec, parameters, signature)
    callee = Callee.of(function, parameters)
    _check_options(spec, callee, signature, options)

    def judge(samples: Sequence[Sample]) -> list[Value | NotApplicable]:
        call = signature.prepare(samples, reading)
        result = callee(call.arguments | deepcopy(options))
        if signature.one_by_one:
            return [read_one(result, signature.score_keys)]
        outcomes = read_batch(result, len(samples), signature.score_keys)
        metrics = numbers_of(call.metrics)
        return [_with_parts(outcome, metrics) for outcome in outcomes]

    def judge_each(samples: Sequence[Sample]) -> list[Value | NotApplicable]:
        return [outcome for sample in samples for outcome in judge([sample])]

    judge_batch = judge_each if signature.one_by_one else judge
    return LoadedFunction(judge_batch, signature.one_by_one, signature.splittable)


def _refusal(spec: FunctionSpec, reason: str) -> str:
    return f"{spec.target}: {reason}; a reward function is one of: {SIGNATURES}"


def _parameters(spec: FunctionSpec, function: Any) -> Parameters:
    if not callable(function) or isinstance(function, type):
        raise InputError(_refusal(spec, f"it is no function but a {type(function).__name__}"))
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        raise InputError(_refusal(spec, "Python does not know its parameters")) from None


def _split_options(
    spec: FunctionSpec, parameters: Parameters, signature: Signature
) -> tuple[Reading, dict[str, Any]]:
    """What is meant for us, unless the function has a parameter of that name, and the rest."""
    options = spec.options
    ours = {
        name: options.pop(name)
        for name in signature.reading_options
        if name in options and name not in parameters
    }
    conversational = ours.get("conversational", is_conversational(parameters))
    if not isinstance(conversational, bool | None):
        raise InputError(f"{spec.target}: the option conversational is true or false")
    texts = ours.get("text_columns", [])
    if not (isinstance(texts, list) and all(isinstance(name, str) for name in texts)):
        raise InputError(f"{spec.target}: the option text_columns is a list of column names")
    return Reading(spec.answer_key, frozenset(texts), conversational), options


def _check_options(
    spec: FunctionSpec, callee: Callee, signature: Signature, options: Mapping[str, Any]
) -> None:
    own = [name for name in callee.by_keyword if name not in signature.provided]
    own += [name for name in signature.reading_options if name not in own]
    for name in options:
        if name in signature.provided or not (name in own or callee.takes_any):
            known = ", ".join(own) or "it takes none"
            raise InputError(f"{spec.target}: unknown option {name!r} (known: {known})")
    if signature.takes_columns:
        return
    for name in callee.required:
        if name not in signature.provided and name not in options:
            raise InputError(
                f"{spec.target}: it needs {name!r}, which is not given; set it under the options"
                " of its section"
            )


def _with_parts(
    outcome: Value | NotApplicable, metrics: Mapping[str, float]
) -> Value | NotApplicable:
    if isinstance(outcome, NotApplicable) or not metrics:
        return outcome
    return replace(outcome, parts={**metrics, **outcome.parts})
