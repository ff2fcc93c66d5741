"""What a receiver stages, keeps and gives back: deltas, shards, memory, and refusals that change nothing."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from tests.weight_sync.ends import (
    ALL,
    CONFIG,
    CPU,
    LONG,
    blocks_of,
    by_relay,
    from_memory,
    group_of,
    holds,
    impatient_relay,
    in_group,
    limits_of,
    make_snapshot,
    make_values,
    shadow_of,
    snapshot_of,
    stage,
    started,
    take_from_memory,
    version_of,
)
from trimaran.errors import OutOfOrderError, TransferError
from trimaran.model.folder import ModelFacts
from trimaran.types import CollectiveSource, MemorySource, RelaySource, Transport, VersionId
from weights.delta import delta_changes
from weights.memory import free_memory as room
from weights.receiving.receiver import WeightReceiver
from weights.sending.sender import WeightSender
from weights.sending.snapshot import TensorPart, take_snapshot
from weights.version.grid import cut_tensors
from weights.version.layout import to_ranges
from weights.version.manifest import list_blocks


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


def test_a_delta_makes_the_next_version_bit_for_bit(ends):
    sender, (receiver, other) = ends
    versions = Versions(sender)
    for each in (receiver, other):
        take_from_memory(each, versions.snapshot)
    address = receiver.held.shadow.buffer.data_ptr()
    snapshot = versions.advance()
    group = sender.open(group_of(1), LONG)
    source = in_group(snapshot, group, delta=versions.delta)
    with ThreadPoolExecutor(1) as pool:
        base_root = versions.manifests[0].root
        sent = pool.submit(sender.send, snapshot, 1, ALL, base_root, limits_of())
        staged = stage(receiver, snapshot, source, step=2)
    assert staged.num_bytes == sent.result() == versions.delta.num_bytes < 100
    assert staged.num_blocks == 9
    assert holds(receiver, snapshot)
    assert receiver.held is None
    receiver.keep(VersionId(0, 2))
    assert shadow_of(receiver.held).buffer.data_ptr() == address
    assert shadow_of(receiver.held).manifest == snapshot.manifest
    # By relay, from the replica that applied it.
    assert (
        stage(
            other, snapshot, by_relay(snapshot, receiver.peer, delta=versions.delta), step=2
        ).num_bytes
        == versions.delta.num_bytes
    )
    assert holds(other, snapshot)


def test_an_engine_hears_what_alone_a_delta_changed_until_it_has_loaded_it(ends, monkeypatch):
    monkeypatch.setattr(delta_changes, "MAX_SHARE", 1.0)
    sender, (receiver, _) = ends
    versions = Versions(sender)
    base = versions.snapshot
    take_from_memory(receiver, base)
    assert shadow_of(receiver.held).changes is None
    old = dict(shadow_of(receiver.held).tensors())
    written = {name: value.clone() for name, value in old.items()}
    snapshot = versions.advance()
    stage(receiver, snapshot, by_relay(snapshot, sender.peer, delta=versions.delta), step=2)
    shadow = shadow_of(receiver.staged)
    assert shadow.changes
    assert shadow.changes.base_root == versions.manifests[0].root
    for changed in shadow.changes.tensors(shadow.manifest.tensors):
        written[changed.info.name].view(-1)[changed.positions.long()] = changed.values
    assert all(torch.equal(written[name], value) for name, value in shadow.tensors())
    receiver.keep(VersionId(0, 2))
    assert shadow_of(receiver.held).changes is None


def test_a_discarded_delta_gives_the_base_back(ends):
    sender, (receiver, other) = ends
    versions = Versions(sender)
    base = versions.snapshot
    take_from_memory(receiver, base)
    snapshot = versions.advance()
    source = by_relay(snapshot, sender.peer, delta=versions.delta)
    stage(receiver, snapshot, source, step=2)
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
        values = dict(versions.values, proj=versions.values["proj"].clone())
        values["proj"][1, 3] += 1.0  # not what the manifest says
        other_snapshot = snapshot_of(values, reuse=snapshot_copy(versions, 0), keep_delta=True)
        pieces.update(delta_of(other_snapshot).pieces)
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


def snapshot_copy(versions, index):
    """A snapshot of an earlier version in memory of its own."""
    copy = make_snapshot()
    copy.buffer.copy_(versions.contents[index])
    return replace(copy, manifest=versions.manifests[index])


def test_a_delta_that_finds_no_room_leaves_the_base_as_it_was(ends, monkeypatch):
    sender, (receiver, _) = ends
    versions = Versions(sender)
    take_from_memory(receiver, versions.snapshot)
    snapshot = versions.advance()
    source = by_relay(snapshot, sender.peer, delta=versions.delta)
    with monkeypatch.context() as patch:
        patch.setattr(
            room, "find_free_memory", lambda: room.FreeMemory(room.MARGIN_BYTES, "this machine")
        )
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
    attempts = [
        ("roots differ", version_of(snapshot), other.manifest, [from_memory(other)]),
        ("no source brings", version_of(other), other.manifest, []),
        (
            "two sources bring",
            version_of(other),
            other.manifest,
            [from_memory(other), from_memory(other)],
        ),
        (
            "block 9 does not exist",
            version_of(other),
            other.manifest,
            [from_memory(other), RelaySource(((9, 10),), ())],
        ),
    ]
    for message, version, manifest, sources in attempts:
        with pytest.raises(TransferError, match=message):
            receiver.stage(version, manifest, sources, limits_of())
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


FACTS = ModelFacts("llama", 2, 32, 48, 4, 2, 8, 70, True, 64)
SPECS = [("model.embed_tokens.weight", "BF16", (70, 32)), ("model.norm.weight", "BF16", (32,))]
for layer in ("model.layers.0", "model.layers.1"):
    SPECS += [
        (f"{layer}.input_layernorm.weight", "BF16", (32,)),
        (f"{layer}.self_attn.q_proj.weight", "BF16", (32, 32)),
        (f"{layer}.self_attn.k_proj.weight", "BF16", (16, 32)),
        (f"{layer}.self_attn.o_proj.weight", "BF16", (32, 32)),
        (f"{layer}.mlp.down_proj.weight", "BF16", (32, 48)),
    ]
GRID = cut_tensors(SPECS, FACTS)
GRID_VALUES = {
    name: torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()
    for seed, (name, _, shape) in enumerate(SPECS)
}
WHOLE = snapshot_of(GRID_VALUES, GRID, ((0, sum(info.num_blocks for info in GRID)),))


def share(tensor_rank, tensor_size, layers=("model",), *, replicated):
    """Blocks that a rank holds; tensors without cuts belong to every rank, or to rank 0's share."""
    return to_ranges(
        block.number
        for block in list_blocks(GRID)
        if block.tensor.name.startswith(layers)
        and (
            _rank_of(block, tensor_size) == tensor_rank
            if block.tensor.cuts
            else replicated or tensor_rank == 0
        )
    )


def _rank_of(block, size):
    length = block.tensor.shape[block.tensor.axis]
    return block.start * size // length


def shard_of(ranges):
    """A rank's snapshot, from its own slices; only digests come from the others."""
    blocks = list_blocks(GRID)
    parts = [
        TensorPart(
            blocks[number].tensor.name,
            blocks[number].start,
            blocks[number].stop,
            GRID_VALUES[blocks[number].tensor.name].narrow(
                blocks[number].tensor.axis,
                blocks[number].start,
                blocks[number].stop - blocks[number].start,
            ),
        )
        for first, end in ranges
        for number in range(first, end)
    ]
    digests = dict(enumerate(digest for info in WHOLE.manifest.tensors for digest in info.digests))
    snapshot = take_snapshot(GRID, parts, ranges, lambda own: digests)
    assert snapshot.manifest == WHOLE.manifest
    return snapshot


LAYERS = (("model.embed", "model.layers.0"), ("model.layers.1", "model.norm"))


@pytest.mark.parametrize("transport", list(Transport))
@pytest.mark.parametrize(
    "shares",
    [
        pytest.param([share(rank, 2, replicated=False) for rank in range(2)], id="TP2->TP1"),
        pytest.param(
            [share(rank, 2, layers, replicated=False) for layers in LAYERS for rank in range(2)],
            id="TP2xPP2->TP1",
        ),
    ],
)
def test_sharded_senders_fill_one_receiver(shares, transport):
    snapshots = [shard_of(blocks) for blocks in shares]
    with (
        started(senders=len(shares)) as (senders, [receiver]),
        ThreadPoolExecutor(len(shares)) as pool,
    ):
        for sender, snapshot in zip(senders, snapshots, strict=True):
            sender.hold(snapshot)
        for step in (1, 2):  # the second time in the same groups
            sources, sends = [], []
            for number, (sender, snapshot) in enumerate(zip(senders, snapshots, strict=True)):
                if transport is Transport.COLLECTIVE:
                    group = sender.open(group_of(1 + number), LONG)
                    sources.append(in_group(snapshot, group))
                    arguments = (snapshot, 1 + number, blocks_of(snapshot), "", limits_of())
                    sends.append(pool.submit(sender.send, *arguments))
                elif transport is Transport.MEMORY:
                    sources.append(from_memory(snapshot))
                else:
                    sources.append(by_relay(snapshot, sender.peer))
            staged = stage(receiver, WHOLE, *sources, step=step)
            assert staged.root == WHOLE.manifest.root
            assert torch.equal(shadow_of(receiver.staged).buffer, WHOLE.buffer)
            for sent, snapshot in zip(sends, snapshots, strict=False):
                assert sent.result() == snapshot.layout.num_bytes
            receiver.keep(VersionId(0, step))


def test_one_sender_fills_receivers_of_another_size():
    """TP1 to TP2: each takes its slices and what every rank has."""
    halves = [share(rank, 2, replicated=True) for rank in range(2)]
    sender = WeightSender(CPU, 0, CONFIG)
    receivers = [WeightReceiver(CPU, 0, CONFIG, wanted) for wanted in halves]
    with ThreadPoolExecutor(4) as pool:
        futures = []
        for group_id, (receiver, wanted) in enumerate(zip(receivers, halves, strict=True), 1):
            group = sender.open(replace(group_of(group_id), nonce="plan"), LONG)
            source = replace(in_group(WHOLE, group), blocks=wanted)
            futures.append(pool.submit(stage, receiver, WHOLE, source))
            futures.append(pool.submit(sender.send, WHOLE, group_id, wanted, "", limits_of()))
        for future in futures:
            future.result()
    for rank, receiver in enumerate(receivers):
        tensors = dict(shadow_of(receiver.staged).tensors())
        for name, value in GRID_VALUES.items():
            info = next(info for info in GRID if info.name == name)
            if info.cuts:
                half = value.shape[info.axis] // 2
                value = value.narrow(info.axis, rank * half, half)
                tensors[name] = tensors[name].narrow(info.axis, rank * half, half)
            assert torch.equal(tensors[name], value), name
    for end in (sender, *receivers):
        end.close()
