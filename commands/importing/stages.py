"""How many layers their pipelines' stages have."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from commands.importing.rows import Outcome
from trimaran.model.folder import language_config

KEY = "trainer.pipeline_layers"
ONE_STAGE = Outcome("ignored", "there is one stage")
INTERLEAVED = Outcome(
    "noted", "with several stages on each rank, all have equally many layers here"
)
AWAY = Outcome(
    "noted",
    f"the model is not here, so its layers cannot be counted: give {KEY}, a number for each stage",
)


def count_layers(model: Any) -> int | None:
    """Of a model's folder; None where it is not here."""
    try:
        text = (Path(str(model)).expanduser() / "config.json").read_text(encoding="utf-8")
        return int(language_config(json.loads(text))["num_hidden_layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def listed(layers: Sequence[int]) -> Outcome:
    return Outcome("mapped", "", {KEY: list(layers)})


def first_and_last(first: int | None, last: int | None, stages: int, layers: int | None) -> Outcome:
    """As megatron-core: the other stages share the rest equally. None: shares as well. `layers`: of the
    model, where it is here."""
    if stages == 1:
        return ONE_STAGE
    if layers is None:
        return AWAY
    ends = first or 0, last or 0
    others = stages - (first is not None) - (last is not None)
    rest = layers - sum(ends)
    if rest < 0 or (rest % others if others else rest):
        return Outcome(
            "refused",
            f"{layers} layers without the {' + '.join(map(str, ends))} of the first and the last stage cannot"
            f" be shared equally by the other {others}",
        )
    sizes = [rest // others if others else 0] * stages
    sizes[0] = sizes[0] if first is None else first
    sizes[-1] = sizes[-1] if last is None else last
    return listed(sizes)


def without(noops: Collection[int], stages: int, layers: int | None) -> Outcome:
    """Of equal stages in which the layers `noops` do nothing. `layers`: of the model, without these."""
    if stages == 1:
        return ONE_STAGE
    if layers is None:
        return AWAY
    size, rest = divmod(layers + len(noops), stages)
    if rest:
        return Outcome(
            "refused",
            f"{layers} layers and {len(noops)} that do nothing give no {stages} equal stages",
        )
    spans = (range(stage * size, (stage + 1) * size) for stage in range(stages))
    return listed([sum(layer not in noops for layer in span) for span in spans])


def numbers(value: Any) -> list[int]:
    """Of a list, or of text with commas."""
    parts = str(value).split(",") if isinstance(value, str | int) else value
    return [int(part) for part in parts]
