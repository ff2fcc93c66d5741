"""What the manager knows of each run, and its store, to which only the living manager writes.

The manager holds a lease. Each of its writes is fenced with the lease's epoch: once another manager
has taken over, the store refuses them, and who is refused ends. So there is one writer, and what it
keeps in memory is what stands in the store. Within it a run is changed by one task at a time, from
the state that the task has read (`Records.change`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from services.manager.scheduling.pools import NO_GRANT, DeviceRequest, Grant, Need
from trimaran.errors import NotFoundError, StateError, UnavailableError
from trimaran.host.call_waits import locked
from trimaran.run.runs import TRANSITIONS, Goal, Replicas, Run, RunState
from trimaran.store import Lease, Store, records

logger = logging.getLogger(__name__)

LEASE = "manager"
STORE = "the manager's store, for which an earlier change of the run waits,"
ASKED = (
    RunState.QUEUED,
    RunState.PAUSING,
    RunState.PAUSED,
    RunState.CANCELLING,
    RunState.CANCELLED,
)
"""States that only clients bring a run to, at once or by way of another of them."""


@dataclass(frozen=True, slots=True)
class Managed:
    """A run as its manager sees it."""

    run_id: str
    name: str
    owner: str
    request_id: str
    priority: int
    created_at: float
    folder: str
    store_url: str
    """The URL of the run's own store."""
    config: Mapping[str, Any]
    """Its specification, whole: what `parse_config` takes."""
    num_steps: int
    trainer: Need
    replica: Need
    min_replicas: int
    max_replicas: int
    queued_at: float
    state: RunState = RunState.QUEUED
    goal: Goal = Goal.RUN
    grant: Grant = NO_GRANT
    leaving: frozenset[int] = frozenset()
    starts: int = 0
    """How often a launcher was started."""
    deaths: int = 0
    """Deaths of its launcher in a row."""
    start_at: float = 0.0
    """Unix seconds before which no launcher is started again."""
    launched_at: float = 0.0
    """When the last one was started."""
    seen: int = 0
    """Version of the run's own record before this start: older ones say nothing about it."""
    step: int = 0
    reward: float | None = None
    held_out: float | None = None
    ends_at: float = 0.0
    error: str = ""
    remedy: str = ""
    held: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    asked: str = ""
    """A digest of the request that made it, by which a repetition is known; empty where an earlier
    version has made it, and any repetition is taken for the same."""
    asked_by: str = ""
    """The client that has created, paused, resumed or cancelled it last."""
    is_deleted: bool = False
    """DeleteRun came: what is left of it is being removed."""
    # Both change often, and neither is written for its own sake.
    waiting_for: str = field(default="", compare=False)
    doing: str = field(default="", compare=False)

    def go(self, state: RunState, **changes: Any) -> Managed:
        """In another state. Raises StateError where the table does not allow it."""
        if state is not self.state and state not in TRANSITIONS[self.state]:
            known = sorted(TRANSITIONS[self.state])
            only = f"it may become {', '.join(known)}" if known else "it has ended for good"
            raise StateError(
                f"run {self.run_id}: is {self.state} and cannot be {state} next; {only}"
            )
        return replace(self, state=state, **changes)

    def without_folder(self, text: str) -> str:
        """For clients: paths in its folder as they stand there. Where that lies is `Run.folder` and
        helps only on this machine."""
        return text.replace(f"{self.folder}/", "")

    @property
    def words(self) -> str:
        """Who has asked for the state that it is in; empty where no client has."""
        return f"by {self.asked_by}" if self.asked_by and self.state in ASKED else ""

    @property
    def ask(self) -> DeviceRequest:
        return DeviceRequest(
            self.run_id,
            self.owner,
            self.priority,
            self.queued_at,
            self.trainer,
            self.replica,
            self.min_replicas,
            self.max_replicas,
        )

    @property
    def view(self) -> Run:
        """The run as clients see it."""
        own: dict[str, Any] = {name: getattr(self, name, None) for name in Run.__slots__}
        own["replicas"] = Replicas(self.min_replicas, self.max_replicas, len(self.grant.replicas))
        own["devices"] = self._num_accelerators
        if self.state is not RunState.QUEUED:
            own["waiting_for"] = ""
        if not self.state.has_processes:
            own["doing"] = ""
        return Run(**own)

    @property
    def _num_accelerators(self) -> int:
        num_trainer = len(self.grant.trainer)
        num_rollout = len(self.grant.devices) - num_trainer
        counts = ((self.trainer, num_trainer), (self.replica, num_rollout))
        return sum(number for need, number in counts if need.kind != "cpu")


_managed = TypeAdapter(Managed)


def to_tree(run: Managed) -> dict[str, Any]:
    return _managed.dump_python(run, mode="json")


def from_tree(tree: Mapping[str, Any]) -> Managed:
    """Also of an earlier version, which had fewer fields."""
    return _managed.validate_python(tree)


class Records:
    """Every run that the manager keeps, in memory and in its store.

    Example:
        records = await Records.load(store, lease)
        await records.change("demo-1", lambda run: run.go(RunState.PAUSED))
    """

    def __init__(self, store: Store, lease: Lease) -> None:
        self.store, self._epoch = store, lease.epoch
        self._runs: dict[str, Managed] = {}
        self._requests: dict[str, str] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._unsure: set[str] = set()
        """Runs of which a write was not answered: the store may have it or not."""
        self._removals: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.changed = asyncio.Event()
        """Set at each change; who waits for it clears it."""

    @classmethod
    async def load(cls, store: Store, lease: Lease) -> Records:
        loaded = cls(store, lease)
        async for _, record in records(store, "managed/"):
            loaded._keep(from_tree(record.value))
        return loaded

    def get(self, run_id: str) -> Managed:
        """Raises NotFoundError."""
        run = self._runs.get(run_id)
        if run is None or run.is_deleted:
            raise NotFoundError(
                f"run {run_id!r}: there is none; `trimaran list` names those that are"
            )
        return run

    def all(self) -> list[Managed]:
        return list(self._runs.values())

    async def find_request(self, owner: str, request_id: str) -> Managed | None:
        """The run that the owner has asked for by this id."""
        run_id = self._requests.get(request_key(owner, request_id))
        if run_id is None:
            return None
        async with locked(self._locks[run_id], STORE):
            await self._make_sure(run_id)
            return self._runs.get(run_id)

    async def add(self, run: Managed) -> None:
        """Raises StaleEpochError when another manager has taken over, as `change` does."""
        async with self._locks[run.run_id]:
            assert run.run_id not in self._runs
            self._keep(run)
            try:
                await self._write(run)
            except UnavailableError:
                raise
            except BaseException:
                self._forget(run.run_id)
                raise
        logger.info("run %s: %s %s", run.run_id, run.state, run.words)

    async def change(self, run_id: str, make: Callable[[Managed], Managed]) -> Managed:
        """Durable when it returns. `make` is given the run as it is now; what it raises rises."""
        async with locked(self._locks[run_id], STORE):
            await self._make_sure(run_id)
            before = self.get(run_id)
            after = make(before)
            if after != before:
                await self._write(after)
                _log_state(before.state, after)
            elif after is not before:
                self._keep(after)  # it only says why it waits
            return after

    async def remove(self, run_id: str) -> None:
        """Forgets a run whose deletion is done."""
        async with self._locks[run_id]:
            await self.check()
            await self.store.delete(f"managed/{run_id}")
            self._forget(run_id)
        del self._locks[run_id]
        self._removals.pop(run_id, asyncio.Event()).set()

    async def wait_until_removed(self, run_id: str, timeout: float) -> None:
        """Raises TimeoutError."""
        if run_id in self._runs:
            async with asyncio.timeout(timeout):
                await self._removals[run_id].wait()

    async def check(self) -> None:
        """Raises StaleEpochError when another manager has taken over."""
        await self.store.put_fenced({}, LEASE, self._epoch)

    async def _write(self, run: Managed) -> None:
        self._unsure.add(run.run_id)
        await self.store.put_fenced({f"managed/{run.run_id}": to_tree(run)}, LEASE, self._epoch)
        self._unsure.discard(run.run_id)
        self._keep(run)
        self.changed.set()

    async def _make_sure(self, run_id: str) -> None:
        if run_id not in self._unsure:
            return
        record = await self.store.get(f"managed/{run_id}")
        if record is None:
            self._forget(run_id)
        else:
            self._keep(from_tree(record.value))
        self._unsure.discard(run_id)

    def _keep(self, run: Managed) -> None:
        self._runs[run.run_id] = run
        if run.request_id:
            self._requests[request_key(run.owner, run.request_id)] = run.run_id

    def _forget(self, run_id: str) -> None:
        """Nothing where it is forgotten: who made it, and was refused, may have come first."""
        if run := self._runs.pop(run_id, None):
            self._requests.pop(request_key(run.owner, run.request_id), None)


def _log_state(before: RunState, run: Managed) -> None:
    if run.state is before:
        return
    level = logging.WARNING if run.state is RunState.FAILED else logging.INFO
    words = [f"was {before}", *filter(None, (run.words, run.error))]
    logger.log(level, "run %s: %s; %s", run.run_id, run.state, "; ".join(words))


def request_key(owner: str, request_id: str) -> str:
    return json.dumps([owner, request_id])
