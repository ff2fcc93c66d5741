"""A real vLLM replica's engine for the benches, with a few methods more in its worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.weights.versions import run_config
from trimaran.types import Message

if TYPE_CHECKING:
    from services.rollout.vllm.engine import VllmEngine

SAMPLES = 8
PROMPTS = [f"Tell a long story about the number {number}." for number in range(8)]


@contextlib.asynccontextmanager
async def running_engine(
    model: Path, core: int = 0, max_tokens: int = 24, worker: str = "auto", **sections: Any
) -> AsyncIterator[VllmEngine]:
    """Its core process has core `core` for itself; this process keeps to the others. `worker`: a class
    in the place of vLLM's own worker. `sections`: of the run's configuration, further ones."""
    from services.rollout.vllm import engine as vllm_engine
    from trimaran.host.device import pick

    arguments = vllm_engine.engine_arguments

    def with_bench_worker(*given: Any) -> dict[str, Any]:
        extension = "benchmarks.weights.engine_worker.BenchExtension"
        return arguments(*given) | {"worker_extension_cls": extension, "worker_cls": worker}

    vllm_engine.engine_arguments = with_bench_worker
    rollout = {"max_tokens": max_tokens, "max_concurrency": len(PROMPTS) * SAMPLES}
    config = run_config(model, rollout=rollout, **sections)
    engine = vllm_engine.VllmEngine(config, pick("cpu"))
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    await engine.start()
    _move_threads(ours - {core} or ours)
    try:
        yield engine
    finally:
        await engine.close()


def _move_threads(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


class Arrivals:
    """When the outputs of `decode` came."""

    def __init__(self) -> None:
        self.at: list[float] = []
        """On `time.perf_counter`."""
        self.all_began = asyncio.Event()
        """Each prompt has had an output."""
        self._begun: set[int] = set()

    def note(self, prompt: int) -> None:
        self.at.append(time.perf_counter())
        self._begun.add(prompt)
        if len(self._begun) == len(PROMPTS):
            self.all_began.set()


async def decode(engine: VllmEngine, max_tokens: int, arrivals: Arrivals | None = None) -> float:
    """Tokens a second over 64 completions that all run to the full length. Without `arrivals` they come
    as a whole."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        n=SAMPLES,
        temperature=1.0,
        max_tokens=max_tokens,
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if arrivals else RequestOutputKind.FINAL_ONLY,
    )

    async def complete(number: int, text: str) -> int:
        inputs: Any = {"prompt_token_ids": list(engine.tokenize((Message("user", text),)))}
        name = f"bench-{number}-{time.monotonic_ns()}"
        count = 0
        async for output in engine.llm.generate(inputs, params, name, **engine._carried):
            count += sum(len(one.token_ids) for one in output.outputs)
            if arrivals:
                arrivals.note(number)
        return count

    begin = time.perf_counter()
    counts = await asyncio.gather(*(complete(n, text) for n, text in enumerate(PROMPTS)))
    return sum(counts) / (time.perf_counter() - begin)


async def call_worker(engine: VllmEngine, method: str, *arguments: Any) -> Any:
    """`method` of the bench's worker extension."""
    (answer,) = await engine.llm.collective_rpc(method, args=arguments)
    return answer
