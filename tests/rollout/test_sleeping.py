"""A replica that shares its devices with the trainer: asleep, woken, killed. Real engines over gRPC."""

from __future__ import annotations

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.rollout import replicas
from tests.rollout.replicas import CALLER, MAKER, TIMEOUT, generate, sampling
from trimaran.errors import BehindError, OutOfOrderError, UnavailableError
from trimaran.run.device_turns import DeviceTurn
from weights.version.manifest import list_digests

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["transformers", "vllm"])
def replica(request, model, tmp_path):
    sections = {"weight_sync": {"commit_timeout": 5}, "run": {"pools": "colocated"}}
    running = replicas.start_replica(request.param, model, tmp_path, **sections)
    yield running
    replicas.stop(running)
    assert not psutil.pid_exists(running.process.pid)


async def test_a_replica_sleeps_while_the_trainer_has_the_devices(replica, model, tmp_path):
    first = load_file(model / "model.safetensors")
    torch.manual_seed(7)
    second = {name: value + 0.01 * torch.randn_like(value) for name, value in first.items()}
    trainer = DeviceTurn(tmp_path / CALLER.run_id, (0,), "trainer-0")
    async with replica.client() as client:

        async def tokens():
            group = await generate(client, sampling(1, 12, temperature=0.0))
            return group.completions_G[0].token_ids_T

        await trainer.take(5)  # it has slept since its start
        version = await replica.stage(client, first)
        with pytest.raises(UnavailableError, match="in use by trainer-0"):
            await client.commit_weights(version, MAKER, TIMEOUT)
        trainer.release()
        await client.commit_weights(version, MAKER, TIMEOUT)
        before = await tokens()

        everything = ((0, replica.manifest.num_blocks),)
        await client.sleep(TIMEOUT)
        await client.sleep(TIMEOUT)
        await trainer.take(5)
        with pytest.raises(OutOfOrderError, match="sleeps while the trainer"):
            await client.read_back(version.version, everything, TIMEOUT)
        with pytest.raises(BehindError, match="sleeps while the trainer"):
            await tokens()
        following = await replica.stage(client, second)  # into the host's memory
        trainer.release()
        await client.commit_weights(following, MAKER, TIMEOUT)
        digests = await client.read_back(following.version, everything, TIMEOUT)
        assert list(digests) == list(list_digests(replica.manifest))

        await client.sleep(TIMEOUT)
        await replica.publish(client, first)
        assert await tokens() == before
        assert await replica.num_running(client) == 0
    replica.process.kill()
    replica.process.wait(TIMEOUT)
    await trainer.take(10)  # its turn has ended with it
