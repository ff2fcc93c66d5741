"""Waiting in a pipeline, against a schedule that is played through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trimaran.model.memory.test_model import ATTENTION, FACTS, MLP, TOWER
from trimaran.config.parallel import ParallelLayout
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.stages import FORWARD, stage_costs, update_time, waits

LAYER = ATTENTION + MLP


def play(costs: list[float], micro_batches: int) -> float:
    """When 1F1B ends, where a stage begins each pass as soon as it can."""
    last = len(costs) - 1
    done: dict[tuple[int, str, int], float] = {}
    free, next_pass = [0.0] * len(costs), [0] * len(costs)

    def passes(stage: int) -> list[tuple[str, int]]:
        """Forward passes for each stage behind this one first, then in turns with backward ones."""
        ahead = min(last - stage, micro_batches)
        order = [("F", number) for number in range(ahead)]
        for number in range(micro_batches):
            order += [("F", number + ahead)] if number + ahead < micro_batches else []
            order.append(("B", number))
        return order

    orders = [passes(stage) for stage in range(len(costs))]
    while any(next_pass[stage] < len(order) for stage, order in enumerate(orders)):
        for stage, order in enumerate(orders):
            while next_pass[stage] < len(order):
                kind, number = order[next_pass[stage]]
                before = stage - 1 if kind == "F" else stage + 1
                if 0 <= before <= last and (before, kind, number) not in done:
                    break
                begin = max(free[stage], done.get((before, kind, number), 0.0))
                takes = costs[stage] * (FORWARD if kind == "F" else 1 - FORWARD)
                free[stage] = done[stage, kind, number] = begin + takes
                next_pass[stage] += 1
    return max(free)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=5), st.integers(1, 9))
def test_no_schedule_takes_longer(costs: list[float], micro_batches: int) -> None:
    foretold = update_time(costs, micro_batches)
    assert play(costs, micro_batches) <= foretold * (1 + 1e-9)
    # The slowest stage behind the others, or all alike: to the end.
    assert play(sorted(costs), micro_batches) == pytest.approx(foretold)
    alike = [costs[0]] * len(costs)
    assert play(alike, micro_batches) == pytest.approx(update_time(alike, micro_batches))


def test_equal_stages_wait_for_each_other_alone() -> None:
    assert waits((2.0, 2.0), micro_batches=9) == pytest.approx((0.1, 0.1))
    assert waits((1.0,) * 4, micro_batches=1) == pytest.approx((0.75,) * 4)
    # Half as long with two stages a rank.
    assert update_time((1.0, 1.0), 4, virtual_stages=2) == 4.5
    assert waits((5.0,), micro_batches=3) == (0.0,)


def test_costs_by_hand() -> None:
    """The tower is whole on each rank; heads and layers are not."""
    model = ModelSizes(replace(FACTS, family="qwen2_5_vl", vision=TOWER))
    tower = 4 * 2 * (4 * (4 * 4 + 3 * 6))
    layout = ParallelLayout(tensor=2, pipeline=2, context=1, data=3, layers=(1, 3))
    found = stage_costs(model, layout, images=0.25, trained=0.5)
    assert found == (LAYER / 2 + tower / 4, 3 * LAYER / 2 + 0.5 * 11 * 8 / 2)
    frozen = stage_costs(model, layout, 0.25, 0.5, freeze=("visual.*",))
    assert frozen == pytest.approx((LAYER / 2 + tower / 12, found[1]))
    alone = stage_costs(model, replace(layout, layers=(0, 4)), 1.0, 0.0)
    assert alone == (tower, 4 * LAYER / 2)
    plain = stage_costs(ModelSizes(FACTS), ParallelLayout(pipeline=2), 0.5, 0.0)
    assert plain == (2 * LAYER, 2 * LAYER)
