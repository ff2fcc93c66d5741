"""The file of a validation's answers: in order, whatever comes first, and not half of it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from services.controller.reporting import samples_file
from services.controller.reporting.samples_file import SamplesFile, remove_old
from trimaran.ledger.disk import NoRoomError


def test_rows_are_in_the_prompts_order_and_nothing_else_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    with SamplesFile(folder, 20) as file:
        for index in (2, 0, 1):
            file.add(index, {"n": index, "text": "ä" * index})
        assert not file.path.exists()
        file.finish()
    assert [path.name for path in folder.iterdir()] == ["step-00020.jsonl"]
    rows = [json.loads(line) for line in file.path.read_text(encoding="utf-8").splitlines()]
    assert [row["n"] for row in rows] == [0, 1, 2]


def test_a_validation_that_ends_early_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), SamplesFile(tmp_path, 1) as file:
        file.add(0, {"n": 0})
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_on_a_full_disk_a_row_is_written_again_over_what_was_torn(tmp_path: Path) -> None:
    class Full:
        """Takes five bytes, and then none."""

        def __init__(self, file: Any) -> None:
            self.file, self.is_full = file, True
            self.seek, self.read, self.close = file.seek, file.read, file.close

        def write(self, data: memoryview) -> int:
            if self.is_full and len(data) < 40:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data[:5] if self.is_full else data)

    with SamplesFile(tmp_path, 1) as file:
        file.add(0, {"n": 0})
        full: Any = Full(file._file)
        file._file = full
        with pytest.raises(NoRoomError, match="step-00001"):
            file.add(1, {"text": "x" * 30})
        full.is_full = False
        file.add(1, {"text": "x" * 30})
        file.finish()
    rows = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert rows == [{"n": 0}, {"text": "x" * 30}]


def test_files_that_are_large_together_go_but_for_the_first_and_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_file, "KEPT_BYTES", 350)
    for step in range(6):
        (tmp_path / f"step-{step:05d}.jsonl").write_bytes(bytes(100))
    remove_old(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == [
        *("step-00000", "step-00004", "step-00005")
    ]
    monkeypatch.setattr(samples_file, "KEPT_BYTES", 1)
    remove_old(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["step-00000", "step-00005"]
