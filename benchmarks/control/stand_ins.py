"""Rollout, reward, trainer and weight sync over real gRPC, which answer from prepared messages: at once, but
where `Seconds` are given.

`python -m benchmarks.control.stand_ins SHAPE SECONDS`, both JSON, serves until its standard input ends. The first line
that it prints is the `endpoints` section of a run. All replicas, each with a server and an address
of its own, are in this one process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from trimaran.types import (
    Manifest,
    Message,
    PolicyVersion,
    Proof,
    Replica,
    Reply,
    Routing,
    Score,
    Segment,
    VersionId,
)
from trimaran.v1 import (
    environment_pb2,
    environment_pb2_grpc,
    reward_pb2,
    reward_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    weight_sync_pb2,
    weight_sync_pb2_grpc,
)
from trimaran.wire import messages as wire
from trimaran.wire import rpc

VOCABULARY = 150_000
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the groups: completions, their tokens, and in how many chunks each of them arrives. Of episodes the turns,
    and the tokens of each.

    Example: Shape(replicas=4, samples=8, tokens=512, chunks=1)
    """

    replicas: int
    samples: int
    tokens: int
    chunks: int
    turns: int = 0
    """0 for answers."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """That a step, the snapshot of its weights and their publication take. Example: Seconds(train=1.5)"""

    train: float = 0.0
    snapshot: float = 0.0
    publish: float = 0.0


INSTANT = Seconds()


class Pool:
    """What all of them know: which version is live, and where the replicas are."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.live = _policy(0)
        self.replicas: tuple[Replica, ...] = ()

    def routing(self) -> weight_sync_pb2.Routing:
        return wire.encode_routing(Routing(self.live, self.replicas))


class Rollout(rollout_pb2_grpc.RolloutServiceServicer):
    def __init__(self, name: str, pool: Pool) -> None:
        self._name, self._pool = name, pool

    async def Generate(
        self, request: rollout_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[rollout_pb2.GenerateResponse]:
        shape = replace(self._pool.shape, samples=request.sampling.num_samples)
        for response in _answer(self._name, self._pool.live.version, shape):
            yield response


class Environment(environment_pb2_grpc.EnvironmentServiceServicer):
    """Answers a short message to each turn but the last, which it rewards."""

    def __init__(self, num_turns: int) -> None:
        self._num_turns = num_turns

    async def Open(self, request: Any, context: Any) -> Any:
        return environment_pb2.OpenResponse()

    async def Step(self, request: environment_pb2.StepRequest, context: Any) -> Any:
        if request.turn < self._num_turns:
            return wire.encode_reply(Reply((Message("user", "higher"),), num_calls=1))
        return wire.encode_reply(Reply(reward=float(len(request.episode) % 2), done=True))

    async def Close(self, request: Any, context: Any) -> Any:
        return environment_pb2.CloseResponse()


class Reward(reward_pb2_grpc.RewardServiceServicer):
    async def ScoreGroup(
        self, request: reward_pb2.ScoreGroupRequest, context: Any
    ) -> reward_pb2.ScoreGroupResponse:
        return _verdicts(len(request.answers))


class Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds
        self._step = self._trained = 0

    async def GetPolicyVersion(self, request: Any, context: Any) -> Any:
        policy, manifest = _policy(self._step), Manifest((), f"root-{self._step}")
        return trainer_pb2.GetPolicyVersionResponse(
            version=wire.encode_policy(policy), manifest=wire.encode_manifest(manifest)
        )

    async def HoldGroups(self, request: Any, context: Any) -> Any:
        return trainer_pb2.HoldGroupsResponse()

    async def Train(self, request: trainer_pb2.TrainRequest, context: Any) -> Any:
        await self._train(request.batch.step)
        return await self._make_version(request.batch.step)

    async def TrainAhead(self, request: trainer_pb2.TrainAheadRequest, context: Any) -> Any:
        await self._train(request.batch.step)
        return trainer_pb2.TrainAheadResponse()

    async def MakeVersion(self, request: trainer_pb2.MakeVersionRequest, context: Any) -> Any:
        return await self._make_version(request.step)

    async def _train(self, step: int) -> None:
        if self._trained < step:
            await asyncio.sleep(self._seconds.train)
            self._trained = step

    async def _make_version(self, step: int) -> Any:
        await asyncio.sleep(self._seconds.snapshot)
        self._step = step
        return trainer_pb2.TrainResponse(version=wire.encode_policy(_policy(self._step)))

    async def SaveCheckpoint(self, request: Any, context: Any) -> Any:
        return trainer_pb2.SaveCheckpointResponse()

    async def WaitCheckpoint(self, request: Any, context: Any) -> Any:
        return trainer_pb2.WaitCheckpointResponse(path=f"checkpoints/{request.step}")

    async def ExportModel(self, request: Any, context: Any) -> Any:
        return trainer_pb2.ExportModelResponse(path=request.path)


class WeightSync(weight_sync_pb2_grpc.WeightSyncServiceServicer):
    def __init__(self, pool: Pool, seconds: Seconds) -> None:
        self._pool, self._seconds = pool, seconds

    async def PublishVersion(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(self._seconds.publish)
        self._pool.live = wire.decode_policy(request.version)
        return weight_sync_pb2.PublishVersionResponse(routing=self._pool.routing())

    async def GetRouting(self, request: Any, context: Any) -> Any:
        return weight_sync_pb2.GetRoutingResponse(routing=self._pool.routing())

    async def ListProofs(self, request: Any, context: Any) -> Any:
        proofs = [
            _proof(wire.decode_version(version), replica.name)
            for version in request.versions
            for replica in self._pool.replicas
        ]
        return weight_sync_pb2.ListProofsResponse(proofs=proofs)

    async def ListFaults(self, request: Any, context: Any) -> Any:
        return weight_sync_pb2.ListFaultsResponse()


@lru_cache(maxsize=4096)
def _answer(
    name: str, version: VersionId, shape: Shape
) -> tuple[rollout_pb2.GenerateResponse, ...]:
    """As a replica sends them: all completions together, chunk by chunk, with the last one their ends."""
    prompt = rollout_pb2.Opened(prompt_token_ids=wire.encode_token_ids(range(100)))
    responses = [rollout_pb2.GenerateResponse(opened=prompt)]
    bounds = [shape.tokens * place // shape.chunks for place in range(shape.chunks + 1)]
    for start, end in itertools.pairwise(bounds):
        response = rollout_pb2.GenerateResponse()
        for index in range(shape.samples):
            token_ids, logprobs, _ = _tokens(shape, index)
            response.chunks.add(
                index=index,
                segment=wire.encode_segment(Segment(start, end, version, name)),
                token_ids=token_ids[4 * start : 4 * end],
                logprobs=logprobs[4 * start : 4 * end],
            )
        responses.append(response)
    for index in range(shape.samples):
        _, _, text = _tokens(shape, index)
        message = wire.encode_message(Message("assistant", text)) if shape.turns else None
        responses[-1].finished.add(index=index, finish_reason="stop", text=text, message=message)
    return tuple(responses)


@lru_cache
def _tokens(shape: Shape, index: int) -> tuple[bytes, bytes, str]:
    """Of one completion: token ids and log-probabilities as they travel, and a text as long."""
    rng = random.Random(index)
    token_ids = [rng.randrange(VOCABULARY) for _ in range(shape.tokens)]
    logprobs = [-rng.expovariate(1.0) for _ in range(shape.tokens)]
    letters = "abcdefghijklmnopqrstuvwxyz      "
    text = "".join(rng.choices(letters, k=CHARACTERS_PER_TOKEN * shape.tokens))
    return wire.encode_token_ids(token_ids), wire.encode_logprobs(logprobs), text


@lru_cache
def _verdicts(number: int) -> reward_pb2.ScoreGroupResponse:
    scores = [Score(float(place % 2), {"exact_match": float(place % 2)}) for place in range(number)]
    return reward_pb2.ScoreGroupResponse(verdicts=[wire.encode_verdict(score) for score in scores])


@lru_cache(maxsize=8192)
def _proof(version: VersionId, name: str) -> Any:
    return wire.encode_proof(Proof(version, name, f"root-{version.step}", 300, 300))


def _policy(step: int) -> PolicyVersion:
    return PolicyVersion("run", VersionId(0, step), f"root-{step}")


async def serve(shape: Shape, seconds: Seconds) -> None:
    pool = Pool(shape)
    servers = [
        _server(reward_pb2, reward_pb2_grpc.add_RewardServiceServicer_to_server, Reward()),
        _server(
            trainer_pb2, trainer_pb2_grpc.add_TrainerServiceServicer_to_server, Trainer(seconds)
        ),
        _server(
            weight_sync_pb2,
            weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server,
            WeightSync(pool, seconds),
        ),
    ]
    add = rollout_pb2_grpc.add_RolloutServiceServicer_to_server
    replicas = {
        name: _server(rollout_pb2, add, Rollout(name, pool))
        for name in (f"rollout-{number}" for number in range(shape.replicas))
    }
    environments: list[rpc.Server] = []
    if shape.turns:
        add = environment_pb2_grpc.add_EnvironmentServiceServicer_to_server
        environments.append(_server(environment_pb2, add, Environment(shape.turns)))
    pool.replicas = tuple(Replica(name, server.address) for name, server in replicas.items())
    for server in [*servers, *environments, *replicas.values()]:
        await server.start()
    reward, trainer, weight_sync = (server.address for server in servers)
    # The other replicas become known as a run's further replicas do: by weight sync alone.
    endpoints = {
        "reward": reward,
        "trainer": [trainer],
        "weight_sync": weight_sync,
        "rollout": [pool.replicas[0].address],
        "environment": [server.address for server in environments],
    }
    print(json.dumps(endpoints), flush=True)
    await asyncio.to_thread(sys.stdin.read)


def _server(module: Any, add: Callable[[Any, Any], None], servicer: Any) -> rpc.Server:
    return rpc.Server("127.0.0.1:0", [rpc.service(module.DESCRIPTOR, add, servicer)])


def command(shape: Shape, seconds: Seconds = INSTANT) -> list[str]:
    given = (json.dumps(asdict(one)) for one in (shape, seconds))
    return [sys.executable, "-m", "benchmarks.control.stand_ins", *given]


if __name__ == "__main__":
    asyncio.run(serve(Shape(**json.loads(sys.argv[1])), Seconds(**json.loads(sys.argv[2]))))
