"""A store without room is given as long as a hold may take, one that is away the time of an outage."""

from __future__ import annotations

import asyncio

import pytest

from trimaran.errors import UnavailableError
from trimaran.ledger.retries import patiently
from trimaran.store import StoreFullError


def ask(error: UnavailableError, num_failures: int, when_full: float) -> int:
    """Returns how many calls there were."""
    calls: list[int] = []

    async def call() -> int:
        calls.append(1)
        if len(calls) <= num_failures:
            raise error
        return len(calls)

    work = patiently(call, 0.0, "the store", retry=0.02, patience_when_full=when_full)
    return asyncio.run(asyncio.wait_for(work, 120))


def test_a_full_store_has_longer_than_one_that_is_away() -> None:
    assert ask(StoreFullError("its disk is full"), 5, when_full=20.0) == 6
    with pytest.raises(UnavailableError, match=r"0 s \(outage_timeout\): gone"):
        ask(UnavailableError("gone"), 5, when_full=20.0)


def test_a_store_that_stays_full_is_named_with_its_setting() -> None:
    with pytest.raises(UnavailableError, match=r"0.1 s \(run.hold_timeout\): its disk is full"):
        ask(StoreFullError("its disk is full"), 10**6, when_full=0.1)
