"""What came of one rule on one completion. Two failures that look alike are kept apart:

Fault          our infrastructure or the checker's owner failed (transport, overload, a reference
               that is no use): the completion is *faulted*, gets no score and never trains
Indigestible   the answer crashed or hung the checker, twice: it gets the rule's minimum, because
               hanging the checker must not pay
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """The rule judged the completion.

    Example:
        Value(0.5, {"length": 12.0})
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Further numbers that the rule reports, unweighted; each becomes a metric."""
    prediction: str | None = None
    """What the rule reads as the final answer, as `Score.prediction`."""


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """The function answered None: its term is left out of this completion's sum.

    Example:
        outcomes = [Value(1.0), NotApplicable()]  # of two completions
    """


@dataclass(frozen=True, slots=True)
class Indigestible:
    """The answer is to blame: it crashed or hung the checker twice.

    Example:
        Indigestible("TimeoutError: no result in 10 s, twice")
    """

    reason: str
    score: float | None = None
    """The least that a plugin gives; it stands where the term itself has no bound."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The answer is not to blame: whatever it was, it could not have been judged.

    Example:
        Fault("rewards.example:8443: connection refused")
    """

    reason: str


Outcome = Value | NotApplicable | Indigestible | Fault
