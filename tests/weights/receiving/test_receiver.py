"""What a receiver stages, keeps and gives back: deltas, memory, and refusals that change nothing."""

from dataclasses import replace

import pytest
import torch

from tests.weight_sync.ends import (
    ALL,
    LONG,
    by_relay,
    from_memory,
    group_of,
    holds,
    impatient_relay,
    limits_of,
    make_snapshot,
    make_values,
    snapshot_of,
    stage,
    started,
    take_from_memory,
    version_of,
)
from trimaran.errors import OutOfOrderError, TransferError
from trimaran.types import CollectiveSource, MemorySource, RelaySource, VersionId
from weights.delta import delta_changes
from weights.memory import free_memory as room


@pytest.fixture
def ends():
    with started(receivers=2, relay=impatient_relay) as ([sender], receivers):
        yield sender, receivers


class Versions:
    """A sender's versions, each a few elements away from the one before."""

    def __init__(self, sender):
        self.sender = sender
        self.values = make_values()
        self.snapshot = snapshot_of(self.values)
        self.contents = [self.snapshot.buffer.clone()]
        self.manifests = [self.snapshot.manifest]
        sender.hold(self.snapshot)

    def advance(self):
        self.sender.hold(None)
        self.values["proj"][1, 3] += 1.0
        self.values["embed"][36, 10] *= 2
        self.snapshot = snapshot_of(self.values, reuse=self.snapshot, keep_delta=True)
        self.contents.append(self.snapshot.buffer.clone())
        self.manifests.append(self.snapshot.manifest)
        self.sender.hold(self.snapshot)
        return self.snapshot

    @property
    def delta(self):
        return delta_of(self.snapshot).describe(ALL)


def delta_of(snapshot):
    assert snapshot.delta
    return snapshot.delta


def held_bytes(receiver):
    return receiver.held.shadow.buffer.clone()


def test_an_engine_hears_what_alone_a_delta_changed_until_it_has_loaded_it(ends, monkeypatch):
    monkeypatch.setattr(delta_changes, "MAX_SHARE", 1.0)
    sender, (receiver, _) = ends
    versions = Versions(sender)
    take_from_memory(receiver, versions.snapshot)
    assert receiver.held.shadow.changes is None
    snapshot = versions.advance()
    stage(receiver, snapshot, by_relay(snapshot, sender.peer, delta=versions.delta), step=2)
    changes = receiver.staged.shadow.changes
    assert changes.base_root == versions.manifests[0].root
    changed = [one.info.name for one in changes.tensors(snapshot.manifest.tensors)]
    assert changed == ["embed", "proj"]
    receiver.keep(VersionId(0, 2))
    assert receiver.held.shadow.changes is None


def test_a_discarded_delta_gives_the_base_back(ends):
    sender, (receiver, other) = ends
    versions = Versions(sender)
    base = versions.snapshot
    take_from_memory(receiver, base)
    address = receiver.held.shadow.buffer.data_ptr()
    snapshot = versions.advance()
    source = by_relay(snapshot, sender.peer, delta=versions.delta)
    staged = stage(receiver, snapshot, source, step=2)
    assert staged.num_bytes == versions.delta.num_bytes < 100
    assert receiver.staged.shadow.buffer.data_ptr() == address
    with pytest.raises(TransferError, match="holds other weights"):
        # While it is applied the old root is nowhere to be had.
        stage(other, base, by_relay(base, receiver.peer))
    receiver.discard(VersionId(0, 2))
    assert receiver.staged is None
    assert torch.equal(held_bytes(receiver), versions.contents[0])
    assert receiver.held.version.root == versions.manifests[0].root
    stage(other, base, by_relay(base, receiver.peer))
    assert torch.equal(other.staged.shadow.buffer, versions.contents[0])
    # And it can take the delta after all.
    stage(receiver, snapshot, source, step=2)
    assert holds(receiver, snapshot)
    receiver.keep(VersionId(0, 2))
    assert receiver.held.shadow.manifest == snapshot.manifest


def test_a_delta_against_another_base_is_refused(ends):
    sender, (receiver, other) = ends
    versions = Versions(sender)
    take_from_memory(receiver, versions.snapshot)
    versions.advance()
    snapshot = versions.advance()
    source = by_relay(snapshot, sender.peer, delta=versions.delta)
    old, base = (manifest.root for manifest in versions.manifests[:2])
    with pytest.raises(OutOfOrderError, match=f"against {base}, this replica holds {old}"):
        stage(receiver, snapshot, source, step=3)
    with pytest.raises(OutOfOrderError, match="holds nothing; stage the full version"):
        stage(other, snapshot, source, step=3)
    assert torch.equal(held_bytes(receiver), versions.contents[0])
    group = sender.open(group_of(1), LONG)
    sender.open(replace(group_of(2), nonce=group.nonce), LONG)  # of the same plan
    assert sender.open(group_of(1), LONG) == group
    with pytest.raises(OutOfOrderError, match=f"has a delta against {base}, not one against {old}"):
        sender.send(snapshot, group.group_id, ALL, old, limits_of())
    stage(receiver, snapshot, by_relay(snapshot, sender.peer), step=3)
    assert holds(receiver, snapshot)


@pytest.mark.parametrize("fault", ["malformed", "wrong", "missing"])
def test_a_bad_delta_leaves_the_base_as_it_was(ends, fault):
    sender, (receiver, other) = ends
    versions = Versions(sender)
    base = versions.snapshot
    take_from_memory(receiver, base)
    snapshot = versions.advance()
    pieces, delta = delta_of(snapshot).pieces, versions.delta
    last = max(pieces)
    if fault == "malformed":
        pieces[last] = bytes(len(pieces[last]))
    elif fault == "wrong":
        values = dict(versions.values, proj=versions.values["proj"] + 1.0)
        wrong = snapshot_of(values, reuse=make_snapshot(), keep_delta=True)
        pieces.update(delta_of(wrong).pieces)
        delta = versions.delta
    else:
        delta = replace(delta, sizes=tuple(0 for _ in delta.sizes))
    sender.hold(snapshot)
    expected = {"malformed": "malformed", "wrong": "arrived with digest", "missing": "no piece"}
    with pytest.raises(TransferError, match=rf"block \d.*{expected[fault]}"):
        stage(receiver, snapshot, by_relay(snapshot, sender.peer, delta=delta), step=2)
    assert receiver.staged is None
    assert torch.equal(held_bytes(receiver), versions.contents[0])
    stage(other, base, by_relay(base, receiver.peer))
    assert torch.equal(other.staged.shadow.buffer, versions.contents[0])


def test_a_delta_that_finds_no_room_leaves_the_base_as_it_was(ends, monkeypatch):
    sender, (receiver, _) = ends
    versions = Versions(sender)
    take_from_memory(receiver, versions.snapshot)
    snapshot = versions.advance()
    source = by_relay(snapshot, sender.peer, delta=versions.delta)
    full = room.FreeMemory(room.MARGIN_BYTES, "this machine")
    with monkeypatch.context() as patch:
        patch.setattr(room, "find_free_memory", lambda: full)
        with pytest.raises(TransferError, match="no room for 0 MiB of a delta's pieces"):
            stage(receiver, snapshot, source, step=2)
    assert torch.equal(held_bytes(receiver), versions.contents[0])
    stage(receiver, snapshot, source, step=2)
    assert holds(receiver, snapshot)


def test_deltas_and_blocks_do_not_mix(ends):
    sender, (receiver, _) = ends
    versions = Versions(sender)
    take_from_memory(receiver, versions.snapshot)
    snapshot = versions.advance()
    delta = delta_of(snapshot).describe(((0, 4),))
    sources = [
        RelaySource(((0, 4),), (sender.peer,), delta),
        RelaySource(((4, 9),), (sender.peer,)),
    ]
    with pytest.raises(TransferError, match="plan one or the other"):
        stage(receiver, snapshot, *sources)
    assert torch.equal(held_bytes(receiver), versions.contents[0])


def test_a_staged_shadow_that_is_still_read_stays_as_it_is(ends):
    _, (receiver, _) = ends
    first, second = make_snapshot(1), make_snapshot(2)
    stage(receiver, first, from_memory(first))
    loading = receiver.staged.shadow
    stage(receiver, second, from_memory(second), step=2)
    assert torch.equal(loading.buffer, first.buffer)
    receiver.keep(VersionId(0, 1))  # too late
    assert receiver.held is None
    assert holds(receiver, second)


def test_bad_requests_change_nothing(ends):
    _, (receiver, _) = ends
    snapshot, other = make_snapshot(1), make_snapshot(2)
    take_from_memory(receiver, snapshot)
    before = held_bytes(receiver)
    source, beyond = from_memory(other), RelaySource(((9, 10),), ())
    attempts = [
        ("roots differ", snapshot, [source]),
        ("no source brings", other, []),
        ("two sources bring", other, [source, source]),
        ("block 9 does not exist", other, [source, beyond]),
    ]
    for message, version, sources in attempts:
        with pytest.raises(TransferError, match=message):
            receiver.stage(version_of(version), other.manifest, sources, limits_of())
        assert torch.equal(held_bytes(receiver), before)
        assert receiver.staged is None


def test_the_culprit_is_named_and_stops_the_others(ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    group = sender.open(group_of(1), LONG)  # nothing sends
    sources = [
        CollectiveSource(((0, 4),), group, rank=1),
        MemorySource(((4, 9),), "/proc/1/fd/99999"),
    ]
    with pytest.raises(TransferError, match="/proc/1/fd/99999: the owner's memory is gone"):
        stage(receiver, snapshot, *sources)
