"""The simulation of `make bench-control ONLY=idle`: its stand-ins follow what the loop calls."""

from __future__ import annotations

from pathlib import Path

from benchmarks.control.idle import measure_idle


def test_no_order_is_simulated_to_wait_less_than_its_bound(tmp_path: Path):
    rows, _ = measure_idle(tmp_path, quick=True)
    value = {row.name: row.value for row in rows}
    for max_lag in (0, 1):
        name = f"lag_{max_lag}_step_1_of_a_group"
        assert value[f"{name}_analytic_bound"] <= value[f"{name}_idle"] < 1
    assert value["lag_1_step_1_of_a_group_idle"] < value["lag_0_step_1_of_a_group_idle"]
