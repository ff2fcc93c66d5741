"""A replica's end: receives a version into a host shadow and proves what arrived."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace

from services.weight_sync.calls import hold
from services.weight_sync.collective import Collective
from services.weight_sync.flat import digest_tensor, tensor_bytes
from services.weight_sync.manifest import buckets, check_manifest, compute_root, offsets
from services.weight_sync.shadow import Shadow
from trimaran.device import Device
from trimaran.errors import TransferError
from trimaran.types import Manifest, PolicyVersion, TensorInfo, TransferGroup, VersionId


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """A version that arrived whole: every digest is that of its manifest."""

    version: PolicyVersion
    shadow: Shadow


class WeightReceiver:
    """Holds one transfer group and at most one staged version. Safe to call from several threads."""

    def __init__(self, device: Device, index: int = 0) -> None:
        self._device = device
        self._index = index
        self._lock = threading.Lock()
        self._end: Collective | None = None
        self._staging: VersionId | None = None
        self._turn = object()
        """Who asked last; whoever finds another's here has been given up."""
        self._staged: StagedWeights | None = None
        self._spare: Shadow | None = None

    @property
    def staged(self) -> StagedWeights | None:
        return self._staged

    def stage(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        group: TransferGroup,
        rank: int,
        bucket_bytes: int,
        timeout: float,
    ) -> str:
        """The root computed over what arrived. Blocks; runs beside generation.

        Joins the group on first use and keeps it while it is healthy. Another
        stage that is under way raises at once: whoever asks has given it up. A
        version that is still staged is forgotten, but its memory stays as it
        is while somebody holds its shadow.

        Raises TransferError when the manifest is not the version's, `timeout`
        seconds pass, a member fails, or a digest differs (naming the tensor);
        nothing is staged then.
        """
        turn = self._give_up()
        with hold(self._lock, timeout):
            self._staging, self._staged = version.version, None
            try:
                check_manifest(manifest, version.root)
                shadow, self._spare = Shadow(manifest, self._spare), None
                end = self._join(group, rank)
                if self._turn is not turn:
                    raise TransferError(f"version {version.version}: given up by its caller")
                root = _receive(end, shadow, bucket_bytes, timeout)
                self._staged = StagedWeights(version, shadow)
                return root
            finally:
                self._staging = None

    def discard(self, version: VersionId) -> None:
        """Forget a staged version and use its memory for the next one.

        Call it when nothing reads the shadow any more: after an abort, or when
        the engine has loaded it. A stage of it that is under way raises at once.
        """
        if self._staging == version:
            self._give_up()
        with self._lock:
            if self._staged is not None and self._staged.version.version == version:
                self._spare, self._staged = self._staged.shadow, None

    def close(self) -> None:
        """A stage under way raises at once."""
        self._give_up()
        with self._lock:
            if self._end is not None:
                self._end.close()
                self._end = None
            self._staged = self._spare = None

    def _give_up(self) -> object:
        self._turn = turn = object()
        if (end := self._end) is not None and self._staging is not None:
            end.give_up()
        return turn

    def _join(self, group: TransferGroup, rank: int) -> Collective:
        if not 0 < rank < group.world_size:
            raise TransferError(f"rank {rank} cannot receive in a group of {group.world_size}")
        end = self._end
        if end is not None and end.healthy and (end.group, end.rank) == (group, rank):
            return end
        if end is not None:
            end.close()
        self._end = Collective(self._device, self._index, group, rank)
        return self._end


def _receive(end: Collective, shadow: Shadow, bucket_bytes: int, timeout: float) -> str:
    proof = Proof(shadow)
    spans = buckets(shadow.buffer.numel(), bucket_bytes)
    end.broadcast(shadow.buffer, spans, timeout, proof.take)
    try:
        return proof.finish()
    except TransferError:
        end.close()  # a transport that changes bytes is not used again
        raise


class Proof:
    """Digests each tensor as soon as its last byte is there, beside the transfer."""

    def __init__(self, shadow: Shadow) -> None:
        tensors = shadow.manifest.tensors
        ends = offsets(tensors)[1:]
        self._end = shadow.buffer.numel()
        self._expected = tensors
        self._waiting = deque(zip(ends, tensor_bytes(shadow.buffer, tensors), strict=True))
        self._found: list[TensorInfo] = []

    def take(self, end: int) -> None:
        """The bytes before `end` have arrived."""
        while self._waiting and self._waiting[0][0] <= end:
            _, (tensor, piece) = self._waiting.popleft()
            self._found.append(replace(tensor, digest=digest_tensor(piece)))

    def finish(self) -> str:
        """The root of what arrived. Raises TransferError naming the first tensor that differs."""
        self.take(self._end)  # what holds no bytes came with no bucket
        for expected, found in zip(self._expected, self._found, strict=True):
            if expected.digest != found.digest:
                raise TransferError(
                    f"{expected.name}: arrived with digest {found.digest}, sent with"
                    f" {expected.digest}; the bytes changed on the way"
                )
        return compute_root(self._found)
