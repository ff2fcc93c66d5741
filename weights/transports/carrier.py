"""What a transport does for a receiver: it carries the blocks of one source into a host buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from trimaran.errors import TransferError
from trimaran.types import Source
from weights.memory.host_memory import HostMemory
from weights.transports.calls import Stop
from weights.version.layout import BlockLayout, PlacedBlock
from weights.version.manifest import Block

OneSource = TypeVar("OneSource", bound=Source)
"""The source type of one transport."""


class WrongBlockError(TransferError):
    """A block landed whole, but its digest is not the manifest's."""


@dataclass(frozen=True, slots=True)
class CarryJob(Generic[OneSource]):
    """One source's part of a stage: what a carrier has to do. The receiver makes it."""

    root: str
    """The version's."""
    source: OneSource
    stream: BlockLayout
    """How the source's blocks, or the pieces of its delta, follow each other with the sender."""
    buffer: torch.Tensor
    """uint8, one dimension, on the host; shared with the jobs of other sources."""
    layout: BlockLayout
    """The buffer's. The job fills the pieces that `stream` has too."""
    land: Callable[[int], None]
    """Call it with a block's number when its last byte lies in the buffer.

    Raises WrongBlockError; the block may then be fetched and landed again."""
    bucket_bytes: int
    deadline: float
    """time.monotonic()."""
    stop: Stop
    memory: HostMemory | None = None
    """That `buffer` is the whole of, where it outlives the stage: a carrier may register it."""

    def pieces(self) -> list[PlacedBlock]:
        """What the job has to fill, with places in `buffer`, in the stream's order."""
        places = self.layout.by_number()
        numbers = [piece.block.number for piece in self.stream.pieces]
        return [places[number] for number in numbers if number in places]


class Carrier(ABC, Generic[OneSource]):
    """One transport's receiving side; lives as long as its receiver.

    Example, a carrier that finds the blocks in a dict of this process:

        class DictCarrier(Carrier[RelaySource]):
            def carry(self, job):
                for piece in job.pieces():
                    job.buffer[piece.start : piece.end] = BLOCKS[piece.block.number]
                    job.land(piece.block.number)
    """

    @property
    def one_at_a_time(self) -> bool:
        """The jobs of a stage run one after another, in the order of its sources."""
        return False

    def prepare(self, sources: Sequence[OneSource]) -> None:
        """A stage begins, with these sources of this transport, if any.

        Let go of what only earlier stages needed.
        """
        return None

    @abstractmethod
    def carry(self, job: CarryJob[OneSource]) -> None:
        """Blocks until every piece of the job has landed. Several jobs may run at once, unless
        `one_at_a_time`.

        Raises TransferError, naming the culprit, when that fails, the deadline
        passes or the job's stop is set (at once).
        """

    @property
    def settled(self) -> bool:
        """False while a job that has failed may still write into its buffer."""
        return True

    def close(self) -> None:
        """Idempotent; after the last job has ended."""
        return None


def describe(block: Block) -> str:
    """Example: "block 7 (model.norm.weight 0:576)"."""
    return f"block {block.number} ({block.tensor.name} {block.start}:{block.stop})"
