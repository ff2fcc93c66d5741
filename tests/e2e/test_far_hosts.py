"""Runs over hosts that a slow and lossy network joins, 10 ms each way and 1% of the packets lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e import runs
from tests.e2e.disjoint import roots_of
from tests.e2e.far import CONTROL, site
from trimaran.run.context import RunContext
from trimaran.run.runs import RunState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

DELAY_MS, LOSS = 10, 0.01
PLACES = {"first": ("trainer-0",), "second": ("trainer-1",), "third": ("rollout-0",)}
STEPS = {"deterministic": True, "checkpoint_every": 2}
RANKS = {"trainer": {"data_parallel": 2}}
SHORT_SECONDS = 3.0


def usual_roots(path: Path, folder: Path) -> dict[int, str]:
    code, output = runs.train(path, run_folder_parent=folder)
    assert code == 0, output
    run = RunContext.in_folder(runs.only_run(folder / "runs"))
    return asyncio.run(roots_of(run.store_url, run.run_id))


def test_two_ranks_and_a_replica_on_three_hosts_reach_the_roots_of_one(
    write_run: Callable[..., Path], tiny_model: Path, tmp_path: Path, redis_program: str
) -> None:
    path = write_run(run=STEPS | {"steps": 8}, **RANKS)
    usual = usual_roots(path, tmp_path)
    with site(tmp_path, PLACES, DELAY_MS, LOSS) as far:
        far.submit(path, {"model": far.push(tiny_model), "weight_sync": {"transport": "relay"}})
        far.until_step(2)
        for name in PLACES:
            far.link.cut(far.net(name))
            time.sleep(SHORT_SECONDS)
            far.link.mend(far.net(name))
        far.until_step(4)
        assert not [tree["text"] for tree in far.events() if "died" in tree["text"]]
        far.link.cut(far.net("second"))
        far.until_noted("trainer-1 died")
        far.link.mend(far.net("second"))
        assert far.until_ended() is RunState.SUCCEEDED, far.tell()
        assert far.roots() == usual
    assert runs.survivors(tmp_path) == []


def test_the_hosts_of_replica_trainer_and_manager_are_lost_one_after_another(
    write_run: Callable[..., Path], tiny_model: Path, tmp_path: Path, redis_program: str
) -> None:
    path = write_run(run=STEPS | {"steps": 8})
    usual = usual_roots(path, tmp_path)
    places = {"first": ("trainer-0",), "second": ("rollout-0",)}
    with site(tmp_path, places, DELAY_MS, LOSS) as far:
        far.submit(path, {"model": far.push(tiny_model), "weight_sync": {"transport": "relay"}})
        for step, name in ((2, "second"), (4, "first"), (6, CONTROL)):
            far.until_step(step)
            far.lose(name)
            far.start(name)
        assert far.until_ended() is RunState.SUCCEEDED, far.tell()
        assert far.roots() == usual
    assert runs.survivors(tmp_path) == []


def test_a_vllm_replica_of_two_devices_on_a_host_of_its_own(
    write_run: Callable[..., Path], tiny_model: Path, tmp_path: Path, redis_program: str
) -> None:
    """Its two processes load each version from one shadow. Which sequences vLLM computes together
    depends on time, so two runs need not make the same tokens."""
    engine = {"engine": "vllm", "tensor_parallel": 2, "kv_cache_gib": 0.05}
    path = write_run(run=STEPS | {"steps": 4}, rollout=engine, validation={"every": 100})
    places = {"first": ("trainer-0",), "second": ("rollout-0",)}
    with site(tmp_path, places, DELAY_MS, LOSS) as far:
        sync = {"transport": "collective"}
        far.submit(path, {"model": far.push(tiny_model), "weight_sync": sync})
        assert far.until_ended() is RunState.SUCCEEDED, far.tell()
        assert far.roots().keys() == set(range(5))
        [replica] = far.hosts["second"].engines
        assert all(f"version 0.{step} is live" in replica.log for step in range(5))
    assert runs.survivors(tmp_path) == []
