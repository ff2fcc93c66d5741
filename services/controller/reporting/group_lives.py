"""What becomes of each group, for JSON logs: a few lines a group."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from trimaran.telemetry import scope
from trimaran.telemetry.run_files import LIVES
from trimaran.types import ScoredGroup

logger = logging.getLogger(LIVES)


def issued(attempt: int) -> None:
    logger.info("issued, attempt %d", attempt)


def scored() -> None:
    logger.info("scored")


def skipped(reason: str) -> None:
    logger.info("skipped: %s", reason)


@contextmanager
def step(number: int, groups: Sequence[ScoredGroup]) -> Generator[None]:
    """Around all that one batch does."""
    with scope.about(step=number):
        if logger.isEnabledFor(logging.INFO):
            for each in groups:
                with scope.about(group=each.group.number):
                    logger.info("consumed by step %d", number)
        yield
