"""One end of a relay, in a process of its own as in another network namespace.

python -m tests.faults.endpoint sender ADDRESS       says on a line what it offers, and waits
python -m tests.faults.endpoint receiver ADDRESS     reads that, stages it, and says root and seconds
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

import torch

from trimaran.config import WeightSyncSection
from trimaran.host.device import pick
from trimaran.run.network import Host
from trimaran.types import (
    Peer,
    PolicyVersion,
    RelaySource,
    TensorInfo,
    TransferLimits,
    VersionId,
)
from weights.receiving.receiver import WeightReceiver
from weights.sending.sender import WeightSender
from weights.sending.snapshot import TensorPart, take_snapshot
from weights.version.manifest import manifest_from_json, manifest_to_json

NUM_TENSORS, TENSOR_BYTES, BLOCKS_A_TENSOR = 8, 1 << 20, 16
LIMITS = TransferLimits(bucket_bytes=1 << 20, timeout=60.0)
ALL = ((0, NUM_TENSORS * BLOCKS_A_TENSOR),)


def send(host: Host) -> None:
    sender = WeightSender(pick("cpu"), 0, WeightSyncSection(), host)
    sender.start()
    size = TENSOR_BYTES // BLOCKS_A_TENSOR
    cuts = tuple(range(size, TENSOR_BYTES, size))
    names = [f"tensor.{number}" for number in range(NUM_TENSORS)]
    infos = [TensorInfo(name, "U8", (TENSOR_BYTES,), 0, cuts) for name in names]
    parts = (
        TensorPart(name, 0, TENSOR_BYTES, torch.randint(256, (TENSOR_BYTES,), dtype=torch.uint8))
        for name in names
    )
    snapshot = take_snapshot(infos, parts, ALL)
    sender.hold(snapshot)
    offer = {"manifest": manifest_to_json(snapshot.manifest), "peer": asdict(sender.peer)}
    print(json.dumps(offer), flush=True)
    sys.stdin.read()


def receive(host: Host) -> None:
    receiver = WeightReceiver(pick("cpu"), 0, WeightSyncSection(), host=host)
    receiver.start()
    offer = json.loads(sys.stdin.readline())
    manifest = manifest_from_json(offer["manifest"])
    version = PolicyVersion("run", VersionId(0, 1), manifest.root)
    begun = time.monotonic()
    staged = receiver.stage(version, manifest, [RelaySource(ALL, (Peer(**offer["peer"]),))], LIMITS)
    print(staged.root, time.monotonic() - begun, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"sender": send, "receiver": receive}[sys.argv[1]](Host(sys.argv[2], "eth"))
