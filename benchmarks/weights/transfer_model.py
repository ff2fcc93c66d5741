"""A model of a stage's transfer, not a measurement: bytes over rates.

Measured on the machine at hand: what one thread lands by relay (socket, copy into the shadow, digest),
what it digests, and how fast it makes -0 to +0. Assumed: the links, the cores that land, that their rates add up, and
that nothing else is slow. With V bytes of weights, the slower one of two ends a stage between hosts:

    link       V / link by broadcast; fan_out * V / link by relay, for whoever has that many children
    landing    V / (threads * rate), one thread a sender, but no more than there are cores

Between accelerators the senders follow each other, and each byte passes five places. At one end they are
under way at the same time (`weights/transports/collective/pump.py`), so the slowest one counts:

    sender's copy | link | receiver's copy | digest of DIGEST_THREADS threads

`in_turn` says what they would take if copy and digest stood behind each other, as they did. A copy runs at
the bus's rate where the host's memory is locked for the device (`trimaran/host/page_lock.py`), else at that of
the driver's own buffer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from trimaran.config import WeightSyncSection
from trimaran.host.device import Device
from trimaran.types import (
    Peer,
    PolicyVersion,
    RelaySource,
    TensorInfo,
    TransferLimits,
    VersionId,
)
from weights.receiving.receiver import WeightReceiver
from weights.sending.snapshot import DIGEST_THREADS as SNAPSHOT_THREADS
from weights.transports.collective.group_carrier import DIGEST_THREADS
from weights.transports.relay.relay_server import RelayServer
from weights.transports.relay.stock import Holding, Stock
from weights.version.digest import digest_tensor
from weights.version.manifest import build_manifest

LINK = 25e9
"""Bytes a second each way, of 200 Gbit/s. Assumed."""
BUS = 25e9
"""Bytes a second between a device and locked host memory, of PCIe 4.0 with 16 lanes. Assumed."""
PAGEABLE = 6e9
"""The same with memory that is not locked. Assumed: vendors' drivers differ."""
MEETING_SECONDS = 0.05
"""Of the members of a group, before each sender's turn. docs/weight-plane.md has what was measured."""
CORES = 16
"""Of a host, that land blocks. Assumed."""
BLOCK_BYTES, NUM_BLOCKS = 16 << 20, 16
ROUNDS = 5


def model_collective(num_bytes: int, num_senders: int, rate: float) -> float:
    """Seconds, on hosts; `rate` is that of landing."""
    return max(num_bytes / LINK, _landing(num_bytes, num_senders, rate))


def model_relay(num_bytes: int, num_senders: int, fan_out: int, rate: float) -> float:
    """Seconds, of a tree in which the blocks are passed on while they come."""
    return max(fan_out * num_bytes / LINK, _landing(num_bytes, num_senders, rate))


def model_devices(num_bytes: int, num_senders: int, digest: float, *, locked: bool) -> float:
    """Seconds between accelerators, all steps at the same time."""
    slowest = min(LINK, BUS if locked else PAGEABLE, DIGEST_THREADS * digest)
    return num_bytes / slowest + num_senders * MEETING_SECONDS


def model_devices_in_turn(num_bytes: int, num_senders: int, digest: float) -> float:
    """Seconds between accelerators, with each bucket copied and digested by the thread that broadcasts,
    from and to memory that is not locked."""
    receiver = 1 / (1 / PAGEABLE + 1 / digest)
    return num_bytes / min(LINK, PAGEABLE, receiver) + num_senders * MEETING_SECONDS


def model_snapshot(num_bytes: int, num_senders: int, digest: float, *, locked: bool) -> float:
    """Seconds in which a trainer rank on an accelerator copies its share and does nothing else."""
    copy = BUS if locked else PAGEABLE
    return num_bytes / num_senders / min(copy, SNAPSHOT_THREADS * digest)


def model_snapshot_in_turn(num_bytes: int, num_senders: int, digest: float, add: float) -> float:
    """The same with one thread that copies, makes -0 to +0 (`add`, bytes a second) and digests."""
    return num_bytes / num_senders * (1 / PAGEABLE + 1 / add + 1 / digest)


def _landing(num_bytes: int, num_senders: int, rate: float) -> float:
    return num_bytes / (min(num_senders, CORES) * rate)


def calibrate_digest() -> float:
    """Bytes a second of one thread: the best of a few rounds over a block that is in no cache."""
    blocks = torch.randint(0, 256, (NUM_BLOCKS, BLOCK_BYTES), dtype=torch.uint8)
    return _best(blocks.numel(), lambda: [digest_tensor(block) for block in blocks])


def calibrate_add() -> float:
    """Bytes a second of one thread that makes -0 to +0 in place."""
    value = torch.zeros(BLOCK_BYTES * NUM_BLOCKS // 2, dtype=torch.bfloat16)
    return _best(2 * value.numel(), lambda: value.add_(0))


def _best(num_bytes: int, work: Callable[[], object]) -> float:
    seconds: list[float] = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return num_bytes / min(seconds[1:])


def calibrate() -> float:
    """Bytes a second that a thread lands: the best of a few rounds over 256 MiB. The first one allocates and
    does not count."""
    value = torch.randint(0, 256, (BLOCK_BYTES,), dtype=torch.uint8)
    digest, size = digest_tensor(value), BLOCK_BYTES * NUM_BLOCKS
    cuts = tuple(range(BLOCK_BYTES, size, BLOCK_BYTES))
    info = TensorInfo("w", "U8", (size,), 0, cuts, (digest,) * NUM_BLOCKS)
    manifest = build_manifest([info])
    stock = Stock()
    stock.show({(manifest.root, ""): Holding(dict.fromkeys(range(NUM_BLOCKS), value.numpy().data))})
    config = WeightSyncSection()
    holder = RelayServer(config, "key", stock)
    receiver = WeightReceiver(Device("cpu", "gloo"), 0, config)
    limits = TransferLimits(bucket_bytes=config.bucket_mib << 20, timeout=60.0)
    seconds: list[float] = []
    try:
        holder.start()
        receiver.start()
        source = RelaySource(((0, NUM_BLOCKS),), (Peer(holder.address, "key", ""),))
        for step in range(1, ROUNDS + 2):
            version = PolicyVersion("bench", VersionId(0, step), manifest.root)
            began = time.perf_counter()
            receiver.stage(version, manifest, [source], limits)
            seconds.append(time.perf_counter() - began)
            receiver.keep(version.version)
    finally:
        receiver.close()
        holder.close()
    return size / min(seconds[1:])
