"""A model's folder: found on the host, or fetched once, in parts that are checked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bucket_server import Endpoint, served
from trimaran.config import ModelSection
from trimaran.errors import InputError
from trimaran.host.places import FolderPlace, open_place
from trimaran.model.fetch import cache_folder, find_model
from trimaran.model.manifest import (
    MANIFEST,
    ModelFile,
    ModelManifest,
    digest_of,
    make_manifest,
    push_model,
    read_manifest,
)

SIZES = {"config.json": 300, "tokenizer.json": 70_000, "model.safetensors": 1_000_001, "empty": 0}
PART_BYTES = 1 << 16


@pytest.fixture(scope="module")
def bucket() -> Iterator[Endpoint]:
    with served() as endpoint:
        yield endpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "here" / "tiny"
    folder.mkdir(parents=True)
    for name, size in SIZES.items():
        (folder / name).write_bytes(os.urandom(size))
    return folder


def pushed(model: Path, target: Path) -> str:
    """With small parts, so that there are many. The manifest's digest."""
    manifest = make_manifest(model, PART_BYTES)
    for name in manifest.files:
        FolderPlace(target, "").upload(model / name, name)
    FolderPlace(target, "").write(manifest.dump(), MANIFEST)
    return digest_of(manifest.dump())


def section(source: Path | str, **more: Any) -> ModelSection:
    return ModelSection(path=Path("/nowhere/tiny"), source=str(source), **more)


def same_files(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in SIZES)


def test_a_folder_that_is_there_is_used(model: Path, tmp_path: Path) -> None:
    found = find_model(ModelSection(path=model, source="/never"), 1, tmp_path / "cache")
    assert found == model
    assert not (tmp_path / "cache").exists()


def test_a_model_comes_from_a_bucket_under_its_own_name(
    bucket: Endpoint, model: Path, tmp_path: Path
) -> None:
    digest = push_model(model, open_place("s3://payloads/models/tiny", "URL"))
    wanted = section("s3://payloads/models/tiny", digest=digest)
    found = find_model(wanted, 1, tmp_path / "cache")
    assert found.name == "tiny"
    assert same_files(found, model)
    left = {path.name for path in (tmp_path / "cache/models").iterdir()}
    assert left == {digest, f"{digest}.lock"}


def test_another_model_than_the_one_that_is_meant_is_refused(model: Path, tmp_path: Path) -> None:
    digest = pushed(model, tmp_path / "shared")
    with pytest.raises(InputError, match=rf"has the digest {digest}, model\.digest is 000"):
        find_model(section(tmp_path / "shared", digest="0" * 64), 1, tmp_path / "cache")


def test_a_wrong_part_is_named_and_nothing_stands_in_the_cache(model: Path, tmp_path: Path) -> None:
    digest = pushed(model, tmp_path / "shared")
    with (tmp_path / "shared/model.safetensors").open("r+b") as file:
        file.seek(PART_BYTES + 7)
        file.write(b"!?")
    with pytest.raises(InputError, match=r"model\.safetensors: bytes 65536 to 131072 have the dig"):
        find_model(section(tmp_path / "shared"), 1, tmp_path / "cache")
    assert not (tmp_path / "cache/models" / digest).exists()


class Counting(FolderPlace):
    """Fails after so many parts, and knows which it gave."""

    def __init__(self, folder: Path, left: int) -> None:
        super().__init__(folder, "model.source")
        self.left, self.given = left, 0

    def read_part(self, name: str, start: int, length: int) -> memoryview:
        if self.given >= self.left:
            raise InterruptedError("the host is gone")
        self.given += 1
        return super().read_part(name, start, length)


def test_an_interrupted_fetch_goes_on_where_it_was(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(model, tmp_path / "shared")
    total = len(list(make_manifest(model, PART_BYTES).parts()))
    first, second = Counting(tmp_path / "shared", 7), Counting(tmp_path / "shared", 1000)
    places = iter([first, second])
    monkeypatch.setattr("trimaran.model.fetch.open_place", lambda url, key: next(places))
    with pytest.raises(InterruptedError):
        find_model(section(tmp_path / "shared"), 1, tmp_path / "cache")
    found = find_model(section(tmp_path / "shared"), 1, tmp_path / "cache")
    assert same_files(found, model)
    assert (first.given, second.given) == (7, total - 7)


FETCH = """
import sys
from pathlib import Path
from tests.trimaran.model.test_model_fetch import Counting, section
from trimaran.model import fetch

place = Counting(Path(sys.argv[1]), 1000)
fetch.open_place = lambda url, key: place
print(fetch.find_model(section(sys.argv[1]), 60, Path(sys.argv[2])), place.given)
"""


def test_eight_processes_of_a_host_fetch_once(model: Path, tmp_path: Path) -> None:
    pushed(model, tmp_path / "shared")
    command = [sys.executable, "-c", FETCH, str(tmp_path / "shared"), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    answers = [process.communicate(timeout=60)[0].split() for process in processes]
    assert len({folder for folder, _ in answers}) == 1
    assert same_files(Path(answers[0][0]), model)
    total = len(list(make_manifest(model, PART_BYTES).parts()))
    assert sorted(int(given) for _, given in answers) == [0] * 7 + [total]


def test_a_model_that_does_not_fit_is_refused_before_a_byte_comes(
    model: Path, tmp_path: Path
) -> None:
    manifest = ModelManifest(
        {"model.safetensors": ModelFile(1 << 50, ("0" * 64,) * (1 << 14))}, 1 << 36
    )
    FolderPlace(tmp_path / "shared", "").write(manifest.dump(), MANIFEST)
    with pytest.raises(InputError, match=r"needs 1,125,899\.9 GB more, .* TRIMARAN_CACHE"):
        find_model(section(tmp_path / "shared"), 1, tmp_path / "cache")


@pytest.mark.parametrize(
    "broken",
    [
        *("", "[]", '{"format": 2}'),
        '{"format": 1, "part_bytes": 4, "files": {"../x": {"bytes": 0, "parts": []}}}',
        '{"format": 1, "part_bytes": 4, "files": {"x": {"bytes": 9, "parts": ["00"]}}}',
        '{"format": 1, "part_bytes": 0, "files": {"x": {"bytes": 9, "parts": []}}}',
    ],
)
def test_a_broken_manifest_is_refused(broken: str) -> None:
    with pytest.raises(InputError, match=r"s3://m/trimaran-model\.json: not a model's manifest"):
        read_manifest(broken.encode(), "s3://m")


names = st.from_regex(r"[a-z][a-z.]{0,8}", fullmatch=True)


@given(st.dictionaries(names, st.integers(0, 100), max_size=5), st.integers(1, 40))
def test_a_manifest_is_read_as_it_was_written(sizes: dict[str, int], part_bytes: int) -> None:
    digest = digest_of(b"")
    files = {n: ModelFile(s, (digest,) * -(-s // part_bytes)) for n, s in sizes.items()}
    manifest = ModelManifest(files, part_bytes)
    again = read_manifest(manifest.dump(), "here")
    assert again == manifest
    assert sum(part.length for part in again.parts()) == manifest.num_bytes
    assert all(0 < part.length <= part_bytes for part in again.parts())


def test_where_the_cache_is() -> None:
    assert cache_folder({"TRIMARAN_CACHE": "/big"}) == Path("/big")
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/trimaran")
    assert cache_folder({}) == Path.home() / ".cache/trimaran"
