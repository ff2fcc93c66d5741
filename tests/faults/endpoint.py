"""A sender or a receiver in a process of its own, driven over its standard input.

    python -m tests.faults.endpoint sender|receiver ADDRESS

Reads one request a line, {"id": …, "do": …, …}, and answers one line each with
the same id; requests run at the same time. It serves those that cannot be reached
by gRPC, as from one network namespace to another.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

import torch

from trimaran.config import WeightSyncSection
from trimaran.errors import TrimaranError
from trimaran.host.device import pick
from trimaran.run.network import Host
from trimaran.types import (
    CollectiveSource,
    Peer,
    PolicyVersion,
    Ranges,
    RelaySource,
    Source,
    TensorInfo,
    TransferGroup,
    TransferLimits,
    VersionId,
)
from weights.receiving.receiver import WeightReceiver
from weights.sending.sender import WeightSender
from weights.sending.snapshot import Snapshot, TensorPart, take_snapshot
from weights.version.manifest import manifest_from_json, manifest_to_json

TENSOR_BYTES = 1 << 20
BLOCKS_A_TENSOR = 16

Values = dict[str, Any]


class Sender:
    def __init__(self, host: Host) -> None:
        self._sender = WeightSender(pick("cpu"), 0, WeightSyncSection(), host)
        self._sender.start()
        self._snapshot: Snapshot | None = None

    def take(self, seed: int, num_tensors: int) -> Values:
        """Hold a version of random bytes; each tensor has 1 MiB."""
        dice = torch.Generator().manual_seed(seed)
        cuts = tuple(range(TENSOR_BYTES // 16, TENSOR_BYTES, TENSOR_BYTES // BLOCKS_A_TENSOR))
        infos = [
            TensorInfo(f"tensor.{number}", "U8", (TENSOR_BYTES,), 0, cuts)
            for number in range(num_tensors)
        ]
        parts = (
            TensorPart(
                info.name,
                0,
                TENSOR_BYTES,
                torch.randint(256, (TENSOR_BYTES,), generator=dice, dtype=torch.uint8),
            )
            for info in infos
        )
        blocks: Ranges = ((0, num_tensors * BLOCKS_A_TENSOR),)
        self._snapshot = take_snapshot(infos, parts, blocks)
        self._sender.hold(self._snapshot)
        return {
            "manifest": manifest_to_json(self._snapshot.manifest),
            "peer": asdict(self._sender.peer),
            "blocks": blocks,
        }

    def open(self, group: Values, timeout: float) -> Values:
        return asdict(self._sender.open(TransferGroup(**group), timeout))

    def send(self, group_id: int, timeout: float) -> Values:
        assert self._snapshot
        ranges, limits = self._snapshot.layout.ranges, limits_of(timeout)
        size = self._sender.send(self._snapshot, group_id, ranges, "", limits)
        return {"num_bytes": size}


def limits_of(timeout: float) -> TransferLimits:
    return TransferLimits(bucket_bytes=1 << 20, timeout=timeout)


def source_of(values: Values) -> Source:
    blocks = tuple((first, end) for first, end in values["blocks"])
    if "group" in values:
        return CollectiveSource(blocks, TransferGroup(**values["group"]), values["rank"])
    return RelaySource(blocks, tuple(Peer(**peer) for peer in values["peers"]))


class Receiver:
    def __init__(self, host: Host) -> None:
        self._receiver = WeightReceiver(pick("cpu"), 0, WeightSyncSection(), host=host)
        self._receiver.start()

    def peer(self) -> Values:
        return asdict(self._receiver.peer)

    def stage(self, manifest: Values, source: Values, timeout: float) -> Values:
        found = manifest_from_json(manifest)
        version = PolicyVersion("run", VersionId(0, 1), found.root)
        reported = [source_of(source)]
        staged = self._receiver.stage(version, found, reported, limits_of(timeout))
        return asdict(staged)

    def holds(self) -> Values:
        return {"staged": self._receiver.staged is not None}


def answer(service: Any, request: Values) -> None:
    number, name = request.pop("id"), request.pop("do")
    begun = time.monotonic()
    try:
        values = {"result": getattr(service, name)(**request)}
    except TrimaranError as error:
        values = {"error": f"{type(error).__name__}: {error}"}
    seconds = time.monotonic() - begun
    print(json.dumps({"id": number, "seconds": seconds, **values}), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    kinds = {"sender": Sender, "receiver": Receiver}
    service = kinds[sys.argv[1]](Host(sys.argv[2], "eth"))
    print(json.dumps({"id": 0, "result": "up"}), flush=True)
    for line in sys.stdin:
        threading.Thread(target=answer, args=(service, json.loads(line)), daemon=True).start()


if __name__ == "__main__":
    main()
