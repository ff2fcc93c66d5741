"""What a model's folder holds, with a digest of each part: `trimaran-model.json` beside the files.

    {"format": 1, "part_bytes": 16777216,
     "files": {"config.json": {"bytes": 704, "parts": ["9f86d0…"]}, …}}

A host that lacks the model fetches it by this list. The digest is SHA-256: a model may come from
another owner's bucket, and the manifest's own SHA-256 (`model.digest`) then stands for all of it.
xxh3, which checks our own weights on their way, is ten times as fast, but anybody can make a second
file for a digest of it. Parts have digests of their own, so that they are fetched side by side, are
checked as they arrive, and are not fetched again after an interruption.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from trimaran.errors import InputError
from trimaran.host.places import Place

MANIFEST = "trimaran-model.json"
FORMAT = 1
PART_BYTES = 16 << 20
NUM_THREADS = 8
NAME = re.compile(r"[\w-][\w.+ -]*")
"""A file's name: never a way to another folder."""
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of one file: bytes `start` to `start + length`."""

    file: str
    start: int
    length: int
    digest: str


@dataclass(frozen=True, slots=True)
class ModelFile:
    bytes: int
    parts: tuple[str, ...]
    """Their digests, in order."""


@dataclass(frozen=True, slots=True)
class ModelManifest:
    """Example: read_manifest(place.read(MANIFEST), place.url).num_bytes"""

    files: dict[str, ModelFile]
    part_bytes: int = PART_BYTES

    @property
    def num_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def parts(self) -> Iterator[FilePart]:
        for name, file in self.files.items():
            for number, digest in enumerate(file.parts):
                start = number * self.part_bytes
                yield FilePart(name, start, min(self.part_bytes, file.bytes - start), digest)

    def dump(self) -> bytes:
        """Equal for equal files."""
        files = {name: asdict(self.files[name]) for name in sorted(self.files)}
        tree = {"format": FORMAT, "part_bytes": self.part_bytes, "files": files}
        return (json.dumps(tree, indent=1) + "\n").encode()


def digest_of(data: Any) -> str:
    """`data`: bytes, or another buffer."""
    return sha256(data).hexdigest()


def make_manifest(folder: Path, part_bytes: int = PART_BYTES) -> ModelManifest:
    """Reads all files of the folder, not those of folders in it."""

    def digest(path: Path, start: int) -> str:
        with path.open("rb") as file:
            file.seek(start)
            return digest_of(file.read(part_bytes))

    files: dict[str, ModelFile] = {}
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for path in sorted(folder.iterdir()):
            if not path.is_file() or path.name == MANIFEST or path.name.startswith("."):
                continue
            if not NAME.fullmatch(path.name):
                raise InputError(f"{path}: a name of letters, digits, - _ . + is needed; rename it")
            size = path.stat().st_size
            digests = pool.map(partial(digest, path), range(0, size, part_bytes))
            files[path.name] = ModelFile(size, tuple(digests))
    return ModelManifest(files, part_bytes)


def push_model(folder: Path, place: Place, prefix: str = "") -> str:
    """All files of the folder, then their manifest, to where `model.source` may name them; its digest.

    Example: push_model(Path("models/tiny"), open_place("s3://models/tiny", "URL"))
    """
    manifest = make_manifest(folder)
    for name in manifest.files:
        place.upload(folder / name, f"{prefix}/{name}".lstrip("/"))
    data = manifest.dump()
    place.write(data, f"{prefix}/{MANIFEST}".lstrip("/"))
    return digest_of(data)


def read_manifest(data: bytes, where: str) -> ModelManifest:
    """Raises InputError for what is no manifest of ours, or names a file outside of its folder."""
    try:
        tree = json.loads(data)
        if tree["format"] != FORMAT:
            raise ValueError(f"its format is {tree['format']}, known is {FORMAT}")
        part_bytes = int(tree["part_bytes"])
        files = {
            str(name): ModelFile(int(file["bytes"]), tuple(map(str, file["parts"])))
            for name, file in tree["files"].items()
        }
        for name, file in files.items():
            num_parts = -(-file.bytes // part_bytes)
            sound = NAME.fullmatch(name) and name != MANIFEST and len(file.parts) == num_parts
            if not sound or not all(map(DIGEST.fullmatch, file.parts)):
                raise ValueError(f"{name!r} is not described as it should be")
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise InputError(
            f"{where}/{MANIFEST}: not a model's manifest ({error}); `trimaran model push` writes one"
        ) from None
    return ModelManifest(files, part_bytes)
