"""One vLLM replica whose two workers stand on two hosts, each with its own address and disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e import runs
from tests.e2e.far import site
from trimaran.run.runs import RunState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PLACES = {"first": ("trainer-0",), "second": ("rollout-0",), "third": ("follower-0",)}


def test_a_replica_on_two_hosts_trains_and_comes_back_when_one_is_lost(
    write_run: Callable[..., Path], tiny_model: Path, tmp_path: Path, redis_program: str
) -> None:
    """With run.proof loaded no token trains before every block was read back from the workers of both
    hosts, and was right. One host's process is killed, and later its engine takes it away for a moment."""
    engine = {"engine": "vllm", "tensor_parallel": 2, "hosts": 2, "kv_cache_gib": 0.05}
    steps = {"steps": 4, "proof": "loaded"}
    path = write_run(run=steps, rollout=engine, validation={"every": 100})
    with site(tmp_path, PLACES, delay_ms=1, loss=0.0) as far:
        far.submit(
            path, {"model": far.push(tiny_model), "weight_sync": {"transport": "collective"}}
        )
        far.until_step(1)
        for process in far.processes("third", "follower"):
            process.kill()
        far.until_noted("the run starts it again with")  # whichever of the two was missed first
        far.until_step(2)
        reported = len(far.events())
        for process in far.processes("third", "follower"):
            process.terminate()
        # Added, or started again where the engine's own end was seen first.
        far.until_noted("rollout-0 is ", after=reported)
        assert far.until_ended() is RunState.SUCCEEDED, far.tell()
        assert far.roots().keys() == set(range(5))
        [leader], [follower] = far.hosts["second"].engines, far.hosts["third"].engines
        assert "version 0.4 is live" in leader.log
        assert follower.log.count("vllm's workers on host 1 of 2 are up") == 3
    assert runs.survivors(tmp_path) == []
