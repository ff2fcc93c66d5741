"""A model's folder on this host: where `model.path` says, or fetched once from `model.source`.

    CACHE/models/3f1c…/SmolLM2-135M       whole, and checked
    CACHE/models/3f1c….partial/           while it is fetched; the next try goes on with it
    CACHE/models/3f1c….lock               who fetches; the host's other processes wait for it

CACHE is TRIMARAN_CACHE, or `trimaran` in the user's cache folder. Every part is checked by its digest
as it arrives. Each thread holds one part, so memory is bounded whatever the model's size.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trimaran.config import ModelSection
from trimaran.errors import InputError, NotFoundError
from trimaran.host.places import Place, host_lock, open_place, sync, write_at
from trimaran.model.manifest import MANIFEST, FilePart, ModelManifest, digest_of, read_manifest
from trimaran.wire import health_note

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "TRIMARAN_CACHE"
NUM_THREADS = 32
"""Parts under way: 512 MiB of memory. One connection to S3 brings about 0.1 GB/s."""
RESERVE_BYTES = 64 << 20
"""Left free on the cache's disk."""


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """This host's folder for what can be fetched again."""
    if given := environment.get(CACHE_VARIABLE):
        return Path(given)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimaran"


def find_model(model: ModelSection, timeout: float, cache: Path | None = None) -> Path:
    """The model's folder on this host. `timeout`: seconds, for another process that fetches it.

    Raises InputError, UnavailableError where the source is away, and DeadlineError.

    Example: find_model(config.model, config.start_timeout)
    """
    if model.path.is_dir() or model.source is None:
        return model.path  # where it is not a folder, its reader says so
    place = open_place(model.source, "model.source")
    try:
        return _fetched(place, model, (cache or cache_folder()) / "models", timeout)
    except NotFoundError as error:
        raise InputError(f"{error}; bring it there with `trimaran model push`") from None


def _fetched(place: Place, model: ModelSection, folder: Path, timeout: float) -> Path:
    data = place.read(MANIFEST)
    found = digest_of(data)
    if model.digest not in (None, found):
        raise InputError(
            f"model.source: {place.url}/{MANIFEST} has the digest {found}, model.digest is"
            f" {model.digest}; name the model that is meant"
        )
    fetch = _Fetch(place, read_manifest(data, place.url), folder, found)
    return fetch.run(model.path.name, timeout)


class _Fetch:
    def __init__(self, place: Place, manifest: ModelManifest, folder: Path, key: str) -> None:
        self._place, self._manifest, self._folder, self._key = place, manifest, folder, key
        self._partial = folder / f"{key}.partial"

    def run(self, name: str, timeout: float) -> Path:
        target = self._folder / self._key / name
        if target.is_dir():
            return target
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be made ({error.strerror}); let {CACHE_VARIABLE} name a folder"
                " that can"
            ) from None
        with host_lock(self._folder / f"{self._key}.lock", timeout, f"fetching {self._place.url}"):
            if not target.is_dir():
                self._check_room()
                self._fetch()
                target.parent.mkdir(exist_ok=True)
                self._partial.rename(target)
        return target

    def _check_room(self) -> None:
        had = sum(path.stat().st_blocks * 512 for path in self._partial.glob("*"))
        needed = self._manifest.num_bytes - had
        free = shutil.disk_usage(self._folder).free
        if free < needed + RESERVE_BYTES:
            raise InputError(
                f"{self._folder}: the model needs {needed / 1e9:,.1f} GB more, and the disk has"
                f" {free / 1e9:,.1f}; make room there, or let {CACHE_VARIABLE} name a larger disk"
            )

    def _fetch(self) -> None:
        began, size = time.monotonic(), self._manifest.num_bytes
        logger.info("fetching %s: %.3f GB", self._place.url, size / 1e9)
        self._partial.mkdir(exist_ok=True)
        for name, file in self._manifest.files.items():
            with (self._partial / name).open("ab") as opened:
                opened.truncate(file.bytes)
        with ThreadPoolExecutor(NUM_THREADS, "fetch") as pool:
            parts = list(self._manifest.parts())
            brought = pool.map(self._bring, parts)
            counted = health_note.own.counted("fetches", brought, len(parts), "parts of the model")
            fetched = sum(counted)
        for name in self._manifest.files:
            sync(self._partial / name)
        sync(self._partial)
        seconds = time.monotonic() - began
        logger.info("%s: %.3f GB came in %.1f s", self._place.url, fetched / 1e9, seconds)

    def _bring(self, part: FilePart) -> int:
        """Bytes that came: none where an earlier try has brought them."""
        descriptor = os.open(self._partial / part.file, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _has_data(descriptor, part):
                there = os.pread(descriptor, part.length, part.start)
                if digest_of(there) == part.digest:
                    return 0
            data = self._place.read_part(part.file, part.start, part.length)
            if (found := digest_of(data)) != part.digest:
                raise InputError(
                    f"model.source: {self._place.url}/{part.file}: bytes {part.start} to"
                    f" {part.start + part.length} have the digest {found}, {MANIFEST} says"
                    f" {part.digest}; push the model again"
                )
            write_at(descriptor, data, part.start)
            return part.length
        finally:
            os.close(descriptor)


def _has_data(descriptor: int, part: FilePart) -> bool:
    """Rather than a hole, which is not worth a digest."""
    try:
        return os.lseek(descriptor, part.start, os.SEEK_DATA) < part.start + part.length
    except OSError:  # nothing but a hole up to the end
        return False
