"""Whatever dies or fails on the way: each group ends once, nothing is lost, and every harm is found."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from tests.controller.memory_store import CrashError, MemoryAnchor, MemoryPayloads, MemoryStore
from trimaran.ledger.check import Findings, check_ledger
from trimaran.ledger.group_life import GroupLife, find_records
from trimaran.ledger.ledger import Retention, RunLedger, read_trees
from trimaran.ledger.payloads.pack import place_of
from trimaran.ledger.records import (
    Branched,
    Checkpointed,
    Committed,
    Consumed,
    Filtered,
    Generated,
    Issued,
    LedgerError,
    Record,
    Reissue,
    Replayed,
    Scored,
    Skipped,
    canonical,
    chain_hash,
    decode,
    encode,
)
from trimaran.ledger.search import find_start
from trimaran.ledger.state import OPEN, Stage
from trimaran.ledger.write_pause import WritePause
from trimaran.types import Proof, VersionId

Result = TypeVar("Result")

RUN_ID = "run"
PROOF = Proof(VersionId(1, 2), "rollout-0", "root", 4, 1)


class Disks:
    """What outlives a controller."""

    def __init__(self) -> None:
        self.store: Any = MemoryStore()
        self.payloads: Any = MemoryPayloads()
        self.anchor: Any = MemoryAnchor()

    async def open(self) -> RunLedger:
        return await RunLedger.open(
            self.store,
            self.payloads,
            RUN_ID,
            anchor=self.anchor,
            retention=Retention(segment_records=7),
            pause=WritePause(timeout=5, wait=lambda num_tries: 0.0),
        )

    async def check(self) -> Findings:
        noted = self.anchor.read()
        anchors = {"ledger-head.json": noted} if noted else {}
        return await check_ledger(self.store, self.payloads, RUN_ID, anchors)


class LedgerLife(RuleBasedStateMachine):
    """A controller that lives, dies and is started again over disks that fail."""

    def __init__(self) -> None:
        super().__init__()
        self.disks = Disks()
        self.runner = asyncio.Runner()
        self.ledger = self.run(self.disks.open())
        self.flushed = 0
        self.hashes: dict[int, str] = {}
        """After so many records of the last life."""

    def record(self, record: Record) -> None:
        self.ledger.record(record)
        self.hashes[self.ledger.anchor.records] = self.ledger.anchor.hash

    def run(self, work: Awaitable[Result]) -> Result:
        async def body() -> Result:
            return await work

        return self.runner.run(body())

    def teardown(self) -> None:
        self.runner.close()

    @property
    def state(self):
        return self.ledger.state

    def pick(self, data: st.DataObject, *stages: Stage) -> tuple[int, int]:
        number = data.draw(st.sampled_from(self.state.with_stage(*stages)))
        return number, self.state.groups[number].attempt

    def any_in(self, *stages: Stage) -> bool:
        return bool(self.state.with_stage(*stages))

    @rule(passed_over=st.integers(0, 1))
    def issue(self, passed_over: int) -> None:
        """Numbers that a dead controller passed over come first, as in `open_groups`."""
        number = min(self.state.unissued, default=self.state.next_number + passed_over)
        self.record(Issued(number, 1, "p"))

    @precondition(lambda self: self.any_in(*OPEN))
    @rule(data=st.data())
    def reissue(self, data: st.DataObject) -> None:
        number, attempt = self.pick(data, *OPEN)
        self.record(Issued(number, attempt + 1, "p", Reissue("it died", "rollout-0")))

    @precondition(lambda self: self.any_in(Stage.ISSUED))
    @rule(data=st.data())
    def generate(self, data: st.DataObject) -> None:
        number, attempt = self.pick(data, Stage.ISSUED)
        self.record(Generated(number, attempt, "d", (("rollout-0", "0.1"),)))

    @precondition(lambda self: self.any_in(Stage.GENERATED))
    @rule(data=st.data())
    def score(self, data: st.DataObject) -> None:
        number, attempt = self.pick(data, Stage.GENERATED)
        payload = self.ledger.keep(f"{number}.{attempt}".encode())
        self.record(Scored(number, attempt, payload, (1.0, None)))

    @precondition(lambda self: self.any_in(Stage.ISSUED))
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        self.record(Skipped(*self.pick(data, Stage.ISSUED), reason="r"))

    @precondition(lambda self: self.any_in(Stage.GENERATED))
    @rule(data=st.data())
    def filter(self, data: st.DataObject) -> None:
        self.record(Filtered(*self.pick(data, Stage.GENERATED), reason="r"))

    @precondition(lambda self: self.any_in(Stage.SCORED) and not self.state.has_pending_batch)
    @rule()
    def train(self) -> None:
        numbers = self.state.with_stage(Stage.SCORED)[:2]
        groups = tuple((number, self.state.groups[number].attempt) for number in numbers)
        self.record(Consumed(self.state.step + 1, groups, (PROOF,)))

    @precondition(lambda self: self.state.has_pending_batch)
    @rule()
    def commit(self) -> None:
        step = self.state.step + 1
        self.record(Committed(VersionId(0, step), f"root-{step}"))

    @precondition(lambda self: self.state.step > max(self.state.checkpoints, default=0))
    @rule(keep=st.integers(1, 2), behind=st.integers(0, 2))
    def checkpoint(self, keep: int, behind: int) -> None:
        """Written beside later steps."""
        step = max(self.state.step - behind, max(self.state.checkpoints, default=0) + 1)
        kept = [*self.state.checkpoints, step][-keep:]
        self.record(Checkpointed(step, "c", kept[0]))
        self.run(self.ledger.collect())
        self.flushed = self.ledger.anchor.records

    @rule(store=st.sampled_from(["", "away", "answer lost"]), bucket=st.sampled_from(["", "away"]))
    def flush(self, store: str, bucket: str) -> None:
        """Also where a call fails: the ledger tries again."""
        self.disks.store.faults = [store] if store else []
        self.disks.payloads.faults = [bucket] if bucket else []
        self.run(self.ledger.flush())
        self.flushed = self.ledger.anchor.records

    @rule(where=st.sampled_from(["", "payloads", "crash before", "crash after"]))
    def die_and_resume(self, where: str) -> None:
        """At any moment, also between payload and record."""
        store, payloads = self.disks.store, self.disks.payloads
        if where:
            store.faults = [where] if where != "payloads" else []
            payloads.faults = ["crash after"] if where == "payloads" else []
            with contextlib.suppress(CrashError):
                self.run(self.ledger.flush())
        store.faults, payloads.faults = [], []
        self.ledger = self.run(self.disks.open())
        end = self.ledger.anchor
        assert end.records >= self.flushed, "what was flushed is lost"
        assert self.hashes.get(end.records, end.hash) == end.hash, "another history"
        self.flushed = end.records

    @rule()
    def nothing_is_wrong_in_what_stands(self) -> None:
        found = self.run(self.disks.check())
        assert found.faults == []

    @precondition(lambda self: self.state.next_number > 0)
    @rule(data=st.data())
    def a_search_finds_what_a_whole_reading_finds(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.state.next_number - 1))
        life = self.run(whole_life(self.disks, number))
        assert self.run(find_records(self.disks.store, self.disks.payloads, RUN_ID, number)) == life

    @invariant()
    def every_group_is_in_one_place(self) -> None:
        state, totals = self.state, self.state.totals
        ended = totals.committed + totals.filtered + totals.skipped
        assert not any(number in state.ended for number in state.groups)
        assert ended + len(state.groups) + len(state.unissued) == state.next_number

    @invariant()
    def what_a_resume_needs_is_there(self) -> None:
        async def read() -> None:
            ledger = await self.disks.open()
            for digest in ledger.state.payloads_after(ledger.state.oldest_step):
                await ledger.load(digest)

        self.run(read())


TestLedgerLife = LedgerLife.TestCase
TestLedgerLife.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


async def whole_life(disks: Disks, number: int) -> GroupLife:
    life = GroupLife(number)
    async for _, tree in read_trees(disks.store, disks.payloads, RUN_ID):
        life.add(decode(tree))
    return life


async def history(disks: Disks) -> None:
    """Four steps of two groups, a skip, a reissue, two checkpoints: 5 segments, 2 of them archived."""
    ledger = await disks.open()

    def scored(number: int, attempt: int = 1) -> None:
        ledger.record(Generated(number, attempt, "d"))
        payload = ledger.keep(f"group {number}".encode())
        ledger.record(Scored(number, attempt, payload, (0.5,)))

    for step in (1, 2, 3, 4):
        first = 3 * (step - 1)
        for number in range(first, first + 3):
            ledger.record(Issued(number, 1, "p"))
        ledger.record(Issued(first, 2, "p", Reissue("it died", "rollout-0")))
        scored(first, 2)
        scored(first + 1)
        ledger.record(Skipped(first + 2, 1, "too long"))
        ledger.record(Consumed(step, ((first, 2), (first + 1, 1)), (PROOF,)))
        ledger.record(Committed(VersionId(0, step), f"root-{step}"))
        await ledger.flush()
        if step % 2:
            ledger.record(Checkpointed(step, "c", step))
            await ledger.collect()
    ledger.record(Issued(12, 1, "p"))
    scored(12)
    await ledger.flush()
    await ledger.close()


def whole() -> Disks:
    disks = Disks()
    asyncio.run(history(disks))
    return disks


def test_the_history_is_sound_and_partly_archived() -> None:
    disks = whole()
    assert min(disks.store.rows) > 20, "nothing was archived"
    found = asyncio.run(disks.check())
    assert (found.faults, found.num_issued, found.state.totals.committed) == ([], 13, 8)
    assert asyncio.run(disks.open()).state == found.state
    packs = [name for name in disks.payloads.data if name.startswith("groups-")]
    assert len(packs) == 2, "only those of step 4 and of the open group are needed"

    async def kinds() -> list[str]:
        return [tree["kind"] async for _, tree in read_trees(disks.store, disks.payloads, RUN_ID)]

    assert asyncio.run(kinds()).count("issued") == 17


@pytest.mark.parametrize("number", range(13))
async def test_a_group_is_found_without_a_reading_of_the_whole_ledger(number: int) -> None:
    """From the last archived place before it to the checkpoint behind it."""
    disks = Disks()
    await history(disks)
    life = await whole_life(disks, number)
    assert await find_records(disks.store, disks.payloads, RUN_ID, number) == life
    start = await find_start(
        disks.store, disks.payloads, RUN_ID, lambda state: state["next_number"] <= number
    )
    first = start.after + 1
    issued = [
        sequence
        async for sequence, tree in read_trees(disks.store, disks.payloads, RUN_ID)
        if tree["kind"] == "issued" and tree["group"] == number
    ]
    standing = min(disks.store.rows)  # what the store holds has no shorter way in
    assert min(issued[0] - 13, standing) <= first <= issued[0], "more than two segments in vain"


async def test_a_replay_after_the_last_checkpoint_is_part_of_the_life() -> None:
    """A resume that reached other weights: the step has two versions."""
    disks = Disks()
    await history(disks)
    ledger = await disks.open()
    ledger.record(Branched(4, 1))
    ledger.record(Replayed(VersionId(1, 4), "other"))
    await ledger.flush()
    await ledger.close()
    life = await find_records(disks.store, disks.payloads, RUN_ID, 9)
    assert [version.root for version in life.versions] == ["root-4", "other"]


def rechained(disks: Disks, place: int, *records: Record) -> None:
    """Somebody who knows how hashes are made puts records behind the one at `place`."""
    rows: dict[int, Any] = disks.store.rows
    head = rows[place]["hash"]
    trees = [encode(record) for record in records]
    trees += [copy.deepcopy(rows[n]) for n in sorted(rows) if n > place]
    for number, tree in enumerate(trees, start=place + 1):
        head = chain_hash(head, canonical(tree))
        rows[number] = {**tree, "hash": head}
    disks.store.end = max(rows)


def swap(disks: Disks, place: int) -> None:
    rows = disks.store.rows
    rows[place], rows[place + 1] = rows[place + 1], rows[place]


def drop(disks: Disks, place: int) -> None:
    del disks.store.rows[place]


def close_the_gap(disks: Disks, place: int) -> None:
    rows = disks.store.rows
    for number in range(place, disks.store.end):
        rows[number] = rows[number + 1]
    disks.store.lose(disks.store.end - 1)


def alter(disks: Disks, place: int) -> None:
    tree = dict(disks.store.rows[place])
    name = next(name for name in tree if name not in ("kind", "hash"))
    disks.store.rows[place] = {**tree, name: "other"}


HARMS = {harm.__name__: harm for harm in (swap, drop, close_the_gap, alter)}


@given(name=st.sampled_from(sorted(HARMS)), share=st.floats(0, 0.99))
@settings(max_examples=40, deadline=None)
def test_a_harmed_record_is_found_and_named(name: str, share: float) -> None:
    disks = whole()
    first, last = min(disks.store.rows), disks.store.end
    place = first + int(share * (last - first))
    HARMS[name](disks, place)
    with pytest.raises(LedgerError, match="record"):
        asyncio.run(disks.open())
    [fault, *_] = asyncio.run(disks.check()).faults
    assert "record" in fault


@given(num_lost=st.integers(1, 30))
@settings(max_examples=20, deadline=None)
def test_lost_last_records_are_named(num_lost: int) -> None:
    disks = whole()
    last, num_lost = disks.store.end, min(num_lost, len(disks.store.rows) - 1)
    disks.store.lose(last - num_lost)
    missing = f"records {last - num_lost + 1} to {last} are missing"
    with pytest.raises(LedgerError, match=missing):
        asyncio.run(disks.open())
    assert missing in asyncio.run(disks.check()).faults[0]


def test_another_history_of_the_same_length_is_found() -> None:
    disks, other = whole(), whole()
    rechained(other, other.store.end - 3, Issued(13, 1, "p"))
    other.store.lose(other.store.end - 1)
    disks.store, disks.payloads = other.store, other.payloads
    with pytest.raises(LedgerError, match="the store holds another history"):
        asyncio.run(disks.open())
    assert "is not the one that" in asyncio.run(disks.check()).faults[0]


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (Consumed(5, ((10, 1),)), "group 10, attempt 1: consumed cannot follow its end"),
        (Issued(10, 2, "p"), "group 10: attempt 2 cannot be issued: it has ended"),
        (Skipped(9, 2, "r"), "group 9, attempt 2: skipped cannot follow its end"),
        (Committed(VersionId(0, 4), "r"), "step 4 was not consumed"),
    ],
)
def test_a_group_that_ends_twice_is_found_though_the_hashes_are_right(
    record: Record, fault: str
) -> None:
    disks = whole()
    rechained(disks, disks.store.end, record)
    with pytest.raises(LedgerError, match=fault):
        asyncio.run(disks.open())
    assert fault in asyncio.run(disks.check()).faults[0]


def test_an_altered_payload_is_found() -> None:
    disks = whole()
    name = asyncio.run(disks.open()).state.groups[12].payload
    disks.payloads.data[place_of(name).file] = b"group 21"
    assert asyncio.run(disks.check()).faults == [
        f"{name}: payload does not match its digest; it was altered"
    ]
    del disks.payloads.data[place_of(name).file]
    assert "payload is missing" in asyncio.run(disks.check()).faults[0]


def test_an_altered_archive_is_found() -> None:
    disks = whole()
    name = next(name for name in disks.payloads.data if name.startswith("records-"))
    disks.payloads.data[name] += b"!"
    assert name in asyncio.run(disks.check()).faults[0]


async def test_a_store_that_goes_back_while_the_run_writes_is_named() -> None:
    disks = Disks()
    ledger = await disks.open()
    for number in range(5):
        ledger.record(Issued(number, 1, "p"))
        await ledger.flush()
    disks.store.lose(3)
    ledger.record(Issued(5, 1, "p"))
    with pytest.raises(LedgerError, match="records 4 to 5 are missing: the store had acknowledged"):
        await ledger.flush()
