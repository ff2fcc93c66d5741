"""A stage that fails, or is given up late: what the replica still has to give afterwards."""

import pytest
import torch

from tests.weight_sync.ends import (
    by_relay,
    from_memory,
    holds,
    impatient_relay,
    make_snapshot,
    stage,
    started,
    take_from_memory,
)
from trimaran.errors import TransferError
from trimaran.types import VersionId
from weights.memory.free_memory import FreeMemory
from weights.receiving import receiver as receiver_module


@pytest.fixture
def ends():
    with started(senders=0, receivers=2, relay=impatient_relay) as (_, receivers):
        yield receivers


def fail_to_stage(receiver, live, following, **options):
    """All but the last blocks arrive: they were written somewhere."""
    wrong = make_snapshot(9)
    last = live.layout.pieces[-1].start
    wrong.buffer[:last].copy_(following.buffer[:last])
    with pytest.raises(TransferError, match="arrived with digest"):
        stage(receiver, following, from_memory(wrong), step=2, **options)
    assert receiver.staged is None


def test_a_joiner_gets_the_live_version_after_a_stage_that_failed(ends):
    keeper, joiner = ends
    live, following = make_snapshot(1), make_snapshot(2)
    take_from_memory(keeper, live)
    fail_to_stage(keeper, live, following, keep_held=True)
    assert torch.equal(keeper.held.shadow.buffer, live.buffer)
    stage(joiner, live, by_relay(live, keeper.peer))
    assert holds(joiner, live)


def test_a_joiner_gets_the_live_version_until_the_next_one_is_loaded(ends):
    keeper, joiner = ends
    live, following = make_snapshot(1), make_snapshot(2)
    take_from_memory(keeper, live)
    stage(keeper, following, from_memory(following), step=2, keep_held=True)
    stage(joiner, live, by_relay(live, keeper.peer))
    stage(joiner, following, by_relay(following, keeper.peer))
    keeper.keep(VersionId(0, 2))
    stage(joiner, following, by_relay(following, keeper.peer))
    with pytest.raises(TransferError, match="holds other weights"):
        stage(joiner, live, by_relay(live, keeper.peer))


@pytest.mark.parametrize("seed", [2, 1], ids=["another root", "the same root"])
def test_a_discarded_stage_leaves_the_live_version_to_be_had(ends, seed):
    keeper, joiner = ends
    live, following = make_snapshot(1), make_snapshot(seed)
    take_from_memory(keeper, live)
    stage(keeper, following, from_memory(following), step=2, attempt="x", keep_held=True)
    keeper.discard(VersionId(0, 2), "x")
    assert keeper.held.version.version == VersionId(0, 1)
    stage(joiner, live, by_relay(live, keeper.peer))
    assert holds(joiner, live)


def test_without_room_for_a_second_shadow_the_live_version_is_written_over(ends, monkeypatch):
    keeper, _ = ends
    live, following = make_snapshot(1), make_snapshot(2)
    take_from_memory(keeper, live)
    place = keeper.held.shadow.buffer.data_ptr()
    size = live.layout.num_bytes
    monkeypatch.setattr(
        receiver_module, "find_free_memory", lambda: FreeMemory(2 * size - 1, "this machine")
    )
    stage(keeper, following, from_memory(following), step=2, keep_held=True)
    assert keeper.held is None
    assert keeper.staged.shadow.buffer.data_ptr() == place


def test_who_is_not_asked_to_keep_gives_the_second_shadow_back(ends):
    keeper, _ = ends
    for step, keep in ((1, True), (2, True), (3, False)):
        snapshot = make_snapshot(step)
        stage(keeper, snapshot, from_memory(snapshot), step=step, keep_held=keep)
        keeper.keep(VersionId(0, step))
    assert keeper._contents.spare is None
    assert torch.equal(keeper.held.shadow.buffer, make_snapshot(3).buffer)


def test_a_late_abort_leaves_what_the_next_attempt_staged(ends):
    receiver, _ = ends
    snapshot = make_snapshot()
    stage(receiver, snapshot, from_memory(snapshot), attempt="first")
    stage(receiver, snapshot, from_memory(snapshot), attempt="second")
    receiver.discard(VersionId(0, 1), "first")
    assert holds(receiver, snapshot)
    receiver.discard(VersionId(0, 1), "second")
    assert receiver.staged is None
