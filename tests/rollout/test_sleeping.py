"""A replica that shares its devices with the trainer: asleep, woken, killed. Real engines over gRPC."""

from __future__ import annotations

import asyncio

import psutil
import pytest
import torch
import transformers

from tests.rollout import replicas
from tests.rollout.replicas import CALLER, MAKER, TIMEOUT, generate, sampling
from trimaran.errors import BehindError, OutOfOrderError, UnavailableError
from trimaran.run.device_turns import DeviceTurn
from weights.version.manifest import list_digests

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_replica_sleeps_while_the_trainer_has_the_devices(engine, model, tmp_path):
    settings = {"commit_timeout": 5}
    replica = replicas.start_replica(
        engine, model, tmp_path, weight_sync=settings, pools="colocated"
    )
    reference = transformers.AutoModelForCausalLM.from_pretrained(model)
    first = {name: value.detach().clone() for name, value in reference.named_parameters()}
    torch.manual_seed(7)
    second = {name: value + 0.01 * torch.randn_like(value) for name, value in first.items()}
    trainer = DeviceTurn(tmp_path / CALLER.run_id, (0,), "trainer-0")
    greedy = sampling(1, 12, temperature=0.0)

    async def scenario():
        async with replica.client() as client:

            async def tokens():
                return (await generate(client, greedy)).completions_G[0].token_ids_T

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

    try:
        asyncio.run(scenario())
        replica.process.kill()
        replica.process.wait(TIMEOUT)
        asyncio.run(trainer.take(10))  # its turn has ended with it
    finally:
        replicas.stop(replica)
    assert not psutil.pid_exists(replica.process.pid)
