"""expert-loads.jsonl: a line a step, once, whatever has ended before."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from trimaran.errors import InputError
from trimaran.telemetry.expert_loads import EXPERT_LOADS_NAME, ExpertLoadsWriter
from trimaran.types import ExpertLoads

LAYERS = (ExpertLoads(0, (5, 3)), ExpertLoads(2, (0, 8)))


def write(folder: Path, *steps: int) -> None:
    writer = ExpertLoadsWriter(folder)
    for step in steps:
        writer.write(step, LAYERS)
    writer.close()


def rows_in(folder: Path) -> list[dict[str, Any]]:
    text = (folder / EXPERT_LOADS_NAME).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def steps_in(folder: Path) -> list[int]:
    return [row["step"] for row in rows_in(folder)]


def test_a_line_has_the_tokens_of_each_expert_by_layer(tmp_path: Path) -> None:
    write(tmp_path, 3)
    assert rows_in(tmp_path) == [{"step": 3, "layers": {"0": [5, 3], "2": [0, 8]}}]


def test_a_torn_line_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    path = tmp_path / EXPERT_LOADS_NAME
    path.write_bytes(path.read_bytes()[:-5])
    write(tmp_path, 2, 3)
    assert steps_in(tmp_path) == [1, 2, 3]
    path.write_text("nonsense\n")
    with pytest.raises(InputError, match=r"expert-loads.jsonl: a line is damaged"):
        write(tmp_path, 4)


def test_a_model_without_experts_has_no_file(tmp_path: Path) -> None:
    writer = ExpertLoadsWriter(tmp_path)
    writer.write(1, ())
    writer.flush()
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_lines_that_find_no_room_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = ExpertLoadsWriter(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("trimaran.host.append_file.os.write", full)
        writer.write(1, LAYERS)
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
    assert steps_in(tmp_path) == []
    writer.write(2, LAYERS)
    writer.close()
    assert steps_in(tmp_path) == [1, 2]
