"""The two ends of a transfer, each for a process of its own: ours and torch's raw ones.

Every method that is timed answers with when it began and ended; on one machine the clocks agree.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.weights.versions import (
    LIMITS,
    TIMEOUT_SECONDS,
    change_all,
    load_model,
    policy_of,
    snapshot_of,
)
from trimaran.config import WeightSyncSection
from trimaran.types import Manifest, Peer, PolicyVersion, Ranges, Source, TransferGroup

if TYPE_CHECKING:
    import torch

    from weights.sending.snapshot import Snapshot

Span = tuple[float, float]
"""Seconds on the machine's monotonic clock."""


class RawSide:
    """One rank of a plain gloo group of two, with a buffer of its own."""

    _raw: torch.Tensor

    def join_raw(self, rank: int, port: int, num_bytes: int) -> None:
        import torch
        import torch.distributed as dist

        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
        self._raw = torch.full((num_bytes,), rank, dtype=torch.uint8)

    def broadcast(self, bucket_bytes: int) -> Span:
        import torch.distributed as dist

        begin = time.perf_counter()
        for bucket in self._raw.split(bucket_bytes):
            dist.broadcast(bucket, 0)
        return begin, time.perf_counter()

    def copy(self) -> Span:
        """memcpy from one warm host buffer to another."""
        target = getattr(self, "_target", None)
        if target is None:
            target = self._target = self._raw.clone()
        begin = time.perf_counter()
        target.copy_(self._raw)
        return begin, time.perf_counter()


class SenderSide(RawSide):
    """A trainer rank. It has two versions of the model, of which every block differs, and takes
    snapshots of them in turn."""

    def __init__(self, model: Path) -> None:
        from trimaran.host.device import pick
        from weights.sending.sender import WeightSender

        self._model = model
        tensors = load_model(model)
        self._versions = tensors, change_all(tensors)
        self._snapshots: list[Snapshot] = []
        self._sender = WeightSender(pick("cpu"), 0, WeightSyncSection())
        self._sender.start()

    def ready(self) -> None:
        gc.collect()

    def take_snapshots(self, count: int) -> None:
        for step in range(count):
            self._snapshots.append(snapshot_of(self._model, self._versions[step % 2]))

    def take_again(self, step: int) -> tuple[PolicyVersion, Manifest, str]:
        """The next version in the memory of the only snapshot, as a trainer takes it."""
        (former,) = self._snapshots
        snapshot = snapshot_of(self._model, self._versions[step % 2], former)
        self._snapshots = [snapshot]
        return policy_of(snapshot, step), snapshot.manifest, snapshot.path

    def describe(self) -> tuple[Peer, list[tuple[PolicyVersion, Manifest, str]]]:
        """The sender's peer, and of each version what a receiver is told; the path maps it."""
        versions = [
            (policy_of(snapshot, step), snapshot.manifest, snapshot.path)
            for step, snapshot in enumerate(self._snapshots)
        ]
        return self._sender.peer, versions

    def open(self, group: TransferGroup) -> TransferGroup:
        return self._sender.open(group, TIMEOUT_SECONDS)

    def send(self, step: int, group: TransferGroup, blocks: Ranges) -> Span:
        begin = time.perf_counter()
        self._sender.send(self._snapshots[step], group.group_id, blocks, "", LIMITS)
        return begin, time.perf_counter()

    def close(self) -> None:
        self._sender.close()


class ReceiverSide(RawSide):
    def __init__(self) -> None:
        from trimaran.host.device import pick
        from weights.receiving.receiver import WeightReceiver

        self._receiver = WeightReceiver(pick("cpu"), 0, WeightSyncSection())
        self._receiver.start()

    def ready(self) -> None:
        gc.collect()

    def stage(self, policy: PolicyVersion, manifest: Manifest, sources: list[Source]) -> Span:
        """With everything that verifies it; then kept, as after a commit."""
        begin = time.perf_counter()
        staged = self._receiver.stage(policy, manifest, sources, LIMITS)
        end = time.perf_counter()
        assert staged.root == policy.root, "the receiver computed another root"
        self._receiver.keep(policy.version)
        return begin, end

    def lend(self) -> tuple[Peer, str]:
        """What a neighbour is told, to read the version that was kept."""
        assert self._receiver.held, "nothing was kept"
        return self._receiver.peer, self._receiver.held.shadow.path

    def close(self) -> None:
        self._receiver.close()


def longest(*spans: Span) -> float:
    """Seconds from the first begin to the last end."""
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def both(sender: Any, receiver: Any, method: str, *arguments: Any) -> float:
    """The same call on both workers at once; the seconds until both are done."""
    sender.begin(method, *arguments)
    receiver.begin(method, *arguments)
    return longest(sender.result(), receiver.result())
