"""Whether all ranks have one place for checkpoints, with a thread for each rank."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint_folder import FOLDER
from services.trainer.checkpoints.common_place import CommonPlace
from trimaran.errors import InputError, UnavailableError
from trimaran.host.places import FolderPlace, Place


class Remembers(FolderPlace):
    def __init__(self, folder: Path, key: str) -> None:
        super().__init__(folder, key)
        self.asked: list[str] = []

    def read(self, name: str) -> bytes:
        self.asked.append(name)
        return super().read(name)


class Ranks:
    """Threads that meet where ranks would in a collective."""

    def __init__(self, places: list[Place], writers: set[int]) -> None:
        self._flags: list[torch.Tensor] = [torch.zeros(1)] * len(places)
        self._barrier = Barrier(len(places), timeout=30)
        self._ranks = [CommonPlace(place, rank, writers) for rank, place in enumerate(places)]

    def check(self) -> list[str]:
        """What each rank says, or nothing."""
        with ThreadPoolExecutor(len(self._ranks)) as threads:
            return [*threads.map(self._check, range(len(self._ranks)))]

    def _check(self, rank: int) -> str:
        def any_rank(flags: torch.Tensor) -> torch.Tensor:
            self._flags[rank] = flags
            self._barrier.wait()
            total = torch.stack(self._flags).any(0)
            self._barrier.wait()
            return total

        try:
            self._ranks[rank].check(any_rank)
        except (InputError, UnavailableError) as error:
            return f"{type(error).__name__}: {error}"
        return ""


def folders(*paths: Path) -> list[Place]:
    return [FolderPlace(path, "run.checkpoints") for path in paths]


def test_one_folder_does_and_nothing_stays_in_it(tmp_path: Path) -> None:
    assert Ranks(folders(*[tmp_path / "run"] * 3), {0, 2}).check() == [""] * 3
    assert [*(tmp_path / "run" / FOLDER).iterdir()] == []


@pytest.mark.parametrize("writers", [{0, 1}, {0}])
def test_two_folders_of_one_name_are_found_whatever_saves(
    tmp_path: Path, writers: set[int]
) -> None:
    reported = Ranks(folders(tmp_path / "a", tmp_path / "b"), writers).check()
    assert all(line.startswith("InputError") for line in reported)
    first, second = reported
    assert "lacks what trainer rank 0 has just written" in second
    assert "run.checkpoints name a folder that all hosts of the trainer see" in second
    if writers == {0, 1}:
        assert "lacks what trainer rank 1 has just written" in first
    else:
        assert first == "InputError: another trainer rank sees other checkpoints; its log says more"


def test_names_are_new_in_each_start_and_what_one_has_left_goes_with_the_next(
    tmp_path: Path,
) -> None:
    """A host remembers what it did not find."""
    places = [Remembers(tmp_path / "run", "run.checkpoints") for _ in range(2)]
    ranks = Ranks([*places], {0, 1})
    assert ranks.check() == ranks.check() == ["", ""]
    assert [len({*place.asked}) for place in places] == [4, 2]
    left = tmp_path / "run" / FOLDER
    for name in (".can-write-1f-1", "..can-write-1f-1.0a1b2c3d"):  # the second was being written
        (left / name).write_bytes(b"?")
    checkpoint.tidy(tmp_path / "run")
    assert [*left.iterdir()] == []


class ReadOnly(FolderPlace):
    def write(self, data: bytes, name: str) -> None:
        raise InputError(f"run.checkpoints: {self.url}/{name}: Permission denied")


def test_a_folder_that_may_only_be_read_or_takes_no_files_is_named(tmp_path: Path) -> None:
    """Rank 0 does not wait for what never comes."""
    (tmp_path / "file").write_text("")
    good = FolderPlace(tmp_path / "a", "run.checkpoints")
    for bad, kind, words in (
        (ReadOnly(tmp_path / "a", ""), "InputError", "run.checkpoints: .*a/checkpoints/.*denied"),
        (*folders(tmp_path / "file"), "UnavailableError", "run.checkpoints: .*Not a directory"),
    ):
        first, second = Ranks([good, bad], {0, 1}).check()
        other = "another trainer rank cannot write where checkpoints go; its log says more"
        assert first == f"{kind}: {other}"
        assert re.match(f"{kind}: {words}", second)
