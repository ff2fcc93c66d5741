"""Which run starts, grows or gives back, and with which devices. Pure: data in, decisions out.

The queue's order: priority, which grows by one for each `aging_seconds` of waiting; then fair share,
the owner first who has the fewest devices for its weight; then age. A run that does not fit lets
those behind it pass, for `patience_seconds`; from then on nothing behind it starts in the pools that
it could use, so that they fall free for it. Services that others start come in sets: a run needs one
of its own, besides devices.

Why none waits for ever: priorities are bounded, so from some time on every newer run stands behind
one that waits. Those before it are then finitely many, each of them starts and ends, and what they
free cannot go to a newer one. This needs runs that end, and runs that fit into the empty pools:
`find_fit` with all devices refuses the others when they are submitted.

Idle devices go to running runs as further replicas. They are taken back as soon as a queued run
could start with them. A device is free again only when its process is gone.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.manager.scheduling.pools import (
    Counts,
    DeviceRequest,
    Fit,
    Grant,
    Need,
    Pool,
    PoolDevice,
    find_fit,
    place_replica,
    spread,
)


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """Example: SchedulingPolicy(weights={"research": 3.0})"""

    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weights of owners in fair share; 1 for all others."""
    aging_seconds: float = 6 * 3600.0
    """Waiting for that long counts as much as one point of priority."""
    patience_seconds: float = 1800.0
    """For that long a run that does not fit lets others pass."""
    running: int = 0
    """Runs of one owner at a time; 0: as many as fit."""
    sets: int = 0
    """Runs of all owners at a time, where others start the services; 0: as many as fit."""


POLICY = SchedulingPolicy()


@dataclass(frozen=True, slots=True)
class DeviceHolding:
    """A run that has devices."""

    ask: DeviceRequest
    grant: Grant
    leaving: frozenset[int] = frozenset()
    """Replicas that are being drained; their devices are not free yet."""
    can_scale: bool = True
    """It is running: replicas may come and go."""

    @property
    def staying(self) -> list[int]:
        return sorted(index for index in self.grant.replicas if index not in self.leaving)


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to do now."""

    starts: Mapping[str, Grant]
    adds: Mapping[str, Mapping[int, tuple[PoolDevice, ...]]]
    """Run -> index of a further replica -> its devices."""
    takes: Mapping[str, frozenset[int]]
    """Run -> replicas to drain."""
    waits: Mapping[str, str]
    """Run -> why it stays in the queue."""
    moves: Mapping[str, Grant] = field(default_factory=dict[str, Grant])
    """Run -> what it has instead of devices that are gone."""


class Scheduler:
    """For the same pools at each plan, of which it remembers what could fit into them.

    Example: Scheduler(pools, SchedulingPolicy()).plan(holdings, queue, now=time.time()).starts
    """

    def __init__(
        self, pools: Sequence[Pool], policy: SchedulingPolicy = POLICY, has_hosts: bool = False
    ) -> None:
        """`has_hosts`: a pool that is missing is a host that is gone, so what runs have there is
        moved. Otherwise an operator has taken it out, and runs keep what they have."""
        self._pools = {pool.name: pool for pool in pools}
        self._policy, self._has_hosts = policy, has_hosts
        self._shapes: dict[object, _Shape] = {}

    def plan(
        self, holdings: Sequence[DeviceHolding], queue: Sequence[DeviceRequest], now: float
    ) -> Schedule:
        """Deterministic; `now` in Unix seconds, as `DeviceRequest.queued_at`."""
        found = _Round(self._pools, self._shape, holdings, now, self._policy)
        moves = found.moves() if self._has_hosts else {}
        return replace(found.run(queue), moves=moves)

    def _shape(self, ask: DeviceRequest) -> _Shape:
        key = _need_key(ask.trainer), _need_key(ask.replica), ask.min_replicas
        if (shape := self._shapes.get(key)) is None:
            sizes = {name: len(pool.devices) for name, pool in self._pools.items()}
            fits = find_fit(ask, self._pools, sizes) is not None
            usable = {n for n, p in self._pools.items() if _could_use(ask, p)}
            shape = self._shapes[key] = _Shape(ask, frozenset(usable), fits)
        return shape


_Turn = tuple[bool, int, float, int, float, str]
"""Whose turn it is to grow: the least one's."""


@dataclass(frozen=True, slots=True)
class _Extra:
    """A replica that may be taken back."""

    run_id: str
    index: int
    counts: Counts
    """Its devices."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What all runs have in common that ask for the same."""

    ask: DeviceRequest
    """One of theirs."""
    usable: frozenset[str]
    """Pools that they could use."""
    can_ever_fit: bool
    """Into the empty pools. An operator may have taken devices away since they were submitted; they
    block no other run."""


class _Round:
    def __init__(
        self,
        pools: Mapping[str, Pool],
        shape: Callable[[DeviceRequest], _Shape],
        holdings: Sequence[DeviceHolding],
        now: float,
        policy: SchedulingPolicy,
    ) -> None:
        self.pools, self.shape = pools, shape
        self.holdings = {holding.ask.run_id: holding for holding in holdings}
        self.now, self.policy = now, policy
        self.known = {PoolDevice(p.name, name) for p in pools.values() for name in p.devices}
        held = {device for holding in holdings for device in holding.grant.devices}
        self.free = {
            pool.name: [name for name in pool.devices if (pool.name, name) not in held]
            for pool in pools.values()
        }
        self.counts = {name: len(devices) for name, devices in self.free.items()}
        self.coming: Counts = dict.fromkeys(self.pools, 0)
        """Being drained, and not yet meant for anybody."""
        self.usage: defaultdict[str, int] = defaultdict(int)
        self.running: Counter[str] = Counter()
        """Runs by owner."""
        self.takes: defaultdict[str, set[int]] = defaultdict(set)
        for holding in holdings:
            self.usage[holding.ask.owner] += len(holding.grant.devices)
            self.running[holding.ask.owner] += 1
            for index in holding.leaving:
                self._expect(holding.grant.replicas.get(index, ()))

    def moves(self) -> dict[str, Grant]:
        """To be called before `run`."""
        return {run_id: grant for run_id in self.holdings if (grant := self._moved(run_id))}

    def run(self, queue: Sequence[DeviceRequest]) -> Schedule:
        self._take_surplus()
        starts: dict[str, Grant] = {}
        waits: dict[str, str] = {}
        hopeless: set[_Shape] = set()
        reasons: dict[_Shape, str] = {}
        waiting: list[tuple[str, _Shape]] = []
        closed: set[str] = set()
        extras = list(self._extras())
        for ask in self._in_order(queue):
            if why := self._full(ask.owner):
                waits[ask.run_id] = why
                continue
            shape = self.shape(ask)
            is_open = shape.can_ever_fit and shape not in hopeless
            if is_open and (fit := self._fit(ask, self.counts, closed)):
                starts[ask.run_id] = self._grant(fit)
                self.usage[ask.owner] += ask.num_devices
                self.running[ask.owner] += 1
                continue
            if is_open and self._take_for(ask, shape, extras, closed):
                waits[ask.run_id] = "replicas of other runs, which give their devices back"
            else:
                hopeless.add(shape)
                waiting.append((ask.run_id, shape))
            if shape.can_ever_fit and self.now - ask.queued_at >= self.policy.patience_seconds:
                closed |= shape.usable
        for run_id, shape in waiting:
            if shape not in reasons:
                reasons[shape] = self._reason(shape, closed)
            waits[run_id] = reasons[shape]
        adds = self._grow()
        takes = {run_id: frozenset(taken) for run_id, taken in self.takes.items() if taken}
        return Schedule(starts, adds, takes, waits)

    def _full(self, owner: str) -> str:
        """Why no further run of the owner starts, whatever devices are free; empty where one may."""
        running, sets = self.policy.running, self.policy.sets
        if 0 < running <= self.running[owner]:
            return f"another run of {owner} to end: {running} may run at a time"
        if 0 < sets <= self.running.total():
            return f"another run to end: the services serve {sets} at a time"
        return ""

    def _in_order(self, queue: Iterable[DeviceRequest]) -> Iterator[DeviceRequest]:
        """Fair share looks at what has been started meanwhile."""
        bands: defaultdict[int, defaultdict[str, list[DeviceRequest]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for ask in sorted(queue, key=lambda ask: (-ask.queued_at, ask.run_id)):
            waited = max(self.now - ask.queued_at, 0.0)
            band = ask.priority + int(waited / self.policy.aging_seconds)
            bands[band][ask.owner].append(ask)
        for band in sorted(bands, reverse=True):
            owners = bands[band]
            heap = [
                (self._share(owner), asks[-1].queued_at, owner) for owner, asks in owners.items()
            ]
            heapq.heapify(heap)
            while heap:
                _, _, owner = heapq.heappop(heap)
                yield owners[owner].pop()
                if asks := owners[owner]:
                    heapq.heappush(heap, (self._share(owner), asks[-1].queued_at, owner))

    def _share(self, owner: str) -> float:
        return self.usage[owner] / self.policy.weights.get(owner, 1.0)

    def _fit(self, ask: DeviceRequest, counts: Mapping[str, int], closed: set[str]) -> Fit | None:
        if ask.num_devices > sum(counts.values()):
            return None
        return find_fit(ask, self.pools, {n: c for n, c in counts.items() if c and n not in closed})

    def _grant(self, fit: Fit) -> Grant:
        trainer = self._pop_all(fit.trainer)
        replicas = {i: self._pop_all(counts) for i, counts in enumerate(fit.replicas)}
        return Grant(trainer, replicas)

    def _pop_all(self, counts: Mapping[str, int]) -> tuple[PoolDevice, ...]:
        return tuple(d for name, count in counts.items() for d in self._pop(name, count))

    def _pop(self, pool: str, count: int) -> tuple[PoolDevice, ...]:
        names = self.free[pool]
        taken, self.free[pool] = names[:count], names[count:]
        self.counts[pool] -= count
        return tuple(PoolDevice(pool, name) for name in taken)

    def _take_for(
        self, ask: DeviceRequest, shape: _Shape, extras: list[_Extra], closed: set[str]
    ) -> bool:
        """Reserves what falls free for the run, and takes back as much more as it needs; False
        where even all of it is too little."""
        soon = {name: count + self.coming[name] for name, count in self.counts.items()}
        fit = self._fit(ask, soon, closed)
        chosen: list[_Extra] = []
        if fit is None:
            open_pools = shape.usable - closed
            useful = [extra for extra in extras if not open_pools.isdisjoint(extra.counts)]
            missing = ask.num_devices - sum(soon.values())
            if sum(sum(extra.counts.values()) for extra in useful) < missing:
                return False
            for extra in useful:
                chosen.append(extra)
                for pool, count in extra.counts.items():
                    soon[pool] += count
                if fit := self._fit(ask, soon, closed):
                    break
            else:
                return False
        for extra in chosen:
            extras.remove(extra)
            self._take(extra.run_id, extra.index)
        self._reserve(fit)
        return True

    def _reserve(self, fit: Fit) -> None:
        for name, count in fit.counts.items():
            now = min(count, self.counts[name])
            self._pop(name, now)
            self.coming[name] -= count - now

    def _extras(self) -> Iterator[_Extra]:
        """Replicas above the least number, on devices that others may have. Least priority first."""
        order = sorted(
            (holding for holding in self.holdings.values() if holding.can_scale),
            key=lambda h: (h.ask.priority, -self._share(h.ask.owner), -h.ask.queued_at),
        )
        for holding in order:
            staying = [i for i in holding.staying if i not in self.takes[holding.ask.run_id]]
            for index in reversed(staying[holding.ask.min_replicas :]):
                devices = holding.grant.replicas[index]
                if self.known.issuperset(devices):
                    counts = Counter(device.pool for device in devices)
                    yield _Extra(holding.ask.run_id, index, counts)

    def _moved(self, run_id: str) -> Grant | None:
        """With free devices for those whose pool is gone: a host that went down, or leaves. Replicas
        for which there are none are given up; a trainer waits for them."""
        holding = self.holdings[run_id]
        lost = [d for d in holding.grant.trainer if d.pool not in self.pools]
        trainer, need = holding.grant.trainer, holding.ask.trainer
        wanted = replace(need, count=len(lost))
        found = spread(wanted, self.pools, dict(self.counts)) if lost else None
        if found:
            trainer = (*(d for d in trainer if d not in lost), *self._pop_all(found))
        replicas = dict(holding.grant.replicas)
        for index in holding.staying:
            if any(d.pool not in self.pools for d in replicas[index]):
                place = place_replica(holding.ask.replica, self.pools, self.counts)
                if place is not None:
                    replicas[index] = self._pop_all(place)
                elif holding.can_scale:
                    self._take(run_id, index)
        grant = Grant(trainer, replicas)
        return grant if grant != holding.grant else None

    def _take_surplus(self) -> None:
        """Takes the replicas above a run's maximum, after it was scaled down."""
        for holding in self.holdings.values():
            if holding.can_scale:
                for index in holding.staying[holding.ask.max_replicas :]:
                    self._take(holding.ask.run_id, index)

    def _take(self, run_id: str, index: int) -> None:
        self.takes[run_id].add(index)
        self._expect(self._devices(run_id, index))

    def _expect(self, devices: Iterable[PoolDevice]) -> None:
        """Counts devices that will be free; those that left the pools meanwhile are not counted."""
        for device in filter(self.known.__contains__, devices):
            self.coming[device.pool] += 1

    def _devices(self, run_id: str, index: int) -> tuple[PoolDevice, ...]:
        return self.holdings[run_id].grant.replicas[index]

    def _grow(self) -> dict[str, dict[int, tuple[PoolDevice, ...]]]:
        """One replica at a time: first to who has less than its least number, then by priority and
        share, then to who has the fewest."""
        adds: defaultdict[str, dict[int, tuple[PoolDevice, ...]]] = defaultdict(dict)
        full: set[object] = set()

        def entry(run_id: str) -> _Turn:
            ask = self.holdings[run_id].ask
            above = count[run_id] >= ask.min_replicas
            share = self._share(ask.owner)
            return above, -ask.priority, share, count[run_id], ask.queued_at, run_id

        # Not while replicas leave: so a run's replicas have its lowest indices.
        growing = {
            n: h
            for n, h in self.holdings.items()
            if h.can_scale and not h.leaving and not self.takes[n]
        }
        count = {run_id: len(holding.staying) for run_id, holding in growing.items()}
        heap = [entry(n) for n, holding in growing.items() if count[n] < holding.ask.max_replicas]
        heapq.heapify(heap)
        while heap:
            run_id = heapq.heappop(heap)[-1]
            holding, need = growing[run_id], growing[run_id].ask.replica
            shape = _need_key(need)
            place = None if shape in full else place_replica(need, self.pools, self.counts)
            if place is None:
                full.add(shape)
                continue
            taken = holding.grant.replicas.keys() | adds[run_id].keys()
            index = next(i for i in range(len(taken) + 1) if i not in taken)
            adds[run_id][index] = self._pop_all(place)
            self.usage[holding.ask.owner] += need.count
            count[run_id] += 1
            if count[run_id] < holding.ask.max_replicas:
                heapq.heappush(heap, entry(run_id))
        return {run_id: added for run_id, added in adds.items() if added}

    def _reason(self, shape: _Shape, closed: set[str]) -> str:
        ask, pools = shape.ask, sorted(shape.usable)
        wanted = f"{ask.num_devices} devices ({ask.described})"
        if not shape.can_ever_fit:
            return f"{wanted}, which the pools do not have any more; cancel it, or add them again"
        free = sum(self.counts[name] for name in pools)
        where = ", ".join(pools[:4]) + (", ..." if len(pools) > 4 else "")
        before = " and go to runs that wait for longer" if free and closed & shape.usable else ""
        return f"{wanted}; {free} are free in {where}{before}"


def _need_key(need: Need) -> object:
    return need.kind, need.count, need.hosts, tuple(sorted(need.labels.items()))


def _could_use(ask: DeviceRequest, pool: Pool) -> bool:
    return ask.trainer.matches(pool) or ask.replica.matches(pool)
