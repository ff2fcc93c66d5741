"""The snapshot of a rank's own shard: taken by the compute thread, sent by others meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from services.trainer.exchange.shard import blocks_of, share_digests
from services.trainer.step.finite import is_finite
from trimaran.errors import InternalError, OutOfOrderError
from trimaran.types import Offer, Peer, Ranges, TensorInfo
from weights.sending.snapshot import Snapshot, TensorPart, take_snapshot


class ShardedWeights(Protocol):
    """Weights spread over the tensor-parallel ranks."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The tensors of the whole model, cut into blocks; the same on every rank."""
        ...

    def parts(self) -> Iterator[TensorPart]:
        """This rank's. All ranks must iterate to the end."""
        ...

    def add_up(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, which must all call."""
        ...


class HeldShard:
    """Example: `held.adopt(held.take())` after each step; `with held.sending(root) as snapshot:`
    sends it, while the next step is computed."""

    def __init__(
        self,
        weights: ShardedWeights,
        hold: Callable[[Snapshot | None], None],
        keep_delta: bool,
    ) -> None:
        """`hold` gets each snapshot once it is whole, and None before it is overwritten."""
        self._weights, self._hold, self._keep_delta = weights, hold, keep_delta
        self._tensors = weights.tensors
        self._num_blocks = sum(tensor.num_blocks for tensor in self._tensors)
        self.blocks: Ranges = blocks_of(self._tensors, weights.parts())
        """Those that this rank sends."""
        self._snapshot: Snapshot | None = None
        self._num_sends = 0
        # A send takes the snapshot in its own thread, its replacement is decided in the compute thread.
        self._handing_over = threading.Lock()

    @property
    def root(self) -> str:
        """Empty while the snapshot is being replaced."""
        return self._snapshot.manifest.root if self._snapshot else ""

    @property
    def snapshot(self) -> Snapshot:
        """Raises OutOfOrderError while it is being replaced."""
        if self._snapshot is None:
            raise OutOfOrderError("the weights are being replaced by those of the next step")
        return self._snapshot

    def take(self) -> Snapshot:
        """A snapshot of the weights as they are. All ranks must take part; `adopt` makes it the held one.

        Raises InternalError on every rank, with the old one still held, when a number of them is
        not finite.
        """
        self._check_finite()
        with self._handing_over:
            reuse = None if self._num_sends else self._snapshot
            # From here on the old version cannot be sent any more.
            self._snapshot = None
        self._hold(None)
        return take_snapshot(
            self._tensors,
            self._weights.parts(),
            self.blocks,
            self._exchange,
            reuse,
            self._keep_delta,
        )

    def adopt(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._hold(snapshot)

    @contextmanager
    def sending(self, root: str) -> Iterator[Snapshot]:
        """Inside, the snapshot stays whole. Raises OutOfOrderError when it is not that of `root`."""
        with self._handing_over:
            snapshot = self.snapshot
            if snapshot.manifest.root != root:
                raise OutOfOrderError(f"weights with root {root}: they were replaced")
            self._num_sends += 1
        try:
            yield snapshot
        finally:
            with self._handing_over:
                self._num_sends -= 1

    def offer(self, peer: Peer) -> Offer:
        """What can be sent through the door `peer`."""
        snapshot = self.snapshot
        delta = snapshot.delta and snapshot.delta.describe(self.blocks)
        return Offer(peer, self.blocks, snapshot.path, delta)

    def _check_finite(self) -> None:
        # To the end: ranks may gather parts together.
        names = [p.name for p in self._weights.parts() if not is_finite(p.tensor)]
        broken = names[0] if names else ""
        if self._weights.add_up(torch.tensor([int(bool(broken))], dtype=torch.int32)).any():
            raise InternalError(
                f"{broken or 'a tensor of another rank'} holds numbers that are not finite;"
                " these weights are neither published nor saved. Where this is the start, look at"
                " model.path; else start a new run with a lower trainer.learning_rate (a resumed"
                " run keeps its own)"
            )

    def _exchange(self, own: dict[int, str]) -> dict[int, str]:
        return share_digests(own, self._num_blocks, self._weights.add_up)
