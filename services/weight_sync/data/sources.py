"""What travels from a source: blocks, or the pieces of a delta. Without torch."""

from __future__ import annotations

from trimaran.types import Delta, MemorySource, Source


def delta_of(source: Source) -> Delta | None:
    """None where blocks travel; shared memory carries nothing else."""
    return None if isinstance(source, MemorySource) else source.delta
