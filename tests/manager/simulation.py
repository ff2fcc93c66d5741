"""A cluster in simulated time, which checks the scheduler's promises at each of its decisions."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass, replace

from services.manager.scheduling.pools import DeviceRequest, Grant, Need, Pool
from services.manager.scheduling.scheduler import DeviceHolding, Scheduler, SchedulingPolicy


@dataclass(frozen=True)
class Job:
    arrives: float
    seconds: float
    """With the least number of replicas; further ones do not make it shorter here."""
    owner: str
    priority: int
    trainer: int
    """Ranks with devices of their own; 0 where the replicas' are the trainer's in turns."""
    tensor_parallel: int
    min_replicas: int
    extra_replicas: int
    hosts: int = 1


def simulate(
    pools: list[Pool],
    policy: SchedulingPolicy,
    drain_seconds: float,
    jobs: list[Job],
    until_started: str = "",
) -> dict[str, float]:
    """The wait of each run that has started, in seconds. Until all jobs have ended; asserts that no
    device and no set has two holders and that the grants are what was asked for."""
    waits: dict[str, float] = {}
    number = itertools.count()
    events: list[tuple[float, int, str, str, int]] = []
    by_id = {f"job-{i}": job for i, job in enumerate(jobs)}
    for run_id, job in by_id.items():
        heapq.heappush(events, (job.arrives, next(number), "arrives", run_id, 0))
    scheduler = Scheduler(pools, policy)
    queue: dict[str, DeviceRequest] = {}
    holdings: dict[str, DeviceHolding] = {}
    while events:
        now, _, what, run_id, index = heapq.heappop(events)
        if what == "arrives":
            queue[run_id] = ask_of(run_id, by_id[run_id])
        elif what == "ends":
            del holdings[run_id]
        elif run_id in holdings:
            holdings[run_id] = _without(holdings[run_id], index)
        if events and events[0][0] == now:
            continue
        plan = scheduler.plan(list(holdings.values()), list(queue.values()), now)
        assert plan.starts.keys() | plan.waits.keys() == queue.keys()
        for started, grant in plan.starts.items():
            ask = queue.pop(started)
            _check(ask, grant)
            holdings[started] = DeviceHolding(ask, grant)
            waits[started] = now - ask.queued_at
            end = now + by_id[started].seconds
            heapq.heappush(events, (end, next(number), "ends", started, 0))
        for taking, indices in plan.takes.items():
            assert len(holdings[taking].staying) - len(indices) >= holdings[taking].ask.min_replicas
            holdings[taking] = replace(holdings[taking], leaving=holdings[taking].leaving | indices)
            for i in indices:
                heapq.heappush(events, (now + drain_seconds, next(number), "gone", taking, i))
        for growing, added in plan.adds.items():
            holdings[growing] = _with(holdings[growing], added)
            staying = holdings[growing].staying
            assert staying == list(range(len(staying)))
            assert len(staying) <= holdings[growing].ask.max_replicas
        held = [d for h in holdings.values() for d in h.grant.devices]
        assert len(held) == len(set(held))
        assert not 0 < policy.sets < len(holdings)
        assert set(held) <= {(pool.name, name) for pool in pools for name in pool.devices}
        if until_started in waits:
            break
    return waits


def week_of_arrivals(count: int, seed: int) -> list[Job]:
    """Runs of 2 to 192 devices, most of them small, more by day, and hours long: together about
    what 512 devices can do in a week."""
    dice = random.Random(seed)
    owners = [f"owner-{i}" for i in range(20)]
    shapes = [
        (1, 1, 1, 3),
        (4, 1, 2, 6),
        (8, 2, 4, 8),
        (16, 4, 4, 12),
        (32, 8, 4, 12),
        (64, 8, 8, 8),
    ]
    weights = [30, 30, 20, 12, 6, 2]
    jobs: list[Job] = []
    while len(jobs) < count:
        at = dice.uniform(0, 7 * 86400)
        if not 8 <= at / 3600 % 24 < 20 and dice.random() < 0.7:
            continue
        trainer, tensor_parallel, replicas, extra = dice.choices(shapes, weights)[0]
        seconds = min(dice.lognormvariate(8.9, 1.0), 2 * 86400)
        priority = dice.choices((0, 1, 5), (80, 15, 5))[0]
        owner = owners[min(int(dice.expovariate(0.2)), 19)]
        jobs.append(Job(at, seconds, owner, priority, trainer, tensor_parallel, replicas, extra))
    return jobs


def ask_of(run_id: str, job: Job) -> DeviceRequest:
    return DeviceRequest(
        run_id,
        job.owner,
        job.priority,
        job.arrives,
        Need("cuda", job.trainer),
        Need("cuda", job.tensor_parallel, hosts=job.hosts),
        job.min_replicas,
        job.min_replicas + job.extra_replicas,
    )


def _check(ask: DeviceRequest, grant: Grant) -> None:
    assert len(grant.trainer) == ask.trainer.count
    assert len(grant.replicas) == ask.min_replicas
    for devices in grant.replicas.values():
        share = ask.replica.count // ask.replica.hosts
        each = Counter(device.pool for device in devices)
        assert len(devices) == ask.replica.count
        assert len(each) == 1 or not any(count % share for count in each.values())


def _with(holding: DeviceHolding, added: object) -> DeviceHolding:
    assert isinstance(added, dict)
    grant = holding.grant
    assert not added.keys() & grant.replicas.keys()
    return replace(holding, grant=Grant(grant.trainer, {**grant.replicas, **added}))


def _without(holding: DeviceHolding, index: int) -> DeviceHolding:
    replicas = {i: devices for i, devices in holding.grant.replicas.items() if i != index}
    return replace(
        holding,
        grant=Grant(holding.grant.trainer, replicas),
        leaving=holding.leaving - {index},
    )
