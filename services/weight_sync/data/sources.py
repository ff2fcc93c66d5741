"""What travels from a source: blocks, or the pieces of a delta. Without torch."""

from __future__ import annotations

from trimaran.types import Delta, MemorySource, RelaySource, Source


def delta_of(source: Source) -> Delta | None:
    """None where blocks travel; shared memory carries nothing else."""
    return None if isinstance(source, MemorySource) else source.delta


def shared_path(source: Source) -> str:
    """Empty where the version is to be taken as a copy."""
    return source.shared if isinstance(source, RelaySource) else ""
