"""What a process can give to others at this moment: verified blocks, and pieces of deltas."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping

import torch

from weights.version.layout import BlockLayout

Key = tuple[str, str]
"""Root of a version, and the base root when it is the delta between the two; else empty."""


class Holding:
    """The blocks of one version, or the pieces of one delta. Safe in several threads."""

    def __init__(self, contents: Mapping[int, memoryview], *, filling: bool = False) -> None:
        """`filling`: the blocks come one by one, each given out once it has landed."""
        self._contents = dict(contents)
        self._landed: list[int] = [] if filling else list(contents)
        """In this order."""
        self._filling = filling
        self.void = False
        """Withdrawn."""
        self._changed = threading.Condition()

    def land(self, number: int) -> None:
        with self._changed:
            self._landed.append(number)
            self._changed.notify_all()

    def complete(self) -> None:
        """All have landed, or no more will."""
        with self._changed:
            self._filling = False
            self._changed.notify_all()

    def withdraw(self) -> None:
        """Nothing of it is given out any more: its memory is about to change.

        What is being sent at this moment is marked as void to its receiver.
        """
        with self._changed:
            self._contents, self._landed = {}, []
            self._filling, self.void = False, True
            self._changed.notify_all()

    def follow(self, numbers: Iterable[int], patience: float) -> Iterator[int]:
        """Each of `numbers` once, as they land. Ends after the last of them, when no more can come,
        or when none has come for `patience` seconds.

        Looks at every block that lands once, however often it wakes.
        """
        missing, seen = set(numbers), 0
        while missing:
            found, seen = self._wait(missing, seen, time.monotonic() + patience)
            if not found:
                return
            missing.difference_update(found)
            yield from found

    def _wait(self, missing: set[int], seen: int, deadline: float) -> tuple[list[int], int]:
        """Those of `missing` that landed after the first `seen` ones, and how many have by now."""
        with self._changed:
            while True:
                found = [number for number in self._landed[seen:] if number in missing]
                seen = len(self._landed)
                left = deadline - time.monotonic()
                if found or not self._filling or left <= 0:
                    return found, seen
                self._changed.wait(left)

    def read(self, number: int) -> memoryview | None:
        """None when it has been withdrawn."""
        return self._contents.get(number)


def contents_of(buffer: torch.Tensor, layout: BlockLayout) -> dict[int, memoryview]:
    view = buffer.numpy().data
    return {piece.block.number: view[piece.start : piece.end] for piece in layout.pieces}


class Stock:
    """By root.

    Example:

        stock = Stock()
        stock.show({(root, ""): Holding(contents_of(snapshot.buffer, snapshot.layout))})
        stock.find(root).read(7)  # the bytes of block 7
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holdings: dict[Key, Holding] = {}

    def show(self, holdings: Mapping[Key, Holding]) -> None:
        """These and nothing else: any other that was shown is withdrawn, for good."""
        with self._lock:
            former, self._holdings = self._holdings, dict(holdings)
            kept = {id(holding) for holding in self._holdings.values()}
        for holding in former.values():
            if id(holding) not in kept:
                holding.withdraw()

    def find(self, root: str, base_root: str = "") -> Holding | None:
        with self._lock:
            return self._holdings.get((root, base_root))
