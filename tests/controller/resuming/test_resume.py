"""A run that dies after any record of its ledger ends as if it had never died."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from services.controller.resuming.resume import DivergedError, open_groups
from tests.controller.fakes import PROMPTS, RUN_ID, World, make_config, run
from trimaran.config import RunConfig
from trimaran.errors import OutOfOrderError
from trimaran.ledger.anchor import ANCHOR_NAME
from trimaran.ledger.ledger import RunLedger, stream_of
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.ledger.payloads.pack import place_of
from trimaran.ledger.records import (
    Branched,
    Checkpointed,
    Committed,
    Consumed,
    Generated,
    Issued,
    LedgerError,
    Record,
    Scored,
    Timed,
    decode,
)
from trimaran.store import entries
from trimaran.store.sqlite import SqliteStore
from trimaran.types import (
    Branch,
    Completion,
    Group,
    LedgerEnd,
    Score,
    ScoredGroup,
    Segment,
    VersionId,
)
from trimaran.wire.messages import serialize_scored_group

EPISODES = {"environment": {"factory": "guess.py:Guess"}, "reward": {"rules": {}}}


def run_world(
    folder: Path,
    config: RunConfig,
    checkpoints: dict[int, str] | None = None,
    salt: str = "",
    nonfinite: frozenset[int] = frozenset(),
    num_busy: int = 0,
    has_answer: bool = True,
) -> World:
    """`nonfinite`: steps whose update the trainer leaves out. `num_busy`, `has_answer`: as in
    FakeTrainer."""
    world = World(folder, config, checkpoints)
    world.trainer.num_busy, world.trainer.has_answer = num_busy, has_answer
    world.trainer.salt = salt
    world.trainer.nonfinite = lambda step: f"bad step {step}" if step in nonfinite else ""
    return run(world)


def cut_ledger(source: Path, target: Path, num_records: int) -> None:
    """A copy of the run folder as a crash after `num_records` records leaves it."""
    shutil.copytree(source, target)
    with closing(sqlite3.connect(target / "store.sqlite", isolation_level=None)) as connection:
        connection.execute("DELETE FROM streams WHERE sequence > ?", (num_records,))
    (target / ANCHOR_NAME).unlink()


def records(folder: Path) -> list[Record]:
    async def read() -> list[Record]:
        store = SqliteStore(folder / "store.sqlite")
        try:
            return [decode(tree) async for _, tree in entries(store, stream_of(RUN_ID))]
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("max_lag", "stride", "bad", "sections"),
    [
        (0, 1, frozenset(), {}),
        (0, 1, frozenset({2}), {}),
        (2, 3, frozenset(), {}),
        (0, 1, frozenset(), EPISODES),
        (2, 3, frozenset(), EPISODES),
    ],
)
def test_every_crash_point_reaches_the_same_state(
    tmp_path: Path, max_lag: int, stride: int, bad: frozenset[int], sections: dict[str, Any]
) -> None:
    # A crash comes before the collection that the whole run did later.
    kept = {"keep_payloads": "all", "keep_checkpoints": 9, "checkpoint_every": 2}
    lag = {"steps": 3, "groups_per_step": 2, "max_lag": max_lag, "deterministic": True}
    config = make_config(run=kept | lag, **sections)
    (tmp_path / "whole").mkdir()
    whole = run_world(tmp_path / "whole", config, nonfinite=bad)
    rows = records(tmp_path / "whole")
    assert len(rows) > 25
    for crash in range(0, len(rows), stride):
        folder = tmp_path / f"crash-{crash}"
        cut_ledger(tmp_path / "whole", folder, crash)
        saved = [r.step for r in rows[:crash] if isinstance(r, Checkpointed)]
        checkpoints = {step: whole.checkpoints[step] for step in [0, *saved]}
        resumed = run_world(folder, config, checkpoints, nonfinite=bad)
        state = resumed.ledger.state
        assert state.step == 3
        assert {step for step, entry in state.steps.items() if entry.nonfinite} <= bad
        assert state.totals.nonfinite_steps == len(bad)
        assert (state.ended.below, state.groups) == (6, {}), f"crash after {crash}"
        assert state.totals.committed == 6
        assert max(resumed.lags(), default=0) <= max_lag
        if max_lag == 0:
            assert resumed.trainer.root == whole.trainer.root, f"crash after {crash}"
        committed = [r for r in rows[:crash] if isinstance(r, Committed)]
        published = [event[1] for event in resumed.events if event[0] == "publish"]
        assert published[0] >= len(committed), "published a version before the recorded one"


def crash_after_step(folder: Path, step: int, copy: Path) -> None:
    place = next(
        i
        for i, r in enumerate(records(folder), 1)
        if isinstance(r, Committed) and r.version.step == step
    )
    cut_ledger(folder, copy, place)


def roots_of(folder: Path) -> dict[int, str]:
    """By step."""
    return {r.version.step: r.root for r in records(folder) if isinstance(r, Committed)}


CONFIG = make_config(run={"steps": 3, "checkpoint_every": 100})


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    (tmp_path / "whole").mkdir()
    run_world(tmp_path / "whole", CONFIG)
    return tmp_path / "whole"


def test_a_deterministic_run_that_diverges_stops_and_shows_both_roots(
    finished: Path, tmp_path: Path
) -> None:
    config = make_config(run={"steps": 3, "checkpoint_every": 100, "deterministic": True})
    crash_after_step(finished, 2, tmp_path / "crash")
    recorded = roots_of(finished)[1]
    with pytest.raises(DivergedError, match=rf"step 1 has root \w+, recorded is {recorded}"):
        run_world(tmp_path / "crash", config, salt="another kernel")


def test_otherwise_a_difference_opens_a_new_lineage(finished: Path, tmp_path: Path) -> None:
    crash_after_step(finished, 2, tmp_path / "crash")
    resumed = run_world(tmp_path / "crash", CONFIG, salt="another kernel")
    state = resumed.ledger.state
    assert state.lineage == 1
    versions = [entry.version for entry in state.steps.values()]
    assert [(v.lineage, v.step) for v in versions if v] == [(1, 1), (1, 2), (1, 3)]
    assert state.steps[3].root == resumed.trainer.root
    # and a later resume compares with the new lineage's roots
    again = run_world(tmp_path / "crash", CONFIG, salt="another kernel")
    assert again.ledger.state.lineage == 1
    assert sum(isinstance(r, Branched) for r in records(tmp_path / "crash")) == 1


@pytest.mark.parametrize("num_busy", [0, 2])
def test_a_trainer_that_lives_on_answers_the_batch_that_was_not_committed(
    finished: Path, tmp_path: Path, num_busy: int
) -> None:
    """Also when it is still about to make that version as the new controller asks."""
    rows, roots = records(finished), roots_of(finished)
    place = next(i for i, r in enumerate(rows, 1) if isinstance(r, Consumed) and r.step == 2)
    cut_ledger(finished, tmp_path / "crash", place)
    resumed = run_world(tmp_path / "crash", CONFIG, {0: "root-0", 2: roots[2]}, num_busy=num_busy)
    events = [e for e in resumed.events if e[0] in ("train", "live")]
    assert events[:2] == [("live", 2), ("train", 3)]
    assert resumed.ledger.state.steps[2].root == roots[2]


@pytest.mark.parametrize(
    ("is_timed", "has_answer", "reported"),
    [(False, True, [2]), (True, True, []), (False, False, [])],
    ids=["before", "after", "restarted"],
)
def test_a_step_is_reported_whose_controller_died_before_it_reported_it(
    finished: Path, tmp_path: Path, is_timed: bool, has_answer: bool, reported: list[int]
) -> None:
    """The trainer lives on and has nothing to train again, but knows its answer."""
    rows = records(finished)
    timed = next(i for i, r in enumerate(rows, 1) if isinstance(r, Timed) and r.step == 2)
    cut_ledger(finished, tmp_path / "crash", timed - 1 + is_timed)
    checkpoints = {0: "root-0", 2: roots_of(finished)[2]}
    resumed = run_world(tmp_path / "crash", CONFIG, checkpoints, has_answer=has_answer)
    assert [event[1] for event in resumed.events if event[0] == "reported"] == reported
    assert resumed.ledger.state.step == 3


@pytest.mark.parametrize(("every", "saved"), [(2, 2), (1, 2), (3, 3), (100, None)])
def test_a_checkpoint_whose_controller_died_is_recorded_also_where_steps_have_followed_it(
    finished: Path, tmp_path: Path, every: int, saved: int | None
) -> None:
    """By a trainer that lives on. It knows of the last save alone."""
    config = make_config(run={"steps": 3, "checkpoint_every": every})
    crash_after_step(finished, 3, tmp_path / "crash")
    roots = roots_of(finished)
    world = World(tmp_path / "crash", config, {0: "root-0", 3: roots[3]})
    world.trainer.loaded = saved or 2
    run(world)
    assert world.ledger.state.checkpoints == ([saved] if saved else [])
    reported = [event for event in world.events if event[0] in ("saved", "checkpoint failed")]
    assert reported == ([("saved", saved, roots[saved])] if saved else [])


def test_a_trainer_ahead_of_the_ledger_is_refused(finished: Path, tmp_path: Path) -> None:
    crash_after_step(finished, 1, tmp_path / "crash")
    with pytest.raises(OutOfOrderError, match="stands at step 3, but the ledger ends at step 1"):
        run_world(tmp_path / "crash", CONFIG, {0: "root-0", 3: "x"})
    (tmp_path / "new").mkdir()
    with pytest.raises(OutOfOrderError, match="ledger is empty"):
        run_world(tmp_path / "new", CONFIG, {0: "root-0", 3: "x"})


def test_a_checkpoint_that_has_seen_more_of_the_ledger_is_believed(
    finished: Path, tmp_path: Path
) -> None:
    """The store and the run folder went back together; the checkpoint did not."""
    crash_after_step(finished, 2, tmp_path / "crash")
    world = World(tmp_path / "crash", CONFIG)
    last = world.ledger.durable.records
    world.trainer.ledger = LedgerEnd(last + 2, "9c41")
    missing = rf"records {last + 1} to {last + 2} are missing: .* the trainer's newest checkpoint"
    with pytest.raises(LedgerError, match=missing):
        run(world)


@pytest.mark.parametrize(("max_lag", "reused"), [(0, []), (1, [3, 5]), (2, [3, 4, 5])])
def test_scored_groups_are_reused_only_within_the_lag(
    tmp_path: Path, max_lag: int, reused: list[int]
) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    ledger = asyncio.run(RunLedger.open(store, FolderPayloads(tmp_path / "payloads"), RUN_ID))

    def record(number: int, version: int) -> None:
        """An episode whose oldest token stands in a branch."""
        oldest = Branch((1,), (0.0,), (Segment(0, 1, VersionId(0, version), "rollout-0"),))
        segments = (Segment(0, 1, VersionId(0, 1), "rollout-0"),)
        completion = Completion((1,), (0.0,), "", "stop", segments, branches=(oldest,))
        group = Group(number, 1, PROMPTS[number], (1,), (completion,))
        payload = ledger.keep(serialize_scored_group(ScoredGroup(group, (Score(1.0),))))
        ledger.record(Issued(number, 1, "p"))
        ledger.record(Generated(number, 1, "d"))
        ledger.record(Scored(number, 1, payload))

    for number, version in enumerate((0, 0, 0, 0, 0, 1)):
        record(number, version)
    ledger.record(Consumed(1, ((0, 1), (1, 1))))
    ledger.record(Committed(VersionId(0, 1), "r"))
    ledger.record(Issued(2, 2, "p"))
    asyncio.run(ledger.flush())
    # With weights of step 1, groups 2 and 3 train next (lag 1 each), then 4 and 5 (2 and 1).
    config = make_config(run={"groups_per_step": 2, "max_lag": max_lag})
    groups = asyncio.run(open_groups(ledger, config))
    asyncio.run(ledger.close())
    asyncio.run(store.close())
    assert [scored.group.number for scored in groups.reused] == reused
    assert sorted([*groups.reissued, *reused]) == [2, 3, 4, 5]


def test_payloads_are_kept_back_to_the_oldest_kept_checkpoint(tmp_path: Path) -> None:
    kept = {"steps": 6, "groups_per_step": 2, "checkpoint_every": 2, "keep_checkpoints": 2}
    world = run_world(tmp_path, make_config(run=kept))
    left = {path.name for path in (tmp_path / "payloads").iterdir()}
    state = world.ledger.state
    assert state.checkpoints == [4, 6]
    needed = {payload for step in (5, 6) for payload in state.steps[step].payloads}
    assert left == {place_of(payload).file for payload in needed}
