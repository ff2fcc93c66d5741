"""A set of numbers that fills up from 0, in little memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Numbers:
    """Holds every number below `below`, and `others` above it. Only gaps cost memory.

    Example:
        ended = Numbers()
        ended.add(0), ended.add(2)
        (ended.below, ended.others) == (1, {2})
    """

    below: int = 0
    others: set[int] = field(default_factory=set[int])

    def __contains__(self, number: int) -> bool:
        return number < self.below or number in self.others

    def add(self, number: int) -> None:
        self.others.add(number)
        while self.below in self.others:
            self.others.remove(self.below)
            self.below += 1

    def missing(self, end: int) -> Iterable[int]:
        """Those below `end` that are not in it, in order."""
        return (number for number in range(self.below, end) if number not in self.others)
