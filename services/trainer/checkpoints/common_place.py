"""One place for checkpoints, which every rank sees and those that save can write to: tried at the start, not
at the first save.

Each rank that saves writes a few bytes. Rank 0 looks whether all of them have come, each other rank whether
those of rank 0 have. So a folder that is not mounted on one of several hosts, or that one of them may only
read, is found before anything trains. The files have names that no process has looked for before: a host may
take a file on NFS for missing for half a minute because it was so a moment ago.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

import torch

from services.trainer.checkpoints.checkpoint_folder import FOLDER, TRIED
from trimaran.errors import InputError, NotFoundError, TrimaranError, UnavailableError
from trimaran.host.places import Place

BITS = 62
"""Random bits in the names of a start."""
AnyRank = Callable[[torch.Tensor], torch.Tensor]
"""From flags, bool [n], to those that are set on any rank; a collective."""


class CommonPlace:
    """Example: CommonPlace(place, rank=0, writers={0, 1}).check(policy.any_rank)"""

    def __init__(self, place: Place, rank: int, writers: Collection[int]) -> None:
        """`writers`: the ranks that save something."""
        self._place, self._rank, self._writers = place, rank, writers

    def __str__(self) -> str:
        """What this rank does there, for its log."""
        where = f"checkpoints in {self._place.url}/{FOLDER}"
        is_writer = self._rank in self._writers
        return f"reads and writes {where}" if is_writer else f"reads {where}; others write them"

    def check(self, any_rank: AnyRank) -> None:
        """Raises InputError where a rank cannot write, or has another folder than rank 0, and
        UnavailableError where the place does not answer; on every rank, as each waits for the others."""
        start = self._name_start(any_rank)
        is_writer = self._rank in self._writers
        fault = self._try(lambda: self._write(start)) if is_writer else None
        self._agree(fault, any_rank, "cannot write where checkpoints go")
        self._agree(self._try(lambda: self._find(start)), any_rank, "sees other checkpoints")
        if self._rank == 0:
            self._place.delete(_name(start, writer) for writer in self._writers)

    def _name_start(self, any_rank: AnyRank) -> str:
        """What rank 0 has drawn, on every rank."""
        number = secrets.randbits(BITS) if self._rank == 0 else 0
        bits = any_rank(torch.tensor([bool(number >> place & 1) for place in range(BITS)]))
        return f"{sum(1 << place for place, bit in enumerate(bits.tolist()) if bit):x}"

    def _try(self, work: Callable[[], None]) -> TrimaranError | None:
        try:
            work()
        except TrimaranError as error:
            return error
        return None

    def _write(self, start: str) -> None:
        self._place.write(b"?", _name(start, self._rank))

    def _find(self, start: str) -> None:
        for writer in self._writers if self._rank == 0 else (0,):
            try:
                self._place.read(_name(start, writer))
            except NotFoundError:
                raise InputError(
                    f"{self._place.url}/{FOLDER}: lacks what trainer rank {writer} has just written there, so"
                    f" its host and that of rank {self._rank} have two folders of this name; let"
                    " run.checkpoints name a folder that all hosts of the trainer see, or a bucket"
                ) from None

    def _agree(self, fault: TrimaranError | None, any_rank: AnyRank, what: str) -> None:
        """All ranks raise the same kind: whether the run may start again is for each of them to say."""
        own = torch.tensor([fault is not None, isinstance(fault, InputError)])
        is_wrong, is_input = any_rank(own).tolist()
        if fault:
            raise fault
        if is_wrong:
            kind = InputError if is_input else UnavailableError
            raise kind(f"another trainer rank {what}; its log says more")


def _name(start: str, rank: int) -> str:
    return f"{FOLDER}/{TRIED}{start}-{rank}"
