import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.controller.ledger import RunLedger, chain_hash, first_hash, fold
from services.controller.ledger_state import OPEN, LedgerState, Stage
from services.controller.payloads import PayloadStore
from services.controller.records import (
    Committed,
    Consumed,
    Filtered,
    Generated,
    Issued,
    LedgerError,
    Opened,
    Record,
    Reissue,
    Scored,
    Skipped,
    encode,
)
from trimaran.errors import InputError
from trimaran.store import entries
from trimaran.store.sqlite import SqliteStore
from trimaran.types import Proof, VersionId

PROOF = Proof(VersionId(1, 2), "rollout-0", "root", 4, 1)
ENDS = (Stage.COMMITTED, Stage.FILTERED, Stage.SKIPPED)


def chained(run_id: str, records: list[Record]) -> list[tuple[int, dict[str, Any]]]:
    head, rows = first_hash(run_id), []
    for sequence, tree in enumerate(map(encode, records), start=1):
        head = chain_hash(head, tree)
        rows.append((sequence, json.loads(json.dumps({**tree, "hash": head}))))
    return rows


def folded(run_id: str, rows: list[tuple[int, Any]]) -> LedgerState:
    async def each() -> AsyncGenerator[tuple[int, Any], None]:
        for row in rows:
            yield row

    return asyncio.run(fold(run_id, each()))[0]


class LedgerLife(RuleBasedStateMachine):
    """Whatever happens to groups, each issued prompt is in exactly one place and ends once."""

    def __init__(self) -> None:
        super().__init__()
        self.state = LedgerState()
        self.records: list[Record] = []
        self.ended: dict[int, Stage] = {}

    def record(self, record: Record) -> None:
        self.state.apply(record)
        self.records.append(record)
        for number in self.state.with_stage(*ENDS):
            stage = self.state.groups[number].stage
            assert self.ended.setdefault(number, stage) == stage, "a group ended twice"

    def pick(self, data: st.DataObject, *stages: Stage) -> tuple[int, int]:
        number = data.draw(st.sampled_from(self.state.with_stage(*stages)))
        return number, self.state.groups[number].attempt

    def any_in(self, *stages: Stage) -> bool:
        return bool(self.state.with_stage(*stages))

    @rule()
    def issue(self) -> None:
        self.record(Issued(self.state.next_number, 1, "p"))

    @precondition(lambda self: self.any_in(*OPEN))
    @rule(data=st.data())
    def reissue(self, data: st.DataObject) -> None:
        number, attempt = self.pick(data, *OPEN)
        self.record(Issued(number, attempt + 1, "p", Reissue("it died", "rollout-0")))

    @precondition(lambda self: self.any_in(Stage.ISSUED))
    @rule(data=st.data())
    def generate(self, data: st.DataObject) -> None:
        self.record(Generated(*self.pick(data, Stage.ISSUED), digest="d"))

    @precondition(lambda self: self.any_in(Stage.GENERATED))
    @rule(data=st.data())
    def score(self, data: st.DataObject) -> None:
        self.record(Scored(*self.pick(data, Stage.GENERATED), payload="x"))

    @precondition(lambda self: self.any_in(Stage.ISSUED, Stage.GENERATED))
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        self.record(Skipped(*self.pick(data, Stage.ISSUED, Stage.GENERATED), reason="r"))

    @precondition(lambda self: self.any_in(Stage.GENERATED))
    @rule(data=st.data())
    def filter(self, data: st.DataObject) -> None:
        self.record(Filtered(*self.pick(data, Stage.GENERATED), reason="r"))

    @precondition(lambda self: self.any_in(Stage.SCORED) and not self.state.has_pending_batch)
    @rule()
    def consume(self) -> None:
        numbers = self.state.with_stage(Stage.SCORED)[:2]
        groups = tuple((number, self.state.groups[number].attempt) for number in numbers)
        self.record(Consumed(self.state.step + 1, groups, (PROOF,)))
        assert self.state.steps[-1].proofs == (PROOF,)

    @precondition(lambda self: self.state.has_pending_batch)
    @rule()
    def commit(self) -> None:
        self.record(Committed(VersionId(0, self.state.step + 1), "r"))

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), stage=st.sampled_from(list(Stage)))
    def nothing_follows_an_end(self, data: st.DataObject, stage: Stage) -> None:
        number = data.draw(st.sampled_from(sorted(self.ended)))
        attempt, step = self.state.groups[number].attempt, self.state.step
        wrong: dict[Stage, Record] = {
            Stage.ISSUED: Issued(number, attempt + 1, "p"),
            Stage.GENERATED: Generated(number, attempt, "d"),
            Stage.SCORED: Scored(number, attempt, "x"),
            Stage.CONSUMED: Consumed(step + 1, ((number, attempt),)),
            Stage.COMMITTED: Committed(VersionId(0, step), "r"),
            Stage.FILTERED: Filtered(number, attempt, "r"),
            Stage.SKIPPED: Skipped(number, attempt, "r"),
        }
        with pytest.raises(LedgerError):
            self.state.apply(wrong[stage])

    @invariant()
    def the_fold_of_the_records_is_the_state(self) -> None:
        assert folded("run", chained("run", self.records)) == self.state


TestLedgerLife = LedgerLife.TestCase
TestLedgerLife.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


RECORDS: list[Record] = [
    Opened(1),
    Issued(0, 1, "p"),
    Generated(0, 1, "d"),
    Scored(0, 1, "x"),
    Consumed(1, ((0, 1),)),
    Committed(VersionId(0, 1), "r"),
]


async def write(folder: Path) -> None:
    store = SqliteStore(folder / "store.sqlite")
    ledger = await RunLedger.open(store, PayloadStore(folder / "payloads"), "run")
    for record in RECORDS:
        ledger.record(record)
    await ledger.flush()
    await ledger.close()
    await store.close()


async def read(folder: Path) -> LedgerState:
    store = SqliteStore(folder / "store.sqlite")
    try:
        return (await fold("run", entries(store, "ledger/run")))[0]
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("UPDATE streams SET value = replace(value, '\"x\"', '\"y\"') WHERE sequence = 4", 4),
        ("DELETE FROM streams WHERE sequence = 3", 4),
        (
            "UPDATE streams SET value = (SELECT value FROM streams WHERE sequence = 2)"
            " WHERE sequence = 3",
            3,
        ),
        ("UPDATE streams SET value = replace(value, '\"r\"', '\"s\"') WHERE sequence = 6", 6),
    ],
)
def test_tampering_is_found_and_named(tmp_path: Path, damage: str, named: int) -> None:
    asyncio.run(write(tmp_path))
    assert asyncio.run(read(tmp_path)).step == 1
    connection = sqlite3.connect(tmp_path / "store.sqlite")
    changed = connection.execute(damage).rowcount
    connection.commit()
    connection.close()
    assert changed
    with pytest.raises(LedgerError, match=f"run run: .* breaks at record {named} "):
        asyncio.run(read(tmp_path))


def test_a_chain_of_another_run_is_refused(tmp_path: Path) -> None:
    rows = chained("run", RECORDS)
    with pytest.raises(LedgerError, match="breaks at record 1"):
        folded("other", rows)


def test_a_record_that_does_not_fit_is_named() -> None:
    rows = chained("run", [RECORDS[1], RECORDS[3]])
    with pytest.raises(LedgerError, match=r"record 2: group 0, attempt 1: scored cannot follow"):
        folded("run", rows)


def test_what_is_flushed_can_be_read_after_a_crash(tmp_path: Path) -> None:
    async def body() -> str:
        store = SqliteStore(tmp_path / "store.sqlite")
        ledger = await RunLedger.open(store, PayloadStore(tmp_path / "payloads"), "run")
        ledger.record(RECORDS[1])
        ledger.record(RECORDS[2])
        payload = ledger.keep(b"tokens")
        ledger.record(Scored(0, 1, payload))
        await ledger.flush()
        return payload  # and the process is gone

    payload = asyncio.run(body())
    state = asyncio.run(read(tmp_path))
    assert state.groups[0].payload == payload
    assert PayloadStore(tmp_path / "payloads").read(payload) == b"tokens"


def test_payloads_are_checked_and_pruned(tmp_path: Path) -> None:
    payloads = PayloadStore(tmp_path)
    payloads.write({"a" * 64: b"wrong name"})
    with pytest.raises(InputError, match="does not match"):
        payloads.read("a" * 64)
    (tmp_path / "half.partial").write_bytes(b"")
    payloads.prune(set())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="missing"):
        payloads.read("a" * 64)


def test_pruning_keeps_what_a_resume_from_the_checkpoint_reads() -> None:
    state = LedgerState()
    for number in range(3):
        state.apply(Issued(number, 1, "p"))
        state.apply(Generated(number, 1, "d"))
        state.apply(Scored(number, 1, f"x{number}"))
    for step in (1, 2):
        state.apply(Consumed(step, ((step - 1, 1),)))
        state.apply(Committed(VersionId(0, step), "r"))
    assert state.payloads_after(0) == {"x0", "x1", "x2"}
    assert state.payloads_after(1) == {"x1", "x2"}
    assert state.payloads_after(2) == {"x2"}
