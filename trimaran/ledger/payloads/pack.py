"""Several payloads in one file: what is made durable together costs one file and one wait for the disk.

    file:  groups-5f0c19a2b3d4e5f6 = group | group | group     one after the other, and nothing else
    name:  77ab…@groups-5f0c19a2b3d4e5f6:48211:50102            sha256 @ file : first byte : bytes

So a record that names a payload says where it lies, and there is no index that could be lost, or grow.
A file without such a name is one payload: an archive, or a group of Trimaran 0.1.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import NamedTuple

MIB = 1 << 20
PACK_BYTES = 64 * MIB
"""Beyond which no payload is added."""


class PayloadPlace(NamedTuple):
    """Where a payload lies, by its name.

    Example: place_of("77ab…@groups-5f0c:0:512").file == "groups-5f0c"
    """

    digest: str
    """sha256 of the payload."""
    file: str
    start: int = 0
    size: int | None = None
    """Bytes; None for all of the file."""


def place_of(name: str) -> PayloadPlace:
    digest, _, rest = name.partition("@")
    if not rest:
        return PayloadPlace(name.rpartition("-")[2], name)
    file, start, size = rest.rsplit(":", 2)
    return PayloadPlace(digest, file, int(start), int(size))


@dataclass(slots=True, eq=False)
class Pack:
    """Payloads that go into one file, under a name that no other controller gives.

    Example:
        pack = Pack()
        name = pack.add(b"tokens", digest)
        await payloads.write({pack.file: pack.data()})
        await payloads.read(name) == b"tokens"
    """

    file: str = field(default_factory=lambda: f"groups-{secrets.token_hex(8)}")
    size: int = 0
    _parts: list[bytes] = field(default_factory=list[bytes])

    @property
    def is_full(self) -> bool:
        return self.size >= PACK_BYTES

    def add(self, data: bytes, digest: str) -> str:
        """The payload's name."""
        name = f"{digest}@{self.file}:{self.size}:{len(data)}"
        self._parts.append(data)
        self.size += len(data)
        return name

    def data(self) -> bytes:
        return b"".join(self._parts)
