"""Which blocks were right as vLLM's own loader had put them into its parameters.

A load that writes into parameters looks up where a tensor lies in the same table as a read-back
(`modules`). So a read-back of what was written that way is right even where the table is wrong: only a
read-back of what vLLM itself has loaded shows that the table is right.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimaran.types import Manifest
from weights.version.manifest import Block, list_blocks

Key = tuple[str, int, int]
"""A block's tensor, and where it begins and ends there."""


class Shown:
    """What was shown of one engine since it was made.

    Example:

        shown = Shown()
        shown.note_load(by_vllm=True)
        shown.note_reading(manifest, digests, shown.num_loads)  # of every block
        shown.has_all(manifest)  # True, where all were right
    """

    def __init__(self) -> None:
        self._right: set[Key] = set()
        self.num_loads = 0
        """That have begun."""
        self._by_vllm = False
        """The last one."""

    def note_load(self, by_vllm: bool) -> None:
        """As it begins: what it does not finish is not what the one before it had put there."""
        self._by_vllm = by_vllm
        self.num_loads += 1

    def note_reading(self, manifest: Manifest, digests: Mapping[int, str], num_loads: int) -> None:
        """By block number of the manifest, which may be a part of a version's. `num_loads`: when the reading
        began; one that a load has crossed shows nothing. After a wrong block all have to be shown again."""
        if num_loads != self.num_loads:
            return
        blocks = [block for block in list_blocks(manifest.tensors) if block.number in digests]
        if any(digests[b.number] != b.tensor.digests[b.index] for b in blocks):
            self._right.clear()
            self._by_vllm = False  # before the next load nothing more is shown
        elif self._by_vllm:
            self._right.update(map(_key, blocks))

    def has_all(self, manifest: Manifest) -> bool:
        return self._right.issuperset(map(_key, list_blocks(manifest.tensors)))


def _key(block: Block) -> Key:
    return block.tensor.name, block.start, block.stop
