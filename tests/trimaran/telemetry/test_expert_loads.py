"""expert-loads.jsonl: a line a step, once, whatever has ended before; and figures by hand."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trimaran.errors import InputError
from trimaran.telemetry.expert_loads import (
    EXPERT_LOADS_NAME,
    ExpertLoadsWriter,
    LayerFigures,
    StepLoads,
    Totals,
    read_loads,
    read_newest,
)
from trimaran.types import ExpertLoads

LAYERS = (ExpertLoads(0, (5, 3)), ExpertLoads(2, (0, 8)))


def write(folder: Path, *steps: int) -> None:
    writer = ExpertLoadsWriter(folder)
    for step in steps:
        writer.write(step, LAYERS)
    writer.close()


def steps_in(folder: Path, first: int = 0, last: int | None = None) -> list[int]:
    return [one.step for one in read_loads(folder, first, last)]


def test_loads_come_back_as_they_went(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 30)
    assert list(read_loads(tmp_path, 2, 2)) == [StepLoads(2, LAYERS)]
    assert read_newest(tmp_path) == StepLoads(30, LAYERS)
    assert (steps_in(tmp_path, 2), steps_in(tmp_path, 0, 2)) == ([2, 30], [1, 2])


def test_a_second_writer_leaves_out_what_stands_there(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    write(tmp_path, 1, 2, 3)
    assert steps_in(tmp_path) == [1, 2, 3]


def test_a_torn_line_is_not_read_and_its_step_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    path = tmp_path / EXPERT_LOADS_NAME
    path.write_bytes(path.read_bytes()[:-5])
    assert steps_in(tmp_path) == [1]
    assert read_newest(tmp_path) == StepLoads(1, LAYERS)
    write(tmp_path, 2, 3)
    assert steps_in(tmp_path) == [1, 2, 3]


def test_a_model_without_experts_has_no_file(tmp_path: Path) -> None:
    writer = ExpertLoadsWriter(tmp_path)
    writer.write(1, ())
    writer.flush()
    writer.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="written with the first step of a model with experts"):
        steps_in(tmp_path)


def test_lines_that_find_no_room_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = ExpertLoadsWriter(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("trimaran.host.append_file.os.write", full)
        writer.write(1, LAYERS)
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
    assert read_newest(tmp_path) is None
    writer.write(2, LAYERS)
    writer.close()
    assert steps_in(tmp_path) == [1, 2]


@pytest.mark.parametrize("line", ["nonsense", '{"step":1,"layers":{"0":3}}', '{"step":1,"layers"'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / EXPERT_LOADS_NAME).write_text(line + "\n")
    with pytest.raises(InputError, match=r"expert-loads.jsonl: a line is damaged"):
        list(read_loads(tmp_path, 0, None))
    with pytest.raises(InputError, match=r"expert-loads.jsonl: a line is damaged"):
        read_newest(tmp_path)


def test_the_largest_models_take_what_the_docs_say(tmp_path: Path) -> None:
    """94 layers with 128 experts. A step of 8 million tokens, each with 8 experts."""
    tokens_E = tuple(8_000_000 * 8 // 128 for _ in range(128))
    writer = ExpertLoadsWriter(tmp_path)
    writer.write(10_000, [ExpertLoads(layer, tokens_E) for layer in range(94)])
    writer.close()
    assert 80_000 < (tmp_path / EXPERT_LOADS_NAME).stat().st_size < 87_000


def test_steps_add_up(tmp_path: Path) -> None:
    totals = Totals()
    totals.add(StepLoads(3, LAYERS))
    totals.add(StepLoads(4, LAYERS))
    assert (totals.steps, totals.layers) == ([3, 4], {0: [10, 6], 2: [0, 16]})


def test_figures_by_hand() -> None:
    assert LayerFigures.of([6, 2]) == LayerFigures(
        tokens=8, mean=4.0, most=0, least=1, variation=0.5
    )
    even = LayerFigures.of([3, 3, 3])
    assert (even.most, even.least, even.variation) == (0, 0, 0.0)
