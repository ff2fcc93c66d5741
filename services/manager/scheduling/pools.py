"""Pools of devices, what a run asks of them, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trimaran.host.device import Kind

Counts = dict[str, int]
"""Pool -> devices."""


class PoolDevice(NamedTuple):
    """Example: PoolDevice("h100", "3"); on a CPU the name is that of a slot. PoolDevice("10.0.0.7-npu",
    "10.0.0.7/3") is one of a host's eight, and Ray says which."""

    pool: str
    name: str

    @property
    def is_numbered(self) -> bool:
        """Its name says which one it is."""
        return "/" not in self.name or self.name.startswith("MIG-")


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one kind that reach each other as fast as those of one host.

    Example: Pool("h100", "cuda", ("0", "1", "2", "3"), {"memory": "80"})
    """

    name: str
    kind: Kind
    devices: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Need:
    """Example: Need("cuda", 2, {"memory": "80"})"""

    kind: Kind
    count: int
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    hosts: int = 1
    """Hosts of a replica: it has `count / hosts` devices on each, which may be in pools of their own."""

    def matches(self, pool: Pool) -> bool:
        return self.kind == pool.kind and self.labels.items() <= pool.labels.items()


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What a run needs to start (its trainer and `min_replicas`), and what else it can use.

    Example: DeviceRequest("demo-1", "ann", 0, 0.0, Need("cuda", 4), Need("cuda", 2), 2, 8)
    """

    run_id: str
    owner: str
    priority: int
    queued_at: float
    """Unix seconds."""
    trainer: Need
    """All ranks, or the run does not start. They may stand in several pools. None where the trainer has
    the replicas' devices, in turns."""
    replica: Need
    """The need of one replica; its devices on one host are in one pool."""
    min_replicas: int
    max_replicas: int

    @property
    def num_devices(self) -> int:
        """To start."""
        return self.trainer.count + self.min_replicas * self.replica.count

    @property
    def described(self) -> str:
        """Example: "4 cuda for the trainer, 2 x 2 cuda for replicas"."""
        replicas = f"{self.min_replicas} x {self.replica.count} {self.replica.kind} for replicas"
        if not self.trainer.count:
            return f"{replicas} and trainer in turns"
        return f"{self.trainer.count} {self.trainer.kind} for the trainer, {replicas}"


@dataclass(frozen=True, slots=True)
class Grant:
    """The devices that a run has.

    Example: Grant((PoolDevice("h100", "0"),), {0: (PoolDevice("h100", "1"),)})
    """

    trainer: tuple[PoolDevice, ...] = ()
    """None of its own where it has the replicas', in turns."""
    replicas: Mapping[int, tuple[PoolDevice, ...]] = field(
        default_factory=dict[int, tuple[PoolDevice, ...]]
    )
    """By the replica's index."""

    @property
    def devices(self) -> tuple[PoolDevice, ...]:
        return self.trainer + tuple(d for devices in self.replicas.values() for d in devices)


NO_GRANT = Grant()


@dataclass(frozen=True, slots=True)
class Fit:
    """How many devices of which pools a run would have."""

    trainer: Counts
    replicas: tuple[Counts, ...]
    """The counts of each replica."""

    @property
    def counts(self) -> Counts:
        total = dict(self.trainer)
        for replica in self.replicas:
            for pool, count in replica.items():
                total[pool] = total.get(pool, 0) + count
        return total


def find_fit(ask: DeviceRequest, pools: Mapping[str, Pool], free: Mapping[str, int]) -> Fit | None:
    """Where the run could start with `free` devices; None where it could not.

    The trainer is placed first, in as few pools as possible. Each replica then takes the pool
    that it leaves the fewest devices idle in. Where both take turns, the replicas' devices are the
    trainer's, and so all of them are in one pool where that has room.
    """
    left = dict(free)
    if not ask.trainer.count:
        whole = replace(ask.replica, count=ask.num_devices)
        if pool := tightest(whole, pools, left):
            return Fit({}, ({pool: ask.replica.count},) * ask.min_replicas)
    trainer = spread(ask.trainer, pools, left)
    if trainer is None:
        return None
    replicas: list[Counts] = []
    for _ in range(ask.min_replicas):
        found = place_replica(ask.replica, pools, left)
        if found is None:
            return None
        for pool, count in found.items():
            left[pool] -= count
        replicas.append(found)
    return Fit(trainer, tuple(replicas))


def place_replica(need: Need, pools: Mapping[str, Pool], free: Mapping[str, int]) -> Counts | None:
    """In one pool, or else its hosts' shares in as few pools as possible; None without room."""
    pool = tightest(need, pools, free)
    if pool is not None:
        return {pool: need.count}
    share, missing = need.count // need.hosts, need.hosts
    rooms = {name: free[name] // share for name in free if need.matches(pools[name])}
    if need.hosts == 1 or sum(rooms.values()) < missing:
        return None
    taken: Counts = {}
    for name in sorted(rooms, key=lambda name: (-rooms[name], name)):
        if here := min(rooms[name], missing):
            taken[name] = here * share
            missing -= here
    return taken


def tightest(need: Need, pools: Mapping[str, Pool], free: Mapping[str, int]) -> str | None:
    """The pool that has room for all of `need` and least room besides."""
    best, least = None, 0
    for name, count in free.items():
        if count >= need.count and (best is None or count < least) and need.matches(pools[name]):
            best, least = name, count
    return best


def spread(need: Need, pools: Mapping[str, Pool], left: Counts) -> Counts | None:
    """Takes the devices out of `left`."""
    pool = tightest(need, pools, left)
    if pool is not None:
        left[pool] -= need.count
        return {pool: need.count}
    matching = [name for name, count in left.items() if count and need.matches(pools[name])]
    if sum(left[name] for name in matching) < need.count:
        return None
    taken: Counts = {}
    missing = need.count
    for name in sorted(matching, key=lambda name: (-left[name], name)):
        taken[name] = min(left[name], missing)
        left[name] -= taken[name]
        missing -= taken[name]
        if not missing:
            break
    return taken
