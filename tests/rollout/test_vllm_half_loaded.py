"""A vLLM core that freezes or dies in the middle of a load: its replica comes back, or ends."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.rollout import replicas
from tests.rollout.replicas import MAKER, TIMEOUT, generate, sampling
from trimaran.errors import BehindError, TransferError, TrimaranError
from weights.version.manifest import list_digests

pytestmark = pytest.mark.e2e

COMMIT_SECONDS = 3.0
STAGE_SECONDS = 4.0

# The core is forked from this process, so it has what is replaced here.
SERVE = """
import os, signal, sys
from pathlib import Path
from weights.memory import shadow

ORDER = Path(sys.argv[2]) / "stop-half-way"
plain = shadow.open_shadow

def open_shadow(*arguments):
    tensors = list(plain(*arguments))
    for number, tensor in enumerate(tensors):
        if number == len(tensors) // 2 and ORDER.exists():
            ORDER.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        yield tensor

shadow.open_shadow = open_shadow
from commands.cli.main import main
main_arguments = ["--config", sys.argv[1], "--run-folder", sys.argv[2], "--index", "0"]
sys.exit(main(["serve", "rollout", *main_arguments]))
"""


@pytest.fixture
def replica(model, tmp_path):
    deadlines = {"commit_timeout": COMMIT_SECONDS, "stage_timeout": STAGE_SECONDS}
    running = replicas.start_replica(
        "vllm", model, tmp_path, SERVE, weight_sync=deadlines, frozen_timeout=600
    )
    yield running
    replicas.stop(running)


@pytest.fixture(scope="module")
def weights(model):
    from safetensors.torch import load_file

    return load_file(model / "model.safetensors")


@pytest.fixture(scope="module")
def other_weights(weights):
    torch.manual_seed(7)
    return {name: value + 0.03 * torch.randn_like(value) for name, value in weights.items()}


async def stop_half_way(replica, client, tensors) -> tuple[psutil.Process, asyncio.Task]:
    """The core, stopped in the middle of loading the tensors, and the commit that waits for it."""
    (Path(replica.log).parent / "run" / "stop-half-way").touch()
    staged = await replica.stage(client, tensors)
    commit = asyncio.create_task(client.commit_weights(staged, MAKER, TIMEOUT))
    (core,) = psutil.Process(replica.process.pid).children()
    while core.status() != psutil.STATUS_STOPPED:
        assert not commit.done(), commit.result()
        await asyncio.sleep(0.02)
    return core, commit


async def test_a_load_that_stood_still_for_too_long_is_made_up_for(replica, weights, other_weights):
    async with replica.client() as client:
        await replica.publish(client, weights)
        core, commit = await stop_half_way(replica, client, other_weights)
        with pytest.raises(TransferError, match="0.2"):
            await commit
        with pytest.raises(BehindError):
            await generate(client, sampling(1, 4))
        core.resume()
        live = await replica.publish(client, other_weights)
        everything = ((0, replica.manifest.num_blocks),)
        found = await client.read_back(live, everything, TIMEOUT)
        assert found == list_digests(replica.manifest)
        group = await generate(client, sampling(2, 8), least=live)
        assert {s.version for c in group.completions_G for s in c.segments} == {live}


async def test_a_replica_whose_core_never_goes_on_ends_to_be_started_again(replica, weights):
    async with replica.client() as client:
        await replica.publish(client, weights)
        _, commit = await stop_half_way(replica, client, weights)
        await asyncio.wait({commit})
        deadline = time.monotonic() + 120
        while replica.process.poll() is None and time.monotonic() < deadline:
            try:  # as weight sync does
                await replica.publish(client, weights)
            except TrimaranError:
                await asyncio.sleep(0.5)
    assert_ended(replica, "rollout-0 lives but cannot load weights: ")


async def test_a_replica_whose_core_is_killed_in_the_middle_of_a_load_ends(replica, weights):
    async with replica.client() as client:
        await replica.publish(client, weights)
        core, commit = await stop_half_way(replica, client, weights)
        core.kill()
        with pytest.raises(TrimaranError):
            await commit
    assert_ended(replica, "the vllm engine is dead")


def assert_ended(replica, reason: str) -> None:
    """With the code after which the launcher starts it again, and a reason in its log."""
    assert replica.process.wait(TIMEOUT) == 75  # what may pass: it is started again
    log = Path(replica.log).read_text()
    assert f"error: {reason}" in log, log
