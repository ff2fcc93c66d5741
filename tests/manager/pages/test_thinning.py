"""Numbers by step, before and after their rows became too many."""

from __future__ import annotations

from typing import Any

from services.manager.pages.run.thinning import SECONDS, STEP, Table

LOSS = "trainer/loss"


def rows(steps: range, value: float | None = None) -> list[dict[str, Any]]:
    """With the step as its own value."""
    return [
        {"kind": "step", "step": step, "time": 100.0 + step, LOSS: step if value is None else value}
        for step in steps
    ]


def all_of(table: Table, points: int = 1000) -> Any:
    stride = table.find_stride(0, 1 << 31, points)
    return table.cut([LOSS, "unknown"], 0, 1 << 31, stride)


def test_few_rows_stand_as_they_are() -> None:
    table = Table(most=8)
    table.add(rows(range(1, 4)))
    table.add([{"kind": "step", "step": 4, "time": 104.0, LOSS: None, "trainer/kl": 1.0}])
    cut = all_of(table)
    assert cut.means[STEP].tolist() == [1, 2, 3, 4]
    assert cut.means[SECONDS].tolist() == [0, 1, 2, 3]
    assert str(cut.means[LOSS].tolist()) == "[1.0, 2.0, 3.0, nan]"
    assert "unknown" not in cut.means and table.keys == [LOSS, "trainer/kl"]


def test_many_rows_share_buckets_that_keep_mean_least_and_greatest() -> None:
    table = Table(most=8)
    for step in range(32):
        table.add(rows(range(step, step + 1)))
    assert table.stride == 4
    cut = all_of(table)
    assert cut.means[LOSS].tolist() == [1.5, 5.5, 9.5, 13.5, 17.5, 21.5, 25.5, 29.5]
    assert (cut.lows[LOSS][1], cut.highs[LOSS][1]) == (4, 7)
    shorter = all_of(table, points=3)
    assert shorter.means[STEP].tolist() == [7.5, 23.5]
    part = table.cut([LOSS], 6, 9, 4)
    assert part.means[LOSS].tolist() == [5.5, 9.5]


def test_a_table_may_begin_late() -> None:
    table = Table(most=8)
    table.add(rows(range(100_000, 100_003)))
    assert all_of(table).means[LOSS].tolist() == [100_001]


def test_a_step_that_is_trained_again_replaces_the_former_and_the_others_stay() -> None:
    table = Table(most=8)
    table.add(rows(range(6)) + rows(range(3, 5), value=50.0))
    assert all_of(table).means[LOSS].tolist() == [0, 1, 2, 50, 50, 5]
    table.add(rows(range(8, 16)))
    table.add(rows(range(12, 14), value=70.0))
    assert all_of(table).means[LOSS].tolist()[-2:] == [70, 14.5]
