"""The signatures of reward functions: ours, verl's, TRL's and EasyR1's.

A function is recognised by the names and annotations of its parameters and is never called for it.
What each project passes was read in its sources: verl's reward_loop/reward_manager/naive.py and
reward_manager/batch.py, TRL's GRPOTrainer._calculate_rewards, EasyR1's workers/reward/function.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any

from services.reward.functions.arguments import (
    VERL_PLURALS,
    Call,
    Reading,
    copy_of,
    reward_input,
    trl,
    verl,
    verl_batch,
)
from trimaran.rewards import Sample

SIGNATURES = (
    "f(sample) or f(samples) as in trimaran.rewards;"
    " verl's compute_score(data_source, solution_str, ground_truth, extra_info);"
    " TRL's f(prompts, completions, **columns);"
    " EasyR1's compute_score(reward_input) or compute_score(reward_inputs)"
)
Parameters = Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class Signature:
    """How the functions of one project are called.

    Example:
        def f(solution_str, ground_truth): ...

        signature = recognise(inspect.signature(f).parameters, reward_type=None)  # verl's
        call = signature.prepare([Sample("7", answer="7")], Reading())
        call.arguments["solution_str"]          # "7"
    """

    provided: frozenset[str]
    """Arguments that no option may give."""
    prepare: Callable[[Sequence[Sample], Reading], Call]
    one_by_one: bool
    """`prepare` gets one sample, and the result is one score instead of a list of them."""
    splittable: bool = True
    reading_options: tuple[str, ...] = ()
    """Options that are meant for `Reading`."""
    takes_columns: bool = False
    """The row's columns are arguments too, and only the row says which there are."""
    score_keys: tuple[str, ...] = ("score", "overall")


def recognise(parameters: Parameters, reward_type: object) -> Signature | None:
    """`reward_type`: EasyR1's REWARD_TYPE where the module has one."""
    first = next(iter(parameters.values()), None)
    if first is None or first.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        return _TRL if set(parameters) & _TRL_NAMES else None
    if (ours := _ours(first)) is not None:
        return _one_argument(first.name, copy_of, one_by_one=ours == "sample", splittable=False)
    for name, signature in _BY_NAME.items():
        if name in parameters:
            return signature
    if set(parameters) & _TRL_NAMES:
        return _TRL
    kinds = {"reward_input": "sequential", "reward_inputs": "batch"}
    kind = reward_type or kinds.get(first.name)
    if kind not in ("sequential", "batch"):
        return None
    signature = _one_argument(first.name, reward_input, one_by_one=kind == "sequential")
    return replace(signature, score_keys=("overall", "score"))


def is_conversational(parameters: Parameters) -> bool | None:
    """By the annotation of `completions`: list[list[dict]] holds messages, list[str] texts; None without one."""
    completions = parameters.get("completions")
    annotation = _annotation(completions).lower() if completions else ""
    return "dict" in annotation if annotation else None


def _ours(first: Parameter) -> str | None:
    annotation = _annotation(first)
    if re.fullmatch(r"([\w.]+\.)?Sample", annotation):
        return "sample"
    if re.search(r"\bSample\b", annotation):
        return "samples"
    return first.name if first.name in ("sample", "samples") else None


def _annotation(parameter: Parameter) -> str:
    """As written; "" where there is none."""
    kind = parameter.annotation
    if kind is Parameter.empty:
        return ""
    plain = isinstance(kind, type) and not hasattr(kind, "__origin__")
    text = kind if isinstance(kind, str) else kind.__name__ if plain else str(kind)
    return text.strip("'\"")


def _one_argument(
    name: str, make: Callable[[Sample], Any], one_by_one: bool, splittable: bool = True
) -> Signature:
    def prepare(samples: Sequence[Sample], _: Reading) -> Call:
        made = [make(sample) for sample in samples]
        return Call({name: made[0] if one_by_one else made})

    return Signature(frozenset({name}), prepare, one_by_one, splittable or one_by_one)


_BY_NAME = {
    "solution_str": Signature(
        frozenset(VERL_PLURALS), verl, one_by_one=True, reading_options=("text_columns",)
    ),
    "solution_strs": Signature(
        frozenset(VERL_PLURALS.values()),
        verl_batch,
        one_by_one=False,
        reading_options=("text_columns",),
    ),
}


_TRL_NAMES = {"prompts", "completions", "completion_ids"}
_TRL = Signature(
    frozenset(_TRL_NAMES | {"trainer_state", "log_extra", "log_metric"}),
    trl,
    one_by_one=False,
    reading_options=("conversational", "text_columns"),
    takes_columns=True,
)
