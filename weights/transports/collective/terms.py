"""What both ends of a broadcast must agree on before a tensor moves.

gloo ends the whole process when a message is longer than the buffer that waits
for it, from a thread of its own where nothing can be caught. So the sender's
first message in each transfer has a fixed length and says what follows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from trimaran.errors import TransferError
from weights.version.layout import BlockLayout
from weights.version.manifest import digest_bytes

FORMAT = struct.Struct(">16s16s16sQQ")
NUM_BYTES = FORMAT.size


@dataclass(frozen=True, slots=True)
class Terms:
    """What is about to travel, as one end sees it.

    Example: Terms.of(manifest.root, "", snapshot.layout, 64 << 20)
    """

    root: str
    """The version's."""
    base_root: str
    """The delta's; empty where blocks travel."""
    blocks: str
    """A digest of which blocks follow each other, and where each begins and ends."""
    num_bytes: int
    bucket_bytes: int

    @classmethod
    def of(cls, root: str, base_root: str, stream: BlockLayout, bucket_bytes: int) -> Terms:
        places = [n for p in stream.pieces for n in (p.block.number, p.start, p.end)]
        blocks = digest_bytes(struct.pack(f">{len(places)}Q", *places))
        return cls(root, base_root, blocks, stream.num_bytes, bucket_bytes)

    def encode(self) -> bytes:
        """NUM_BYTES long."""
        roots = (bytes.fromhex(text) for text in (self.root, self.base_root, self.blocks))
        return FORMAT.pack(*roots, self.num_bytes, self.bucket_bytes)

    def check(self, data: bytes) -> None:
        """Raises TransferError, saying what differs, unless the sender's terms are these."""
        if data == self.encode():
            return
        *roots, num_bytes, bucket_bytes = FORMAT.unpack(data)
        root, base_root, blocks = (part.hex() for part in roots)
        theirs = Terms(root, base_root.strip("0") and base_root, blocks, num_bytes, bucket_bytes)
        raise TransferError(f"the sender offers {theirs}, this receiver expects {self}")

    def __str__(self) -> str:
        """Example: "4096 bytes of root 0a1b… in buckets of 256 (blocks 7f00…)"."""
        what = f"a delta from {self.base_root} to" if self.base_root else "blocks of"
        return (
            f"{self.num_bytes} bytes of {what} root {self.root} in buckets of"
            f" {self.bucket_bytes} (layout {self.blocks[:8]})"
        )
