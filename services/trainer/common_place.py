"""One place for checkpoints, which every rank sees and those that save can write to: tried at the start, not
at the first save.

Each rank that saves writes a few bytes. Rank 0 looks whether all of them have come, each other rank whether
those of rank 0 have. So a folder that is not mounted on one of several hosts, or that one of them may only
read, is found before anything trains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from services.trainer.checkpoint_folder import FOLDER
from trimaran.errors import InputError, NotFoundError, TrimaranError
from trimaran.places import Place

AnyRank = Callable[[torch.Tensor], torch.Tensor]
"""Of flags, bool [n], which are set on any rank; a collective."""


class CommonPlace:
    """Example:
    common = CommonPlace(place, rank=0, writers={0, 1})
    common.clear()                    # on rank 0, before the ranks meet
    common.check(policy.any_rank)     # on all ranks, once they have met
    """

    def __init__(self, place: Place, rank: int, writers: Collection[int]) -> None:
        """`writers`: the ranks that save something."""
        self._place, self._rank, self._writers = place, rank, writers

    def __str__(self) -> str:
        """What this rank does there, for its log."""
        where = f"checkpoints in {self._place.url}/{FOLDER}"
        is_writer = self._rank in self._writers
        return f"reads and writes {where}" if is_writer else f"reads {where}; others write them"

    def clear(self) -> None:
        """What a start that was broken off has left there."""
        self._place.delete(map(_name, self._writers))

    def check(self, any_rank: AnyRank) -> None:
        """Raises InputError where a rank cannot write, or has another folder than rank 0, and
        UnavailableError where the place does not answer; on every rank, as each waits for the others."""
        fault = self._try(self._write) if self._rank in self._writers else None
        self._agree(fault, any_rank, "cannot write where checkpoints go")
        self._agree(self._try(self._find), any_rank, "sees other checkpoints")
        if self._rank == 0:
            self.clear()

    def _try(self, work: Callable[[], None]) -> TrimaranError | None:
        try:
            work()
        except TrimaranError as error:
            return error
        return None

    def _write(self) -> None:
        self._place.write(b"?", _name(self._rank))

    def _find(self) -> None:
        for writer in self._writers if self._rank == 0 else (0,):
            try:
                self._place.read(_name(writer))
            except NotFoundError:
                raise InputError(
                    f"{self._place.url}/{FOLDER}: lacks what trainer rank {writer} has just written there, so"
                    f" its host and that of rank {self._rank} have two folders of this name; let"
                    " run.checkpoints name a folder that all hosts of the trainer see, or a bucket"
                ) from None

    def _agree(self, fault: TrimaranError | None, any_rank: AnyRank, what: str) -> None:
        is_wrong = bool(any_rank(torch.tensor([fault is not None])).any())
        if fault:
            raise fault
        if is_wrong:
            raise InputError(f"another trainer rank {what}; its log says more")


def _name(rank: int) -> str:
    return f"{FOLDER}/.can-write-{rank}"
