"""What came of one rule on one completion. Two things that look alike are kept apart:

Fault         ours (transport, crash, overload, a reference that is no use): never trains
Indigestible   the answer's: no checker could digest it, twice; gets the rule's minimum,
              because hanging the checker must not pay
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the rule reports beside its value; unweighted."""


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """The function answered None: its term is left out of this completion's sum."""


@dataclass(frozen=True, slots=True)
class Indigestible:
    reason: str
    score: float | None = None
    """The least that a plugin gives; it stands where the term itself has no bound."""


@dataclass(frozen=True, slots=True)
class Fault:
    reason: str


Outcome = Value | NotApplicable | Indigestible | Fault
