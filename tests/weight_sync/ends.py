"""Small snapshots and real senders and receivers for the tests of the transports."""

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager

import torch

from trimaran.config import WeightSyncSection
from trimaran.host.device import Device
from trimaran.run.network import LOOPBACK
from trimaran.types import (
    CollectiveSource,
    Delta,
    MemorySource,
    Peer,
    PolicyVersion,
    Ranges,
    RelaySource,
    TensorInfo,
    TransferGroup,
    TransferLimits,
    Transport,
    VersionId,
)
from weights.memory.shadow import Shadow
from weights.receiving.contents import StagedWeights
from weights.receiving.receiver import WeightReceiver
from weights.sending.sender import WeightSender
from weights.sending.snapshot import Snapshot, TensorPart, take_snapshot
from weights.transports import make_carriers
from weights.transports.relay.relay_carrier import RelayCarrier

CPU = Device("cpu", "gloo")
BUCKET = 256  # the small snapshot travels in several
LONG = 30.0
CONFIG = WeightSyncSection(stage_timeout=LONG)

TENSORS = (
    TensorInfo("embed", "BF16", (37, 11), 0, (5, 30)),
    TensorInfo("empty", "F32", (0, 4)),
    TensorInfo("norm", "F32", (5,)),
    TensorInfo("proj", "F32", (6, 8), 1, (2, 4)),
    TensorInfo("steps", "I64", (3,)),
)
"""Nine blocks; those of `proj` are columns."""
ALL: Ranges = ((0, 9),)


def make_values(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(37, 11, generator=generator).to(torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "norm": torch.randn(5, generator=generator),
        "proj": torch.randn(6, 8, generator=generator),
        "steps": torch.arange(3) + seed,
    }


def snapshot_of(
    values: dict[str, torch.Tensor],
    tensors: tuple[TensorInfo, ...] = TENSORS,
    ranges: Ranges = ALL,
    **options,
) -> Snapshot:
    parts = [
        TensorPart(
            info.name, 0, values[info.name].shape[info.axis] if info.shape else 1, values[info.name]
        )
        for info in tensors
    ]
    return take_snapshot(tensors, parts, ranges, **options)


def make_snapshot(seed: int = 0) -> Snapshot:
    return snapshot_of(make_values(seed))


def big_snapshot(num_bytes: int, num_blocks: int = 8, seed: int = 0) -> Snapshot:
    generator = torch.Generator().manual_seed(seed)
    value = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)
    cuts = tuple(num_bytes // num_blocks * part for part in range(1, num_blocks))
    info = TensorInfo("big", "U8", (num_bytes,), 0, cuts)
    return snapshot_of({"big": value}, (info,), ((0, num_blocks),))


def version_of(snapshot: Snapshot, step: int = 1) -> PolicyVersion:
    return PolicyVersion("run", VersionId(0, step), snapshot.manifest.root)


def group_of(group_id: int, world_size: int = 2) -> TransferGroup:
    return TransferGroup(group_id, f"nonce-{group_id}", world_size, "")


def blocks_of(snapshot: Snapshot) -> Ranges:
    return snapshot.layout.ranges


def in_group(
    snapshot: Snapshot, group: TransferGroup, rank: int = 1, delta: Delta | None = None
) -> CollectiveSource:
    return CollectiveSource(blocks_of(snapshot), group, rank, delta)


def from_memory(snapshot: Snapshot, path: str = "") -> MemorySource:
    return MemorySource(blocks_of(snapshot), path or snapshot.path)


def by_relay(snapshot: Snapshot, *peers: Peer, delta: Delta | None = None) -> RelaySource:
    return RelaySource(blocks_of(snapshot), peers, delta)


def limits_of(timeout: float = LONG, bucket_bytes: int = BUCKET) -> TransferLimits:
    return TransferLimits(bucket_bytes=bucket_bytes, timeout=timeout)


def stage(receiver, snapshot, *sources, timeout=LONG, step=1, bucket_bytes=BUCKET, **options):
    version, limits = version_of(snapshot, step), limits_of(timeout, bucket_bytes)
    return receiver.stage(version, snapshot.manifest, sources, limits, **options)


def take_from_memory(receiver, snapshot, step=1):
    """Staged and kept, by the quickest way."""
    stage(receiver, snapshot, from_memory(snapshot), step=step)
    receiver.keep(VersionId(0, step))


def holds(receiver, snapshot) -> bool:
    """The receiver has staged exactly the snapshot's bytes."""
    return torch.equal(receiver.staged.shadow.buffer, snapshot.buffer)


def impatient_relay() -> RelayCarrier:
    """Gives up a peer that fails much sooner."""
    return RelayCarrier(patience=0.2)


def shadow_of(weights: StagedWeights | None) -> Shadow:
    assert weights
    return weights.shadow


@contextmanager
def started(
    *,
    senders: int = 1,
    receivers: int = 1,
    config: WeightSyncSection = CONFIG,
    relay: Callable[[], RelayCarrier] = RelayCarrier,
    holding: Snapshot | None = None,
):
    """Lists of both; closed in the end. `relay` makes each receiver's relay carrier; `holding`: what
    every sender holds."""
    ends = [WeightSender(CPU, 0, config) for _ in range(senders)]
    others = [
        WeightReceiver(
            *(CPU, 0, config),
            carriers=make_carriers(CPU, 0, LOOPBACK.address) | {Transport.RELAY: relay()},
        )
        for _ in range(receivers)
    ]
    try:
        for end in (*ends, *others):
            end.start()
        for end in ends:
            end.hold(holding)
        yield ends, others
    finally:
        for end in (*ends, *others):
            end.close()


def until(condition) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def threads_named(*prefixes: str) -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(prefixes)]
