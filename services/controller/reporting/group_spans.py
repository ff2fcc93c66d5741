"""What becomes of each group, for JSON logs and traces: nothing is kept while neither is wanted."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager

from trimaran.telemetry import scope, tracing
from trimaran.telemetry.run_files import LIVES
from trimaran.types import ScoredGroup

logger = logging.getLogger(LIVES)


class GroupLives:
    """Logs and traces of groups, by the loop's calls.

    Example:
        lives.issued(17, attempt=1)
        lives.scored(17)
        with lives.step(3, groups), lives.publishing(groups):
            ...
        lives.committed(groups)
    """

    def __init__(self) -> None:
        self._issued: dict[int, float] = {}
        """Number -> unix seconds."""
        self._scored: dict[int, float] = {}

    def issued(self, number: int, attempt: int) -> None:
        logger.info("issued, attempt %d", attempt)
        if tracing.is_on():
            self._issued.setdefault(number, time.time())

    def scored(self, number: int) -> None:
        logger.info("scored")
        if tracing.is_on():
            self._scored[number] = time.time()

    def skipped(self, number: int, reason: str) -> None:
        logger.info("skipped: %s", reason)
        self._end(number, "skipped")

    @contextmanager
    def step(self, step: int, groups: Sequence[ScoredGroup]) -> Generator[None]:
        """Around all that one batch does."""
        for number in map(_number, groups):
            if began := self._scored.pop(number, None):
                tracing.waited(number, began)
        with scope.about(step=step), tracing.step(step, map(_number, groups)):
            if logger.isEnabledFor(logging.INFO):
                for number in map(_number, groups):
                    with scope.about(group=number):
                        logger.info("consumed by step %d", step)
            yield

    def publishing(self, groups: Sequence[ScoredGroup]) -> AbstractContextManager[None]:
        """Around the publication of what the groups have trained."""
        return tracing.in_groups("publish", map(_number, groups))

    def committed(self, groups: Sequence[ScoredGroup]) -> None:
        for number in map(_number, groups):
            self._end(number, "committed")

    def _end(self, number: int, outcome: str) -> None:
        if tracing.is_on():
            self._scored.pop(number, None)
            tracing.ended(number, self._issued.pop(number, time.time()), outcome)


def _number(scored: ScoredGroup) -> int:
    return scored.group.number
