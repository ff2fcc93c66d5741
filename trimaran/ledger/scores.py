"""What the ledger says of a group's verdicts: its payload, which has all of them, goes one day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimaran.ledger.records import Filtered, Scored, Terms
from trimaran.types import Score, Verdict


def rewards_of(verdicts_G: Sequence[Verdict]) -> tuple[float | None, ...]:
    """[G]. None where a completion could not be scored."""
    return tuple(v.reward if isinstance(v, Score) else None for v in verdicts_G)


def terms_of(verdicts_G: Sequence[Verdict]) -> Terms:
    """Each name once, with [G] values. None where a completion has no value of it.

    Example: terms_of((Score(1.5, {"exact": 1.0}), Faulted("lost"))) == (("exact", (1.0, None)),)
    """
    names = dict.fromkeys(name for verdict in verdicts_G for name in verdict.terms)
    return tuple((name, tuple(v.terms.get(name) for v in verdicts_G)) for name in names)


def by_completion(record: Scored | Filtered) -> list[tuple[float | None, Mapping[str, float]]]:
    """[G] rewards, each with the values of its terms."""
    return [
        (reward, {name: x for name, values in record.terms if (x := values[place]) is not None})
        for place, reward in enumerate(record.rewards)
    ]
