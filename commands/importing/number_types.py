"""Keys of theirs that name a type of numbers: what is computed, kept and added up in it."""

from __future__ import annotations

from typing import Any

from commands.importing.rows import Convert, Outcome, Theirs

NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "32": "float32",
}
"""Other names of them."""
ONE_TYPE = "trainer and engine compute in one type, model.dtype"
MAIN_WEIGHTS = "updates are added to weights in float32"
ROUNDING = (
    "there to weights in the given type, in which most of an update is lost in rounding."
    " trainer.optimizer: adamw_bf16 keeps such weights and what rounding took, in less memory"
)
GRADIENTS = "ranks add their gradients up in float32"
MOMENTS = "AdamW's moments and the gradients that it takes are in float32"


def computed_in(engines_key: str) -> Convert:
    """The trainer's type, which is refused where `engines_key` has another one."""

    def convert(value: Any, theirs: Theirs) -> Outcome:
        engines = _name(theirs[engines_key])
        if value is None or _name(value) == engines:
            return Outcome("ignored", ONE_TYPE)
        return Outcome("refused", f"{ONE_TYPE}: give {engines}, or {engines_key}={value} too")

    return convert


def main_weights(value: Any, theirs: Theirs) -> Outcome:
    """What an update is added to."""
    if _is_float32(value):
        return Outcome("ignored", MAIN_WEIGHTS)
    return Outcome("noted", f"{MAIN_WEIGHTS}; {ROUNDING}")


def gradients(value: Any, theirs: Theirs) -> Outcome:
    """What ranks add up."""
    return Outcome("ignored" if _is_float32(value) else "noted", GRADIENTS)


def moments(value: Any, theirs: Theirs) -> Outcome:
    if _is_float32(value):
        return Outcome("ignored", MOMENTS)
    text = (
        f"{MOMENTS}; trainer.optimizer: adamw_bf16 keeps them in bfloat16: give float32, and set it"
    )
    return Outcome("refused", text)


def _is_float32(value: Any) -> bool:
    return value is None or _name(value) == "float32"


def _name(value: Any) -> str:
    word = str(value).removeprefix("torch.")
    return NAMES.get(word, word)
