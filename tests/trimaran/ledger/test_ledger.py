"""What the ledger's records add up to."""

import json
from typing import Any

import pytest

from tests.controller.memory_store import MemoryPayloads, MemoryStore
from trimaran.ledger.ledger import RunLedger
from trimaran.ledger.records import (
    Began,
    Checkpointed,
    Committed,
    Consumed,
    Generated,
    Issued,
    LedgerError,
    Replayed,
    Scored,
    Timed,
)
from trimaran.ledger.state import LedgerState, decode_state, encode_state
from trimaran.types import Proof, VersionId

PROOF = Proof(VersionId(1, 2), "rollout-0", "root", 4, 1)


def score(state: LedgerState, number: int) -> None:
    """A group comes as far as that."""
    state.apply(Issued(number, 1, "p"))
    state.apply(Generated(number, 1, "d"))
    state.apply(Scored(number, 1, f"x{number}"))


def with_one_step() -> LedgerState:
    """Its batch, a group, is consumed."""
    state = LedgerState()
    score(state, 0)
    state.apply(Consumed(1, ((0, 1),)))
    return state


async def test_a_chain_of_another_run_is_refused() -> None:
    store: Any = MemoryStore()
    payloads = MemoryPayloads()
    ledger = await RunLedger.open(store, payloads, "run")
    ledger.record(Issued(0, 1, "p"))
    await ledger.flush()
    with pytest.raises(LedgerError, match="breaks at record 1"):
        await RunLedger.open(store, payloads, "other")


def test_the_state_comes_back_from_a_snapshot() -> None:
    state = with_one_step()
    state.apply(Committed(VersionId(0, 1), "r"))
    state.apply(Issued(3, 1, "p"))
    state.apply(Began(VersionId(0, 0), "root"))
    state.apply(Consumed(2, (), (PROOF,)))
    again = decode_state(json.loads(json.dumps(encode_state(state))))
    assert again == state
    assert again.unissued == [1, 2]


def test_what_a_resume_from_the_checkpoint_reads() -> None:
    state = LedgerState()
    for number in range(3):
        score(state, number)
    for step in (1, 2):
        state.apply(Consumed(step, ((step - 1, 1),)))
        state.apply(Committed(VersionId(0, step), "r"))
    assert state.payloads_after(0) == {"x0", "x1", "x2"}
    assert state.payloads_after(1) == {"x1", "x2"}
    assert state.payloads_after(2) == {"x2"}


def test_a_group_of_the_pending_batch_cannot_be_issued_again() -> None:
    state = with_one_step()
    with pytest.raises(LedgerError, match="after attempt 1, which is consumed"):
        state.apply(Issued(0, 2, "p"))


def test_a_step_that_is_replayed_counts_once() -> None:
    state = with_one_step()
    state.apply(Committed(VersionId(0, 1), "r", "the loss is nan"))
    state.apply(Replayed(VersionId(0, 1), "r", "the loss is nan"))
    assert (state.totals.nonfinite_steps, state.totals.committed) == (1, 1)


def test_its_size_does_not_grow_with_the_run() -> None:
    """Groups end in another order than they began, as they do."""
    state = LedgerState()

    def sizes() -> tuple[int, ...]:
        return len(state.groups), len(state.ended.others), len(state.steps), len(state.checkpoints)

    most = (0, 0, 0, 0)
    for step in range(1, 501):
        numbers = range(4 * step - 4, 4 * step)
        for number in reversed(numbers):
            score(state, number)
        state.apply(Consumed(step, tuple((number, 1) for number in numbers)))
        state.apply(Committed(VersionId(0, step), "r"))
        state.apply(Timed(step, 2.0))
        if step % 10 == 0:
            state.apply(Checkpointed(step, "c", max(step - 10, 10)))
        most = tuple(map(max, most, sizes()))
    assert most == (0, 0, 20, 2)
    totals = state.totals
    assert (totals.committed, totals.timed_groups, totals.timed_seconds) == (2000, 2000, 1000.0)
    assert state.root_at(490) == "r"
    with pytest.raises(LedgerError, match="step 480: its details are no longer kept"):
        state.root_at(480)
