"""What each process counts and measures for Prometheus, declared once: name, kind, labels, meaning.

docs/metrics.md has the table. Every process has those of `rpc`, and what Prometheus' client tells of
a process (`process_resident_memory_bytes` and its like). `run` and `process` are labels that the
manager's list of targets adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Series:
    """One row of the table.

    Example: Series("rollout", "tokens_total", "counter", "tokens generated")
    """

    process: str
    """Which kind of process has it; `rpc`: all."""
    what: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"trimaran_{self.process}_{self.what}"


RPC_CALLS = Series(
    "rpc", "calls_total", "counter", "calls that ended, by gRPC's status code", ("method", "code")
)
RPC_SECONDS = Series(
    "rpc", "duration_seconds", "histogram", "how long calls took, streams included", ("method",)
)
RPC_OPEN = Series("rpc", "open_calls", "gauge", "calls under way", ("method",))
MANAGER_RUNS = Series(
    "manager", "runs", "gauge", "runs; those of state queued are the queue", ("state",)
)
MANAGER_DEVICES = Series(
    "manager", "devices", "gauge", "devices, or slots of a CPU, used or free", ("pool", "state")
)
CONTROLLER_STEP = Series("controller", "step", "gauge", "last step that is done")
CONTROLLER_STEPS = Series("controller", "wanted_steps", "gauge", "step after which the run is done")
CONTROLLER_HELD = Series(
    "controller", "held", "gauge", "1 while the run does not go on, and goes on by itself later"
)
CONTROLLER_GROUPS = Series(
    "controller", "groups", "gauge", "groups that are not trained yet, by stage", ("stage",)
)
ROLLOUT_RUNNING = Series(
    "rollout", "running_completions", "gauge", "completions that the engine decodes or has waiting"
)
ROLLOUT_TOKENS = Series("rollout", "tokens_total", "counter", "tokens generated")
REWARD_QUEUE = Series(
    "reward", "queued_batches", "gauge", "calls of rules and functions that wait for a worker"
)
REWARD_WORKERS = Series(
    "reward",
    "workers",
    "gauge",
    "worker processes for rules and functions, busy or idle",
    ("state",),
)
TRAINER_STEP = Series("trainer", "step", "gauge", "step of the weights that this rank holds")
SYNC_STEP = Series("weight_sync", "live_step", "gauge", "step of the live version")
SYNC_LINEAGE = Series("weight_sync", "live_lineage", "gauge", "lineage of the live version")
SYNC_ROUTABLE = Series(
    "weight_sync", "routable_replicas", "gauge", "replicas that may make tokens now"
)
SYNC_PAUSE = Series(
    "weight_sync",
    "pause_seconds",
    "gauge",
    "longest pause of generation in the last switch to a new version",
)

SERIES = (
    *(RPC_CALLS, RPC_SECONDS, RPC_OPEN),
    *(MANAGER_RUNS, MANAGER_DEVICES),
    *(CONTROLLER_STEP, CONTROLLER_STEPS, CONTROLLER_HELD, CONTROLLER_GROUPS),
    *(ROLLOUT_RUNNING, ROLLOUT_TOKENS),
    *(REWARD_QUEUE, REWARD_WORKERS),
    TRAINER_STEP,
    *(SYNC_STEP, SYNC_LINEAGE, SYNC_ROUTABLE, SYNC_PAUSE),
)
