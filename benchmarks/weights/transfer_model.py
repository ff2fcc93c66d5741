"""A model of a stage's transfer, not a measurement: bytes over rates.

Measured on the machine at hand: what one thread lands by relay (socket, copy into the shadow, digest).
Assumed: the link, the cores that land, that their rates add up, and that nothing else is slow. With V
bytes of weights, the slower one of two ends the stage:

    link       V / link by broadcast; fan_out * V / link by relay, for whoever has that many children
    landing    V / (threads * rate), one thread a sender, but no more than there are cores
"""

from __future__ import annotations

import time

import torch

from services.weight_sync.data.digest import digest_tensor
from services.weight_sync.data.manifest import build_manifest
from services.weight_sync.data.receiver import WeightReceiver
from services.weight_sync.transports.relay_server import RelayServer
from services.weight_sync.transports.stock import Holding, Stock
from trimaran.config import WeightSyncSection
from trimaran.device import Device
from trimaran.types import (
    Peer,
    PolicyVersion,
    RelaySource,
    TensorInfo,
    TransferLimits,
    VersionId,
)

LINK = 25e9
"""Bytes a second each way, of 200 Gbit/s. Assumed."""
CORES = 16
"""Of a host, that land blocks. Assumed."""
BLOCK_BYTES, NUM_BLOCKS = 16 << 20, 16
ROUNDS = 5


def model_collective(num_bytes: int, num_senders: int, rate: float) -> float:
    """Seconds; `rate` is that of `calibrate`."""
    return max(num_bytes / LINK, _landing(num_bytes, num_senders, rate))


def model_relay(num_bytes: int, num_senders: int, fan_out: int, rate: float) -> float:
    """Seconds, of a tree in which the blocks are passed on while they come."""
    return max(fan_out * num_bytes / LINK, _landing(num_bytes, num_senders, rate))


def _landing(num_bytes: int, num_senders: int, rate: float) -> float:
    return num_bytes / (min(num_senders, CORES) * rate)


def calibrate(digest_name: str) -> float:
    """Bytes a second that a thread lands: the best of a few rounds over 256 MiB. The first one allocates and
    does not count."""
    value = torch.randint(0, 256, (BLOCK_BYTES,), dtype=torch.uint8)
    digest, size = digest_tensor(digest_name, value), BLOCK_BYTES * NUM_BLOCKS
    cuts = tuple(range(BLOCK_BYTES, size, BLOCK_BYTES))
    info = TensorInfo("w", "U8", (size,), 0, cuts, (digest,) * NUM_BLOCKS)
    manifest = build_manifest(digest_name, [info])
    stock = Stock()
    stock.put(manifest.root, Holding(dict.fromkeys(range(NUM_BLOCKS), value.numpy().data)))
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
