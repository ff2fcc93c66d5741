"""What a run is to its users: its states and which may follow which, how it stands, its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class RunState(StrEnum):
    """`protos/trimaran/v1/run.proto` says what each means."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    UNKNOWN = "unknown"
    """Sent by a manager that is newer than this client."""

    @property
    def has_ended(self) -> bool:
        return self in ENDED

    @property
    def has_processes(self) -> bool:
        """Or may have: a launcher answers for the run, and devices are its own."""
        return self in ACTIVE


TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    before: frozenset(map(RunState, after.split()))
    for before, after in {
        RunState.QUEUED: "starting paused cancelled failed",
        # queued again: the devices were lost, or the manager could not start a launcher.
        RunState.STARTING: "running queued pausing cancelling succeeded failed",
        # starting again: a process without which the run cannot go on died.
        RunState.RUNNING: "starting queued pausing cancelling succeeded failed",
        # succeeded: the step under way was the last one.
        RunState.PAUSING: "paused cancelling succeeded failed",
        RunState.PAUSED: "queued cancelled",
        RunState.CANCELLING: "cancelled succeeded failed",
        RunState.CANCELLED: "queued",
        RunState.FAILED: "queued",
        RunState.SUCCEEDED: "",
    }.items()
}
"""The one table: state -> the states that may follow it. Whatever else is asked for is refused."""

ENDED = frozenset((RunState.CANCELLED, RunState.FAILED, RunState.SUCCEEDED))
ACTIVE = frozenset((RunState.STARTING, RunState.RUNNING, RunState.PAUSING, RunState.CANCELLING))


class Goal(StrEnum):
    """What a controller works towards.

    Example: Goal("pause") is Goal.PAUSE
    """

    RUN = "run"
    """Train to the last step."""
    PAUSE = "pause"
    """End after the step under way, with a checkpoint."""
    CANCEL = "cancel"
    """End once the batch that trains is live, with a checkpoint, a summary and the model."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many rollout replicas a run may have, and how many it has been given.

    Example: Replicas(min=2, max=8, granted=3)
    """

    min: int = 0
    max: int = 0
    granted: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """The state of a run.

    Example: `Run("addition-1", RunState.RUNNING, step=7, num_steps=20)`
    """

    run_id: str
    state: RunState
    step: int
    """The last one that is done."""
    num_steps: int
    error: str = ""
    """Why it failed."""
    name: str = ""
    """In its configuration."""
    owner: str = ""
    priority: int = 0
    """Higher ones start first."""
    created_at: float = 0.0
    """Unix seconds, as the two below; 0 while it has not come to that."""
    started_at: float = 0.0
    ended_at: float = 0.0
    remedy: str = ""
    """What to do about the error."""
    held: str = ""
    """Why a running run does not go on at the moment; it does by itself once the cause is gone."""
    waiting_for: str = ""
    """Why a queued run waits."""
    replicas: Replicas = Replicas()
    folder: str = ""
    starts: int = 0
    """How often its processes were started."""
    reward: float | None = None
    """The mean reward of the last trained step; None before the first one."""
    held_out: float | None = None
    """The mean reward of the greedy answers in the last validation; None before the first one."""
    devices: int = 0
    """How many accelerators it holds at the moment; none on a CPU."""
    ends_at: float = 0.0
    """When its last step may be done, in unix seconds: an estimate, 0 while there is none."""

    doing: str = ""
    """What takes long at the moment, and how far it is; empty while the run just steps."""

    def seconds_left(self, now: float) -> float | None:
        """Until the estimated end; None where there is no estimate, or its time has come."""
        is_on_its_way = self.state is RunState.RUNNING and now < self.ends_at
        return self.ends_at - now if is_on_its_way else None


class EventKind(StrEnum):
    """What happened in a run. `protos/trimaran/v1/run.proto` says what each event carries."""

    STATE = "state"
    STEP = "step"
    VALIDATION = "validation"
    SKIPPED = "skipped"
    REPLICA_LOST = "replica_lost"
    REPLICA_BACK = "replica_back"
    HELD = "held"
    RELEASED = "released"
    INDIGESTIBLE = "indigestible"
    NONFINITE = "nonfinite"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_FAILED = "checkpoint_failed"
    FINISHED = "finished"
    PROCESS = "process"
    MISSED = "missed"
    TAINTED = "tainted"
    UNKNOWN = "unknown"
    """Sent by a service that is newer than this client."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run, and the run as it was then.

    Example:
        async for event in client.watch_run("addition-1"):
            if event.kind is EventKind.STEP:
                print(event.run.step, event.values)
    """

    sequence: int
    """Counts the run's events from 1."""
    kind: EventKind
    run: Run
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    text: str = ""
    time: float = 0.0
    """Unix seconds."""
    root: str = ""
    """The root of the weights that a checkpoint event saved."""


def metric_rows(events: Iterable[RunEvent]) -> list[dict[str, Any]]:
    """A row for each step and each validation: `kind`, `step`, `time` (unix seconds) and its metrics.

    A step that was trained again after a resume has one row, the later one.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for event in events:
        if event.kind in (EventKind.STEP, EventKind.VALIDATION):
            kind, step = event.kind.value, event.run.step
            row = {"kind": kind, "step": step, "time": event.time}
            rows[kind, step] = row | dict(event.values)
    return list(rows.values())


def run_to_tree(run: Run) -> dict[str, Any]:
    """As it stands in a store. `run_from_tree` reads it back."""
    return asdict(run)


def run_from_tree(tree: Mapping[str, Any]) -> Run:
    """What `run_to_tree` made, also of an earlier version, which had fewer fields."""
    known: dict[str, Any] = {name: tree[name] for name in Run.__slots__ if name in tree}
    known["state"] = RunState(tree["state"])
    known["replicas"] = Replicas(**tree.get("replicas", {}))
    return Run(**known)


def run_key(run_id: str) -> str:
    """Store record of the run as its processes report it, as `run_to_tree` writes it."""
    return f"run/{run_id}"


def config_key(run_id: str) -> str:
    """Store record of the run's resolved configuration, as `trimaran.config.config_to_tree` makes it:
    what its services read who have no file of it."""
    return f"config/{run_id}"


def endpoints_key(run_id: str) -> str:
    """Store record {"controller": "127.0.0.1:20001", "rollout-0": ...}: who listens where."""
    return f"endpoints/{run_id}"


def restarts_key(run_id: str) -> str:
    """Store record {"rollout-0": 2}: how often the run's launcher has started each process again."""
    return f"restarts/{run_id}"


def service_key(run_id: str, name: str = "") -> str:
    """Store record of a service that has registered, as `commands.launch.joining.service_records` writes it;
    without a name the prefix of all of them."""
    return f"service/{run_id}/{name}"


def stop_key(run_id: str, name: str) -> str:
    """Store record {"incarnation": "..."}: which life of the service shall end, in order."""
    return f"stop/{run_id}/{name}"


def call_key(run_id: str = "") -> str:
    """Record {"since": 1763.5} in a manager's store: the run needs services that a container engine starts;
    without an id the prefix of all of them."""
    return f"call/{run_id}"


def replicas_key(run_id: str) -> str:
    """Store record {"wanted": 3, "devices": {"2": ["4", "5"]}}: what the launcher follows.

    `devices`: by index; an empty list on a CPU. Where it is given, these are the replicas that the
    run shall have; without it the highest index goes first, and the next free one comes.
    """
    return f"replicas/{run_id}"


def overdue_key(run_id: str) -> str:
    """Store record {"rollout-0": "no answer within 30 s"}: replicas that have not left their devices to
    the trainer when they were last asked to (`run.pools: colocated`). The launcher ends them."""
    return f"overdue/{run_id}"


def ray_key(run_id: str) -> str:
    """Store record {"mark": "9f86d081"}: what tells this run on a Ray cluster from one of another store
    that has the same id."""
    return f"ray/{run_id}"


def checkpoint_key(run_id: str, step: int | None = None) -> str:
    """Store record {"path": "...", "root": "5f0c...", "saved_at": 1763.5} of a checkpoint that was saved, kept or
    removed since; without a step the prefix of all of them. Unlike its event it stays as long as the run."""
    return f"checkpoint/{run_id}/{'' if step is None else f'{step:010}'}"


def launcher_lease(run_id: str) -> str:
    """Store lease of the one launcher that a run has."""
    return f"launcher/{run_id}"


def goal_key(run_id: str) -> str:
    """Store record {"goal": "pause"}: what a controller that starts reads."""
    return f"goal/{run_id}"


def events_stream(run_id: str) -> str:
    """Store stream of the run's events, as `event_to_tree` writes them."""
    return f"events/{run_id}"


def event_to_tree(event: RunEvent) -> dict[str, Any]:
    """As it stands in the stream, whose sequence numbers are the events'."""
    tree = {
        "kind": event.kind.value,
        "run": run_to_tree(event.run),
        "values": dict(event.values),
        "text": event.text,
        "time": event.time,
    }
    return tree | {"root": event.root} if event.root else tree


def event_from_tree(sequence: int, tree: Mapping[str, Any]) -> RunEvent:
    """What `event_to_tree` made."""
    kind = tree["kind"] if tree["kind"] in set(EventKind) else EventKind.UNKNOWN
    run, root = run_from_tree(tree["run"]), tree.get("root", "")
    return RunEvent(
        sequence, EventKind(kind), run, tree["values"], tree["text"], tree["time"], root
    )
