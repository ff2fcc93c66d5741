"""What the scheduler promises: nobody shares a device, nobody waits for ever, idle devices work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from services.manager.scheduling.pools import (
    DeviceRequest,
    Grant,
    Need,
    Pool,
    PoolDevice,
    find_fit,
    place_replica,
)
from services.manager.scheduling.scheduler import (
    POLICY,
    DeviceHolding,
    Schedule,
    Scheduler,
    SchedulingPolicy,
)
from tests.manager.simulation import Job, simulate

POOL = Pool("gpu", "cuda", tuple("01234567"))


def make_plan(
    pools: Sequence[Pool],
    holdings: Sequence[DeviceHolding],
    queue: Sequence[DeviceRequest],
    now: float,
    policy: SchedulingPolicy = POLICY,
) -> Schedule:
    return Scheduler(pools, policy).plan(holdings, queue, now)


def ask(
    run_id: str = "a",
    *,
    owner: str = "ann",
    priority: int = 0,
    queued_at: float = 0.0,
    trainer: int = 1,
    tensor_parallel: int = 1,
    replicas: tuple[int, int] = (1, 1),
) -> DeviceRequest:
    needs = Need("cuda", trainer), Need("cuda", tensor_parallel)
    return DeviceRequest(run_id, owner, priority, queued_at, *needs, *replicas)


def holding(ask: DeviceRequest, first: int, num_replicas: int, *leaving: int) -> DeviceHolding:
    """Devices in order from `first` on."""
    names = iter(POOL.devices[first:])
    trainer = tuple(PoolDevice("gpu", next(names)) for _ in range(ask.trainer.count))
    size = ask.replica.count
    replicas = {
        i: tuple(PoolDevice("gpu", next(names)) for _ in range(size)) for i in range(num_replicas)
    }
    return DeviceHolding(ask, Grant(trainer, replicas), frozenset(leaving))


def test_higher_priority_first_then_who_has_least_then_the_oldest() -> None:
    queue = [
        ask("old", owner="ann", queued_at=0.0, trainer=2),
        ask("new", owner="bob", queued_at=5.0, trainer=2),
        ask("urgent", owner="ann", priority=1, queued_at=9.0, trainer=2),
    ]
    assert list(make_plan([POOL], [], queue, 10.0).starts) == ["urgent", "new"]
    assert list(make_plan([POOL], [], queue[:2], 10.0).starts) == ["old", "new"]
    favoured = make_plan([POOL], [], queue, 10.0, SchedulingPolicy({"ann": 100.0, "bob": 0.01}))
    assert list(favoured.starts) == ["urgent", "new"]  # bob has nothing yet
    held = holding(ask("h", owner="bob"), 0, 1)
    weighed = make_plan(
        [POOL], [held], queue[:2], 10.0, SchedulingPolicy({"bob": 0.01, "ann": 1.0})
    )
    assert list(weighed.starts) == ["old", "new"]


def test_a_small_run_passes_a_large_one_for_a_while() -> None:
    held = holding(ask("h", trainer=3), 0, 1)
    queue = [ask("large", trainer=6, queued_at=0.0), ask("small", owner="bob", queued_at=1.0)]
    policy = SchedulingPolicy(patience_seconds=60)
    queue = [replace(queue[0], priority=1), queue[1]]
    assert list(make_plan([POOL], [held], queue, 59.0, policy).starts) == ["small"]
    plan = make_plan([POOL], [held], queue, 60.0, policy)
    assert plan.starts == {} and "wait for longer" in plan.waits["small"]


def test_services_that_others_start_serve_as_many_runs_as_there_are_sets_of_them() -> None:
    first, policy = ask("first", replicas=(1, 4)), SchedulingPolicy(sets=1)
    queue = [first, ask("second", owner="bob", queued_at=1.0)]
    plan = make_plan([POOL], [], queue, 1.0, policy)
    assert plan.starts.keys() == {"first"}
    assert plan.waits == {"second": "another run to end: the services serve 1 at a time"}
    held = holding(first, 0, 4)
    plan = make_plan([POOL], [held], queue[1:], 1.0, policy)
    assert plan.waits.keys() == {"second"} and plan.starts == plan.takes == {}
    assert make_plan([POOL], [held], queue[1:], 1.0, SchedulingPolicy(sets=2)).starts.keys() == {
        "second"
    }
    assert make_plan([POOL], [], queue[1:], 1.0, policy).starts.keys() == {"second"}


def test_idle_devices_go_to_running_runs_and_come_back() -> None:
    running = ask("a", replicas=(1, 4))
    plan = make_plan([POOL], [holding(running, 0, 1)], [], 0.0)
    assert sorted(plan.adds["a"]) == [1, 2, 3]
    grown = holding(running, 0, 4)
    plan = make_plan([POOL], [grown], [ask("b", trainer=4)], 0.0)
    assert plan.takes == {"a": frozenset({3, 2})} and plan.starts == {}
    assert "give their devices back" in plan.waits["b"]
    # While they leave, nothing more is taken, and nobody else gets what is meant for b.
    leaving = holding(running, 0, 4, 2, 3)
    queue = [ask("b", trainer=4), ask("c", queued_at=1.0)]
    plan = make_plan([POOL], [leaving], queue, 1.0)
    assert plan.takes == {} and plan.starts == {} and plan.adds == {}
    plan = make_plan([POOL], [holding(running, 0, 2)], [ask("b", trainer=4)], 0.0)
    assert list(plan.starts) == ["b"]


def test_the_least_priority_gives_first() -> None:
    low = holding(ask("low", priority=-1, replicas=(1, 3)), 0, 3)
    high = holding(ask("high", priority=5, replicas=(1, 3)), 4, 3)
    plan = make_plan([POOL], [low, high], [ask("b")], 0.0)
    assert plan.takes == {"low": frozenset({1, 2})}


def test_scaled_down_and_up() -> None:
    shrunk = holding(ask("a", replicas=(1, 2)), 0, 4)
    assert make_plan([POOL], [shrunk], [], 0.0).takes == {"a": frozenset({2, 3})}
    below = holding(ask("below", replicas=(3, 3), priority=-5), 0, 1)
    above = holding(ask("above", replicas=(1, 8), priority=5), 3, 1)
    adds = make_plan([POOL], [below, above], [], 0.0).adds
    assert len(adds["below"]) == 2 and len(adds["above"]) == 2


def test_labels_and_kinds_choose_pools() -> None:
    pools = [
        Pool("small", "cuda", ("0", "1"), {"memory": "40"}),
        Pool("large", "cuda", ("2", "3"), {"memory": "80"}),
        Pool("host", "cpu", ("0", "1")),
    ]
    wish = DeviceRequest(
        *("a", "ann", 0, 0.0, Need("cuda", 2, {"memory": "80"}), Need("cpu", 1), 2, 2),
    )
    grant = make_plan(pools, [], [wish], 0.0).starts["a"]
    assert {d.pool for d in grant.trainer} == {"large"}
    assert {d.pool for ds in grant.replicas.values() for d in ds} == {"host"}


def test_a_replica_stands_in_one_pool_and_a_trainer_may_span() -> None:
    pools = [Pool(f"host-{i}", "cuda", ("0", "1", "2")) for i in range(3)]
    empty = {pool.name: 3 for pool in pools}
    by_name = {pool.name: pool for pool in pools}
    assert find_fit(ask(tensor_parallel=4), by_name, empty) is None
    fit = find_fit(ask(trainer=4, tensor_parallel=2, replicas=(2, 2)), by_name, empty)
    assert (
        fit is not None
        and sum(fit.trainer.values()) == 4
        and len({*fit.replicas[0], *fit.replicas[1]}) == 2
    )


def test_a_trainer_that_takes_turns_spans_pools_only_where_none_has_room() -> None:
    pools = {name: Pool(name, "cuda", ("0", "1", "2", "3")) for name in "ab"}
    turns = replace(ask(tensor_parallel=1, replicas=(4, 4)), trainer=Need("cuda", 0))
    fit = find_fit(turns, pools, {"a": 3, "b": 4})
    assert fit and fit.counts == {"b": 4}
    fit = find_fit(turns, pools, {"a": 3, "b": 2})
    assert fit and fit.counts.keys() == {"a", "b"} and sum(fit.counts.values()) == 4


any_job = partial(
    st.builds,
    Job,
    arrives=st.floats(0, 500),
    seconds=st.floats(1, 400),
    owner=st.sampled_from("abc"),
    priority=st.integers(-2, 2),
    min_replicas=st.integers(1, 2),
)
jobs = st.lists(
    any_job(
        trainer=st.integers(0, 6),
        tensor_parallel=st.sampled_from((1, 2)),
        extra_replicas=st.integers(0, 4),
    )
    | any_job(
        trainer=st.integers(1, 3),
        tensor_parallel=st.just(4),
        extra_replicas=st.integers(0, 1),
        hosts=st.sampled_from((2, 4)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(jobs, st.integers(1, 50), st.integers(0, 2))
def test_every_run_starts_and_no_device_or_set_is_shared(
    jobs: list[Job], drain: int, sets: int
) -> None:
    pools = [Pool("x", "cuda", tuple("01234567")), Pool("y", "cuda", tuple("0123"))]
    policy = SchedulingPolicy(aging_seconds=200, patience_seconds=100, sets=sets)
    assert len(simulate(pools, policy, float(drain), jobs)) == len(jobs)


def test_a_large_run_does_not_starve_among_small_ones() -> None:
    """Small ones come faster than they end: four at a time, 30 s each. Some 210 of them stand before
    the large one for good; without aging and patience all 600 do, for 4,500 s."""
    small = [Job(float(i), 30.0, "bob", 0, 1, 1, 1, 2) for i in range(600)]
    large = Job(10.0, 50.0, "ann", -2, 7, 1, 1, 0)
    policy = SchedulingPolicy(aging_seconds=100, patience_seconds=50)
    waits = simulate([POOL], policy, 3.0, [large, *small], until_started="job-0")
    assert waits["job-0"] < 2000


def test_what_the_pools_can_never_hold_any_more_holds_nobody_up() -> None:
    """The operator took a pool away while a run for it waited. It says so, and others start."""
    lost = DeviceRequest("lost", "ann", 9, 0.0, Need("cuda", 16), Need("cuda", 1), 1, 1)
    odd = DeviceRequest("odd", "ann", 9, 0.0, Need("npu", 1), Need("npu", 1), 1, 1)
    plan = make_plan([POOL], [], [lost, odd, ask("small", queued_at=1.0)], now=1e6)
    assert plan.starts.keys() == {"small"}
    for run_id, wanted in (("lost", "17 devices"), ("odd", "1 npu for the trainer")):
        assert wanted in plan.waits[run_id]
        assert "which the pools do not have any more; cancel it" in plan.waits[run_id]


def test_devices_that_the_operator_took_away_stay_with_who_has_them_and_come_back_to_nobody() -> (
    None
):
    small = Pool("gpu", "cuda", ("0", "1", "2"))
    replicas = {
        0: (PoolDevice("gpu", "1"),),
        1: (PoolDevice("gone", "0"),),
        2: (PoolDevice("gone", "1"),),
    }
    grant = Grant((PoolDevice("gpu", "0"),), replicas)
    holder = DeviceHolding(ask("old", replicas=(1, 3)), grant, leaving=frozenset({2}))
    plan = make_plan([small], [holder], [ask("next", trainer=2)], now=0.0)
    assert plan.waits.keys() == {"next"} and not plan.takes


def test_a_replica_on_several_hosts_takes_equal_parts_of_few_pools() -> None:
    pools = {name: Pool(name, "cuda", tuple("01234567")) for name in "abc"}
    need = Need("cuda", 8, hosts=4)
    assert place_replica(need, pools, {"a": 8, "b": 8, "c": 8}) == {"a": 8}
    assert place_replica(need, pools, {"a": 3, "b": 7, "c": 4}) == {"b": 6, "c": 2}
    assert place_replica(need, pools, {"a": 3, "b": 3, "c": 3}) is None  # a part is two devices
    assert place_replica(Need("cuda", 8), pools, {"a": 4, "b": 4}) is None


def test_a_replica_on_several_hosts_comes_and_is_taken_back_whole() -> None:
    pools = [Pool(name, "cuda", tuple("0123")) for name in "ab"]
    wide = replace(ask(replicas=(1, 1)), replica=Need("cuda", 6, hosts=2))
    grant = make_plan(pools, [], [wide], 0.0).starts["a"]
    assert [device.pool for device in grant.replicas[0]] == ["a"] * 3 + ["b"] * 3
    more = replace(wide, min_replicas=0)
    plan = make_plan(pools, [DeviceHolding(more, grant)], [ask("b", priority=1, trainer=2)], 0.0)
    assert plan.takes == {"a": {0}}
