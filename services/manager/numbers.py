"""What the manager tells Prometheus of itself."""

from __future__ import annotations

import time
from collections import Counter

from services.manager.manager import Manager
from trimaran.run.runs import RunState
from trimaran.telemetry.exposition import Exposition
from trimaran.telemetry.series import MANAGER_DEVICES, MANAGER_RUNS, MANAGER_WAIT


def show(metrics: Exposition, manager: Manager) -> None:
    metrics.show(MANAGER_RUNS, lambda: count_runs(manager))
    metrics.show(MANAGER_DEVICES, lambda: count_devices(manager))
    metrics.show(MANAGER_WAIT, lambda: longest_wait(manager, time.time()))


def count_runs(manager: Manager) -> dict[str, float]:
    """The number of runs by state."""
    counts = Counter(run.state for run in manager.records.all() if not run.is_deleted)
    return {state.value: counts[state] for state in RunState if state is not RunState.UNKNOWN}


def longest_wait(manager: Manager, now: float) -> float:
    """Seconds; `now` in unix seconds."""
    queued = (run for run in manager.records.all() if run.state is RunState.QUEUED)
    return max((now - run.queued_at for run in queued if not run.is_deleted), default=0.0)


def count_devices(manager: Manager) -> dict[tuple[str, ...], float]:
    """The number of devices by pool, and by whether a run has them."""
    used = Counter(
        device.pool
        for run in manager.records.all()
        if run.state.has_processes
        for device in run.grant.devices
    )
    return {
        (pool.name, state): count
        for pool in manager.pools
        for state, count in (
            ("used", used[pool.name]),
            ("free", len(pool.devices) - used[pool.name]),
        )
    }
