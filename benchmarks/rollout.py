"""(b) Rollout tokens a second through gRPC against the bare engine, and of that against vLLM as it is.

One process holds vLLM's AsyncLLM and our server, a second one is the client, and a third has an engine without what we
do on a host. Each round asks for the same 8 x 8 completions of 24 tokens three times: straight from
AsyncLLM, through gRPC, and from the third process.

`python -m benchmarks.rollout ADDRESS` is that client: one line in, one line of JSON out.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.results_file import Row
from benchmarks.weights.versions import load_model, policy_of, snapshot_of
from trimaran.clients import GroupAssembly, RolloutClient
from trimaran.config import RunConfig, parse_config
from trimaran.types import (
    Caller,
    MemorySource,
    Message,
    Prompt,
    Sampling,
    TransferLimits,
    VersionId,
)
from trimaran.wire import rpc

CALLER = Caller("bench", 1)
VERSION = VersionId(0, 0)
SAMPLING = Sampling(temperature=1.0, max_tokens=24, num_samples=8)
PROMPTS = [
    Prompt(f"p{a}", (Message("user", f"Tell a long story about the number {a}."),), "bench", "")
    for a in range(8)
]
TIMEOUT_SECONDS = 120.0
BUCKET_BYTES = 64 << 20


def measure_rollout(model: Path, rounds: int) -> tuple[list[Row], str]:
    rates = asyncio.run(_measure(model, rounds))
    medians = {side: statistics.median(values) for side, values in rates.items()}
    rows = [
        Row(
            "rollout_tokens_per_second_grpc_against_bare",
            medians["grpc"] / medians["bare"],
            "ratio",
            0.95,
            True,
        ),
        Row(
            "rollout_tokens_per_second_bare_against_plain_vllm",
            medians["bare"] / medians["plain"],
            "ratio",
            None,
            True,
        ),
        *(
            Row(f"rollout_tokens_per_second_{side}", rate, "tokens/s", None, True)
            for side, rate in medians.items()
        ),
    ]
    return (
        rows,
        f"{rounds} interleaved rounds of 64 completions of 24 tokens, one replica, 1 thread",
    )


async def _measure(model: Path, rounds: int) -> dict[str, list[float]]:
    from services.rollout.server import RolloutServicer, rollout_service
    from services.rollout.vllm.engine import VllmEngine
    from services.rollout.weights import ReplicaWeights
    from trimaran.host.device import pick
    from weights.receiving.receiver import WeightReceiver

    config, device = rollout_config(model), pick("cpu")
    engine = VllmEngine(config, device)
    await engine.start()
    receiver = WeightReceiver(device, 0, config.weight_sync)
    weights = ReplicaWeights("rollout-0", engine, receiver, config.weight_sync)
    servicer = RolloutServicer("rollout-0", config, engine, weights)
    server = rpc.Server("127.0.0.1:0", [rollout_service(servicer)])
    await server.start()
    await publish(model, server.address)
    client = await _start(__name__, server.address)
    plain = await _start("benchmarks.peers.plain_vllm", str(model))
    prompts = [list(engine.tokenize(prompt.messages)) for prompt in PROMPTS]
    sides = {
        "bare": lambda: _bare_rate(engine, prompts),
        "grpc": lambda: _rate_of(client),
        "plain": lambda: _rate_of(plain, json.dumps(prompts)),
    }
    rates: dict[str, list[float]] = {side: [] for side in sides}
    try:
        for number in range(rounds + 1):
            found = {side: await measure() for side, measure in sides.items()}
            print(f"round {number}: {found} tokens/s", flush=True)
            for side, rate in found.items() if number else ():  # the first warms up
                rates[side].append(rate)
    finally:
        for process in (client, plain):
            process.kill()
            await process.wait()
        await server.stop()
        await weights.close()
        await engine.close()
    return rates


async def publish(model: Path, address: str) -> None:
    """Bring the pretrained weights to the replica as weight sync would."""
    snapshot = snapshot_of(model, load_model(model))
    policy = policy_of(snapshot, VERSION.step)
    blocks = ((0, snapshot.manifest.num_blocks),)
    source = MemorySource(blocks, snapshot.path)
    limits = TransferLimits(bucket_bytes=BUCKET_BYTES, timeout=TIMEOUT_SECONDS)
    async with RolloutClient(address, CALLER) as client:
        await client.stage_weights(policy, snapshot.manifest, [source], limits, "benchmark")
        await client.commit_weights(policy, "rollout-0", TIMEOUT_SECONDS)


async def _start(module: str, argument: str) -> asyncio.subprocess.Process:
    command = sys.executable, "-m", module, argument
    return await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1)


async def _bare_rate(engine: Any, prompts: list[list[int]]) -> float:
    from vllm.sampling_params import RequestOutputKind

    params = sampling_params(output_kind=RequestOutputKind.FINAL_ONLY)

    async def generate(prompt: list[int]) -> int:
        name = f"bare-{time.monotonic_ns()}"
        count = 0
        async for output in engine.llm.generate({"prompt_token_ids": prompt}, params, name):
            count = sum(len(one.token_ids) for one in output.outputs)
        return count

    start = time.perf_counter()
    counts = await asyncio.gather(*map(generate, prompts))
    return sum(counts) / (time.perf_counter() - start)


def sampling_params(**more: Any) -> Any:
    """As our engine asks for them."""
    from vllm import SamplingParams

    return SamplingParams(
        n=SAMPLING.num_samples,
        temperature=SAMPLING.temperature,
        max_tokens=SAMPLING.max_tokens,
        logprobs=0,
        detokenize=False,
        **more,
    )


async def _rate_of(process: asyncio.subprocess.Process, line: str = "") -> float:
    assert process.stdin and process.stdout
    process.stdin.write(f"{line}\n".encode())
    await process.stdin.drain()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return json.loads(await process.stdout.readline())


async def _serve_rounds(address: str) -> None:
    async with RolloutClient(address, CALLER) as client:
        while await asyncio.to_thread(sys.stdin.readline):
            start = time.perf_counter()
            groups = await asyncio.gather(
                *(
                    client.generate(
                        number, 1, prompt, SAMPLING, VERSION, GroupAssembly(8), TIMEOUT_SECONDS
                    )
                    for number, prompt in enumerate(PROMPTS)
                )
            )
            tokens = sum(len(c.token_ids_T) for group in groups for c in group.completions_G)
            print(json.dumps(tokens / (time.perf_counter() - start)), flush=True)


def rollout_config(model: Path) -> RunConfig:
    return parse_config(
        {
            "model": {"path": str(model)},
            "data": {"train": "unused"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": {"max_prompt_tokens": 72, "max_tokens": 24, "threads": 1},
        }
    )


if __name__ == "__main__":
    asyncio.run(_serve_rounds(sys.argv[1]))
