"""What a built-in rule is. `services.reward.rules` has the table; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimaran.errors import InputError

Options = Mapping[str, Any]
Bound = float | Callable[[Options], float]


def any_reference(answer: str, options: Options) -> None:
    """The rule looks at the completion alone, or takes any text as its reference."""


def nonempty_reference(answer: str, options: Options) -> None:
    if not answer.strip():
        raise ValueError("the answer is empty")


def any_options(options: Options) -> None:
    """Options that have nothing to do with each other."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """A check of an option's value.

    Example:
        OneOf(("search", "fullmatch"))("search")  # True
    """

    values: tuple[str, ...]

    def __call__(self, value: Any) -> bool:
        return value in self.values


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table of built-in rules.

    `target`, "module:function", is imported by the process that needs it, and called as

        function(sample: Sample, **options) -> Judgement

    A rule that judges a final answer gives it as "pred" (`voting` of predictions.py).
    It raises ReferenceUnusableError when the reference is of no use. Whatever the completion holds,
    it gives a score.

    Example:
        Rule(
            "services.reward.rules.matching:exact_match",
            check_reference=nonempty_reference,      # refuses a dataset with an empty answer
            options={"mode": OneOf(("strict", "loose"))},
        )
    """

    target: str
    minimum: Bound = 0.0
    maximum: Bound = 1.0
    check_reference: Callable[[str, Options], None] = any_reference
    """(answer, options): raises ValueError for a reference that the rule cannot use. It runs on
    every row before a run starts, so it must be quick, and safe on any text."""
    options: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    """Name of each option that the function takes -> whether a value is right."""
    check_together: Callable[[Options], None] = any_options
    """Raises ValueError for options that are right one by one and wrong together."""

    def check_options(self, options: Options, key: str) -> None:
        """Raises InputError that names the key and what would be right."""
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(self.options) or "it takes none"
                raise InputError(f"{key}.{name}: unknown option (known: {known})")
            check = self.options[name]
            if not check(value):
                hint = f" (it takes {', '.join(check.values)})" if isinstance(check, OneOf) else ""
                raise InputError(
                    f"{key}.{name}: {value!r} is not a value that this rule takes{hint}"
                )
        try:
            self.check_together(options)
        except ValueError as error:
            raise InputError(f"{key}: {error}") from None

    def bounds(self, options: Options) -> tuple[float, float]:
        """Least and greatest value."""

        def of(bound: Bound) -> float:
            return bound(options) if callable(bound) else bound

        return of(self.minimum), of(self.maximum)
