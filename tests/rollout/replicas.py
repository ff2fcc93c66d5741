"""A replica in a process of its own, with the real weight transfer and a fake weight sync."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.configs import configure
from tests.first_epoch import draw_epoch
from tests.rollout.versions import snapshot_of
from trimaran.clients import GroupAssembly, RolloutClient
from trimaran.config import WeightSyncSection, dump_config
from trimaran.host.device import pick
from trimaran.host.shared_memory import note_of, remove_left
from trimaran.run.network import LOOPBACK
from trimaran.run.placement import placed_environment
from trimaran.types import (
    Caller,
    CollectiveSource,
    MemorySource,
    Message,
    PolicyVersion,
    Prompt,
    Sampling,
    TransferGroup,
    TransferLimits,
    VersionId,
)
from trimaran.v1 import rollout_pb2, weight_sync_pb2, weight_sync_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc
from weights.sending.sender import WeightSender

CALLER = Caller("run", 1)
ATTEMPT = "one try"
PROMPT = Prompt("train.jsonl:1", (Message("user", "What is 1 + 2?"),), "addition", "3")
ANY_VERSION = VersionId(0, 0)
TIMEOUT = 60.0
LIMITS = TransferLimits(bucket_bytes=1 << 20, timeout=TIMEOUT)
MAKER = "rollout-0"
MAX_TOKENS = 1024
MAX_PROMPT_TOKENS = 64

SERVE = """
import asyncio, logging, sys
from pathlib import Path
from services.rollout.transformers import engine as transformers_engine
from services.rollout.server import serve
from trimaran.config import load_config
from trimaran.run.context import RunContext
# A fast machine is through a whole completion in the second after which it would first be heard of.
transformers_engine.CHUNK_SECONDS = 0.05
logging.basicConfig(level=logging.INFO)
asyncio.run(serve(load_config(sys.argv[1]), RunContext.in_folder(Path(sys.argv[2]))))
"""


class FakeWeightSync(weight_sync_pb2_grpc.WeightSyncServiceServicer):
    def __init__(self, heartbeat_seconds: float = 1.0):
        self.events: asyncio.Queue = asyncio.Queue()
        self.incarnation, self.heartbeat_seconds = 0, heartbeat_seconds

    async def RegisterReplica(self, request, context):
        self.incarnation += 1
        peer = wire.decode_peer(request.peer)
        self.events.put_nowait((request.run_id, wire.decode_replica(request.replica), peer))
        return weight_sync_pb2.RegisterReplicaResponse(
            incarnation=self.incarnation, heartbeat_seconds=self.heartbeat_seconds
        )

    def service(self):
        add = weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server
        return rpc.service(weight_sync_pb2.DESCRIPTOR, add, self)


@dataclass
class RunningReplica:
    process: subprocess.Popen
    address: str
    log: str
    model: Path
    sender: WeightSender
    note: Path
    """Of its names in /dev/shm."""
    num_published: int = 0

    def client(self) -> RolloutClient:
        return RolloutClient(self.address, CALLER)

    async def stage(self, client, tensors, again: bool = False) -> PolicyVersion:
        """The tensors as the next version: through shared memory and a transfer group in turn.

        `again`: as the version of the last call.
        """
        self.num_published += not again
        snapshot = snapshot_of(self.model, tensors)
        manifest = snapshot.manifest
        number = VersionId(0, self.num_published)
        version = PolicyVersion(CALLER.run_id, number, manifest.root)
        blocks = ((0, manifest.num_blocks),)
        group = TransferGroup(self.num_published, f"nonce-{self.num_published}", 2, "")
        if self.num_published % 2:
            sources = [MemorySource(blocks, snapshot.path)]
            staged = await client.stage_weights(version, manifest, sources, LIMITS, ATTEMPT)
        else:
            group = self.sender.open(group, TIMEOUT)
            sources = [CollectiveSource(blocks, group, rank=1)]
            staged, _ = await asyncio.gather(
                client.stage_weights(version, manifest, sources, LIMITS, ATTEMPT),
                asyncio.to_thread(self.sender.send, snapshot, group.group_id, blocks, "", LIMITS),
            )
        assert (staged.root, staged.num_blocks) == (version.root, manifest.num_blocks)
        self.manifest = manifest
        return version

    async def publish(self, client, tensors) -> VersionId:
        version = await self.stage(client, tensors)
        await client.commit_weights(version, MAKER, TIMEOUT)
        return version.version

    async def num_running(self, client) -> int:
        request = rollout_pb2.GetReplicaRequest(caller=wire.encode_caller(CALLER))
        return (await rpc.call(client._stub.GetReplica, request, TIMEOUT)).num_running


def start_replica(
    engine: str, model, folder, script: str = SERVE, tensor_parallel: int = 1, **sections
) -> RunningReplica:
    """Returns once the replica has registered itself. `script` serves it; `sections`: of its configuration."""
    weight_sync_address, address = free_addresses(2)
    config = configure(
        model={"path": str(model), "dtype": "float32"},
        rollout={
            "engine": engine,
            "device": "cpu",
            "max_tokens": MAX_TOKENS,
            "max_prompt_tokens": MAX_PROMPT_TOKENS,
            "max_concurrency": 16,
            "kv_cache_gib": 0.05,
            "tensor_parallel": tensor_parallel,
        },
        trainer={"data_parallel": tensor_parallel} | sections.pop("trainer", {}),
        endpoints={"weight_sync": weight_sync_address, "rollout": [address]},
        **{"frozen_timeout": 60} | sections,
    )
    (folder / "config.yaml").write_text(dump_config(config))
    run_folder = folder / CALLER.run_id
    asyncio.run(draw_epoch(run_folder))
    return asyncio.run(_start(config, model, folder, run_folder, script))


async def _start(config, model, folder, run_folder, script) -> RunningReplica:
    fake = FakeWeightSync()
    server = rpc.Server(config.endpoints.weight_sync, [fake.service()])
    log = folder / "log.txt"
    variables = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(folder / "config.yaml"), str(run_folder)],
            stdout=output,
            stderr=output,
            # All of it, or the command starts again, without what a script has replaced.
            env=placed_environment(config, "rollout", 0, variables),
        )
    # Weight sync comes up after the replica started: registration must be tried again.
    await asyncio.sleep(1)
    await server.start()
    waiting = asyncio.create_task(fake.events.get())
    while not waiting.done():
        assert process.poll() is None, log.read_text()
        await asyncio.wait({waiting}, timeout=0.5)
    run_id, replica, peer = waiting.result()
    assert (run_id, replica.name) == (CALLER.run_id, "rollout-0") and peer.relay and peer.key
    assert replica.address == config.endpoints.rollout[0]
    await server.stop()
    sender = WeightSender(pick("cpu"), 0, WeightSyncSection())
    sender.start()
    note = note_of(run_folder, replica.name)
    return RunningReplica(process, replica.address, str(log), model, sender, note)


def stop(replica: RunningReplica) -> None:
    replica.sender.close()
    if replica.process.poll() is None:
        replica.process.send_signal(signal.SIGKILL)
    replica.process.wait(TIMEOUT)
    remove_left(replica.note)  # as a launcher does


def free_addresses(count: int) -> list[str]:
    """Outside of the range from which the kernel serves an engine's own sockets."""
    taken: set[str] = set()
    while len(taken) < count:
        taken.add(LOOPBACK.free_address(taken))
    return [*taken]


async def generate(
    client, sampling, *, number=0, prompt=PROMPT, least=ANY_VERSION, into=None, prefix=None
):
    assembly = into or GroupAssembly(sampling.num_samples)
    return await client.generate(number, 1, prompt, sampling, least, assembly, TIMEOUT, prefix)


async def until_tokens(assembly) -> None:
    """Returns once an unfinished completion has a token, or all are finished."""
    while not assembly.complete:
        if any(part.token_ids_T for part in assembly.unfinished().values()):
            return
        await asyncio.sleep(0.02)


def sampling(num_samples, max_tokens, temperature=1.0, seed=0) -> Sampling:
    return Sampling(temperature, max_tokens, num_samples, seed)
