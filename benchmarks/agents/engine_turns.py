"""Four-turn episodes through the controller's loop, against the bare engine.

One process holds vLLM's AsyncLLM and our rollout server, a second one the controller's EpisodeMaker and an environment
that answers at once. The bare engine is given the same turns straight: as many tokens to sample, behind the same given
tokens and what it has sampled itself, with its prefix cache. Each side begins with an empty cache.

`python -m benchmarks.agents.engine_turns ADDRESS` is the second process: one line in, one line of JSON out.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.agents.controller import episode_maker, served
from benchmarks.control.stand_ins import Environment
from benchmarks.results_file import Row
from benchmarks.rollout import publish
from services.controller.episodes.maker import EpisodeMaker
from trimaran.config import RunConfig, parse_config
from trimaran.types import Completion, Group, Message, Prompt, Replica, Sampling
from trimaran.v1 import environment_pb2, environment_pb2_grpc

GOAL_PACE, GOAL_TURN_MS = 0.9, 15.0
TURNS, MAX_TOKENS = 4, 24
GROUPS, EPISODES = 2, 8
ALONE = 4
"""Episodes of a round, one after the other, which tell what a turn costs."""
ROUNDS = 3
TIMEOUT_SECONDS = 300.0

Turns = Sequence[tuple[Sequence[int], int]]
"""Of an episode: the tokens given before each turn, and how many were sampled in it."""


@dataclass(frozen=True, slots=True)
class Played:
    """Example: Played(seconds=15.2, episodes=[[([1, 2, 3], 24), ([4], 24)]])"""

    seconds: float
    episodes: Sequence[Turns]

    @property
    def pace(self) -> float:
        """Sampled tokens a second."""
        return sum(count for turns in self.episodes for _, count in turns) / self.seconds

    @property
    def num_turns(self) -> int:
        return sum(map(len, self.episodes))


def measure_engine_turns(model: Path) -> tuple[list[Row], str]:
    played, turn_ms = asyncio.run(_measure(model))
    pace = {side: statistics.median(one.pace for one in its) for side, its in played.items()}
    ratio = pace["ours"] / pace["bare"]
    return [
        Row("tokens_per_second_of_episodes_against_bare", ratio, "ratio", GOAL_PACE, True),
        *(
            Row(f"tokens_per_second_of_episodes_{side}", pace[side], "tokens/s", None, True)
            for side in pace
        ),
        Row("turn_beside_the_engine", statistics.median(turn_ms), "ms", GOAL_TURN_MS, False),
    ], (
        f"{ROUNDS} interleaved rounds of {GROUPS * EPISODES} episodes of {TURNS} turns of {MAX_TOKENS} tokens;"
        f" what a turn costs of {ALONE} episodes one after the other; one replica, 1 thread"
    )


async def _measure(model: Path) -> tuple[dict[str, list[Played]], list[float]]:
    """By side; and the milliseconds of a turn in which no engine was waited for, of each round."""
    from benchmarks.agents.timed_engine import TimedEngine
    from services.rollout.server import RolloutServicer, rollout_service
    from services.rollout.weights import ReplicaWeights
    from trimaran.host.device import pick
    from trimaran.wire import rpc
    from weights.receiving.receiver import WeightReceiver

    config, device = _config(str(model)), pick("cpu")
    engine = TimedEngine(config, device)
    await engine.start()
    weights = ReplicaWeights(
        "rollout-0", engine, WeightReceiver(device, 0, config.weight_sync), config.weight_sync
    )
    servicer = RolloutServicer("rollout-0", config, engine, weights)
    server = rpc.Server("127.0.0.1:0", [rollout_service(servicer)])
    await server.start()
    await publish(model, server.address)
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, server.address, stdin=-1, stdout=-1, limit=1 << 26
    )
    played: dict[str, list[Played]] = {"ours": [], "bare": []}
    turn_ms: list[float] = []
    try:
        for number in range(ROUNDS + 1):
            await engine.llm.reset_prefix_cache()
            ours = await _ask(client, "together")
            await engine.llm.reset_prefix_cache()
            bare = await _bare(engine, ours.episodes)
            before = engine.seconds
            alone = await _ask(client, "alone")
            cost = 1e3 * (alone.seconds - (engine.seconds - before)) / alone.num_turns
            print(
                f"round {number}: ours {ours.pace:.0f}, bare {bare.pace:.0f} tokens/s; {cost:.1f} ms a turn",
                flush=True,
            )
            if number:  # the first warms up
                played["ours"].append(ours)
                played["bare"].append(bare)
                turn_ms.append(cost)
    finally:
        client.kill()
        await client.wait()
        await server.stop()
        await weights.close()
        await engine.close()
    return played, turn_ms


async def _ask(client: asyncio.subprocess.Process, how: str) -> Played:
    assert client.stdin and client.stdout
    client.stdin.write(f"{how}\n".encode())
    await client.stdin.drain()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return Played(*json.loads(await client.stdout.readline()))


async def _bare(engine: Any, episodes: Sequence[Turns]) -> Played:
    began = time.perf_counter()
    await asyncio.gather(*(_bare_episode(engine, turns) for turns in episodes))
    return Played(time.perf_counter() - began, episodes)


async def _bare_episode(engine: Any, turns: Turns) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    token_ids: list[int] = []
    for given, count in turns:
        token_ids += given
        params = SamplingParams(
            max_tokens=count,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        inputs = {"prompt_token_ids": list(token_ids)}
        async for output in engine.llm.generate(inputs, params, f"bare-{time.monotonic_ns()}"):
            token_ids += output.outputs[0].token_ids


async def _serve_rounds(address: str) -> None:
    add = environment_pb2_grpc.add_EnvironmentServiceServicer_to_server
    async with (
        served(environment_pb2.DESCRIPTOR, add, Environment(TURNS)) as environment,
        episode_maker(_config("unused"), Replica("rollout-0", address), environment) as maker,
    ):
        while line := await asyncio.to_thread(sys.stdin.readline):
            played = await _play(maker, line.strip())
            print(json.dumps([played.seconds, played.episodes]), flush=True)


async def _play(maker: EpisodeMaker, how: str) -> Played:
    began = time.perf_counter()
    if how == "together":
        groups = await asyncio.gather(*(_group(maker, n, EPISODES) for n in range(GROUPS)))
    else:
        groups = [await _group(maker, n, 1) for n in range(ALONE)]
    seconds = time.perf_counter() - began
    return Played(seconds, [_turns(group, one) for group in groups for one in group.completions_G])


async def _group(maker: EpisodeMaker, number: int, num_samples: int) -> Group:
    said = Message("user", f"Tell a long story about the number {number}.")
    sampling = Sampling(temperature=1.0, max_tokens=MAX_TOKENS, num_samples=num_samples)
    return await maker.generate(number, Prompt(f"p{number}", (said,), "bench", ""), sampling)


def _turns(group: Group, completion: Completion) -> list[tuple[list[int], int]]:
    """What a turn's `num_given` counts stands behind it."""
    assert not completion.fault and not completion.branches, completion.fault
    tokens = [*group.prompt_token_ids, *completion.token_ids_T]
    end = len(tokens)
    turns: list[tuple[list[int], int]] = []
    for place in reversed(range(len(completion.turns))):
        turn = completion.turns[place]
        start = end - turn.num_given - turn.num_sampled
        before = completion.turns[place - 1].num_given if place else start
        turns.append((tokens[start - before : start], turn.num_sampled))
        end = start
    return turns[::-1]


def _config(model: str) -> RunConfig:
    return parse_config(
        {
            "model": {"path": model},
            "data": {"train": "unused"},
            "reward": {"rules": {"exact_match": 1.0}},
            "rollout": {
                "max_prompt_tokens": 72,
                "max_tokens": MAX_TOKENS,
                "threads": 1,
                "max_concurrency": GROUPS * EPISODES,
            },
            "environment": {"factory": "unused.py:Unused", "max_turns": TURNS, "max_tokens": 256},
        }
    )


if __name__ == "__main__":
    asyncio.run(_serve_rounds(sys.argv[1]))
