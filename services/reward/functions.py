"""Loads reward functions in a worker and recognises their signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.reward.outcome import NotApplicable, Value
from services.reward.terms import FunctionSpec
from trimaran.rewards import Sample


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function with the signature that is ours, whatever it was written for."""

    judge_batch: Callable[[Sequence[Sample]], list[Value | NotApplicable]]
    """One outcome a sample, in order; raises what the function raises."""
    one_by_one: bool
    """The function takes one completion at a time: `judge_batch` gets batches of one."""
    splittable: bool
    """A batch may be cut: False only where the function judges a group as a whole."""


def load_function(spec: FunctionSpec) -> Loaded:
    """Raises InputError for a module, file, name or signature that cannot be used."""
    raise NotImplementedError
