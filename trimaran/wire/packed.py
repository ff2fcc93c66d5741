"""Numbers in four bytes each, as they travel and as they lie in payloads.

A group of 8 x 512 tokens as tuples of Python's numbers is 280 kB, takes a millisecond to unpack and
another to pack again. The controller only hands tokens on: to it they stay bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar, cast, overload

import numpy as np

Number = TypeVar("Number", int, float)


class Packed(Sequence[Number]):
    """Immutable, equal to any sequence of the same numbers. Unpacks when it is looked into."""

    __slots__ = ("data",)
    DTYPE: ClassVar[np.dtype[Any]]

    def __init__(self, data: bytes) -> None:
        """Little-endian. Raises ValueError unless there are four bytes a number."""
        if len(data) % 4:
            raise ValueError(f"{len(data)} bytes of {type(self).__name__}; a number takes four")
        self.data = data

    def __len__(self) -> int:
        return len(self.data) // 4

    def __iter__(self) -> Iterator[Number]:
        return iter(self._values().tolist())

    @overload
    def __getitem__(self, place: int) -> Number: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Number, ...]: ...
    def __getitem__(self, place: int | slice) -> Number | tuple[Number, ...]:
        found = self._values()[place].tolist()
        return tuple(found) if isinstance(place, slice) else found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence):
            return tuple(self) == tuple(cast(Sequence[object], other))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """For numpy: without a copy where neither is asked for."""
        values = self._values()
        return values if dtype is None and not copy else values.astype(dtype or self.DTYPE)

    def _values(self) -> Any:
        return np.frombuffer(self.data, self.DTYPE)


class TokenIds(Packed[int]):
    """int32. Example: TokenIds(b"\\x07\\0\\0\\0") == (7,)"""

    __slots__ = ()
    DTYPE = np.dtype("<i4")


class Logprobs(Packed[float]):
    """float32. Example: Logprobs(b"\\0\\0\\0\\xbf") == (-0.5,)"""

    __slots__ = ()
    DTYPE = np.dtype("<f4")
