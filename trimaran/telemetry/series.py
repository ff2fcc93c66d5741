"""What each process counts and measures for Prometheus, declared once: name, kind, labels, meaning.

docs/metrics.md has the table. Every process has those of `rpc`, and what Prometheus' client reports of
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
STORE_SECONDS = Series(
    "store",
    "duration_seconds",
    "histogram",
    "how long calls of the store took that manager and controller made",
    ("call",),
)
MANAGER_RUNS = Series(
    "manager", "runs", "gauge", "runs; those of state queued are the queue", ("state",)
)
MANAGER_DEVICES = Series(
    "manager", "devices", "gauge", "devices, or slots of a CPU, used or free", ("pool", "state")
)
MANAGER_WAIT = Series(
    "manager",
    "queue_wait_seconds",
    "gauge",
    "how long the queued run has waited that waits the longest; 0 where none does",
)
CONTROLLER_STEP = Series("controller", "step", "gauge", "last step that is done")
CONTROLLER_STEPS = Series("controller", "wanted_steps", "gauge", "step after which the run is done")
CONTROLLER_PROGRESS = Series(
    "controller",
    "progress_time_seconds",
    "gauge",
    "when a step or a validation was last done, or a hold was over, or else the controller began;"
    " unix seconds",
)
CONTROLLER_HELD = Series(
    "controller", "held", "gauge", "1 while the run does not go on, and goes on by itself later"
)
CONTROLLER_GROUPS = Series(
    "controller", "groups", "gauge", "groups that are not trained yet, by stage", ("stage",)
)
CONTROLLER_DISK = Series(
    "controller", "disk_free_bytes", "gauge", "room on the disk of the run folder"
)
ROLLOUT_RUNNING = Series(
    "rollout", "running_completions", "gauge", "completions that the engine decodes or has waiting"
)
ROLLOUT_TOKENS = Series("rollout", "tokens_total", "counter", "tokens generated")
ROLLOUT_PAUSE = Series(
    "rollout", "pause_seconds", "gauge", "pause of generation in its last switch to a new version"
)
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
ENVIRONMENT_EPISODES = Series("environment", "episodes", "gauge", "episodes that are open")
ENVIRONMENT_PROCESSES = Series(
    "environment",
    "processes",
    "gauge",
    "processes in which the run's own code plays, busy or idle",
    ("state",),
)
TRAINER_STEP = Series("trainer", "step", "gauge", "step of the weights that this rank holds")
SYNC_STEP = Series("weight_sync", "live_step", "gauge", "step of the live version")
SYNC_LINEAGE = Series("weight_sync", "live_lineage", "gauge", "lineage of the live version")
SYNC_ROUTABLE = Series(
    "weight_sync", "routable_replicas", "gauge", "replicas that may make tokens now"
)
SYNC_UNROUTABLE = Series(
    "weight_sync",
    "unroutable_replicas",
    "gauge",
    "registered replicas that may not make tokens now, by whether they have a fault or are only"
    " about to take a version",
    ("state",),
)
SYNC_PAUSE = Series(
    "weight_sync",
    "pause_seconds",
    "gauge",
    "longest pause of generation in the last switch to a new version",
)
