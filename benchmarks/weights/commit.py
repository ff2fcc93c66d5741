"""The pause of a COMMIT against the engine's own load, and the proof after it, on real vLLM.

The engine's core process has a core for itself. Ours is `VllmEngine.load_weights` from a shadow:
pause, load, pass outputs on, resume; the load by vLLM, as of a replica's first version, and by the workers
themselves. The other side is vLLM's own layerwise reload from tensors that already lie in the worker's
private memory, as a bare call: no pause, no shadow, no proof.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.results_file import Row
from benchmarks.weights.engine import Arrivals, call_worker, decode, running_engine
from benchmarks.weights.versions import change_all, load_model, snapshot_of
from services.weight_sync.proving.proving import PORTION_BYTES
from services.weight_sync.proving.windows import sample_blocks, split_portions
from trimaran.config import WeightSyncSection
from trimaran.types import Ranges, VersionId
from weights.version.layout import numbers_of
from weights.version.manifest import list_blocks, list_digests

if TYPE_CHECKING:
    from services.rollout.vllm.engine import VllmEngine
    from weights.memory.shadow import Shadow

ROUNDS = 9
ROUNDS_UNDER_LOAD = 5
LOAD_TOKENS = 24
CHANGED_SHARE = 0.0034
"""Of all elements, by a step at learning rate 1e-6: `delta_elements_mean_at_1e-06`."""
PLAIN_WORKER = "tests.rollout.plain_worker.PlainWorker"
UNDER_WAY_SECONDS = 0.1
SETTLE_SECONDS = 0.5
"""After completions were asked for, until all of them decode."""
FELT_TOKENS = 64
"""Of completions that are loaded across once all of them have begun: enough for some after it."""
LONG_SECONDS = 60.0
"""They begin within these, or never."""
SAME_STEP_SECONDS = 0.01
"""Outputs that are nearer to each other are of one step."""


def measure_pause(model: Path, work: Path) -> tuple[list[Row], str]:
    return asyncio.run(_measure_pause(model))


async def _measure_pause(model: Path) -> tuple[list[Row], str]:
    async with running_engine(model, max_tokens=FELT_TOKENS) as engine:
        shadow = shadow_of(model)
        await call_worker(engine, "hold_local", str(model))
        await call_worker(engine, "hold_shared", shadow.path, shadow.description())

        prepared: list[float] = []

        async def ours() -> float:
            begin = time.perf_counter()
            pause = await engine.load_weights(shadow, VersionId(0, 1))
            prepared.append(time.perf_counter() - begin - pause)
            return pause

        async def own_call(method: str = "load_local") -> float:
            begin = time.perf_counter()
            await call_worker(engine, method)
            return time.perf_counter() - begin

        async def own_paused() -> float:
            begin = time.perf_counter()
            await engine.llm.pause_generation(mode="keep", clear_cache=True)
            await call_worker(engine, "load_local")
            await engine.llm.resume_generation()
            return time.perf_counter() - begin

        sides = {"ours": ours, "own": own_call, "shared": lambda: own_call("load_shared")}
        first = await interleave(sides, ROUNDS)
        await ours()
        # As when a replica joins: from here on the workers write by themselves.
        await read_back(engine, shadow, ((0, shadow.manifest.num_blocks),))
        prepared.clear()
        idle = await interleave(sides, ROUNDS)
        before = statistics.median(prepared)
        busy, felt = await _under_load(engine, {"ours": ours, "own": own_paused})
    rows = [
        Row("pause_against_own_load", idle["ours"] / idle["own"], "ratio", 1.1, False),
        Row("pause_by_vllm_against_own_load", first["ours"] / first["own"], "ratio", 1.1, False),
        Row(
            "pause_by_vllm_against_own_load_of_shared_memory",
            first["ours"] / first["shared"],
            "ratio",
            None,
            False,
        ),
        Row("pause_by_vllm_seconds", first["ours"], "s", None, False),
        Row("prepared_before_the_pause_seconds", before, "s", None, False),
        Row("pause_seconds", idle["ours"], "s", None, False),
        Row("own_load_seconds", idle["own"], "s", None, False),
        Row("own_load_of_shared_memory_seconds", idle["shared"], "s", None, False),
        Row("pause_while_decoding_against_own", busy["ours"] / busy["own"], "ratio", None, False),
        Row("pause_while_decoding_seconds", busy["ours"], "s", None, False),
        Row("own_pause_while_decoding_seconds", busy["own"], "s", None, False),
        Row("felt_pause_against_own", felt["ours"] / felt["own"], "ratio", None, False),
        Row("felt_pause_seconds", felt["ours"], "s", None, False),
        Row("own_felt_pause_seconds", felt["own"], "s", None, False),
    ]
    return rows, (
        f"median of {ROUNDS} interleaved rounds on an idle engine, and of {ROUNDS_UNDER_LOAD} with"
        " 64 completions decoding, where the other side pauses and resumes too; felt: from the last token"
        " before a load to the first one after it, of all completions, less an ordinary step"
    )


async def interleave(
    sides: Mapping[str, Callable[[], Awaitable[float]]], rounds: int
) -> dict[str, float]:
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side, measure in sides.items():
            seconds = await measure()
            if number:  # the first warms up
                taken[side].append(seconds)
    return {side: statistics.median(seconds) for side, seconds in taken.items()}


async def _under_load(
    engine: VllmEngine, sides: Mapping[str, Callable[[], Awaitable[float]]]
) -> tuple[dict[str, float], dict[str, float]]:
    """What each side says of its load, and what its completions felt."""
    felt: dict[str, list[float]] = {side: [] for side in sides}

    async def with_load(side: str) -> float:
        arrivals = Arrivals()
        completions = asyncio.create_task(decode(engine, FELT_TOKENS, arrivals))
        async with asyncio.timeout(LONG_SECONDS):
            await arrivals.all_began.wait()
        began = time.perf_counter()
        seconds = await sides[side]()
        await completions
        felt[side].append(_felt_pause(arrivals.at, began))
        return seconds

    loads = {side: lambda side=side: with_load(side) for side in sides}
    said = await interleave(loads, ROUNDS_UNDER_LOAD)
    return said, {side: statistics.median(pauses[1:]) for side, pauses in felt.items()}


def _felt_pause(came_at: list[float], began: float) -> float:
    """Seconds without any token across a load that began then, less an ordinary step."""
    gaps = {later: later - earlier for earlier, later in pairwise(came_at)}
    # A step's outputs come within milliseconds of each other.
    step = statistics.median(gap for gap in gaps.values() if gap > SAME_STEP_SECONDS)
    return max(gap for later, gap in gaps.items() if later > began) - step


def measure_after_delta(model: Path, work: Path) -> tuple[list[Row], str]:
    return asyncio.run(_measure_after_delta(model))


async def _measure_after_delta(model: Path) -> tuple[list[Row], str]:
    async with running_engine(model, max_tokens=LOAD_TOKENS, worker=PLAIN_WORKER) as engine:
        whole, patched = shadow_of(model), patched_shadow_of(model)
        await call_worker(engine, "hold_local", str(model))
        await engine.load_weights(whole, VersionId(0, 0))
        async with engine._workers.prepared_writes(
            patched.path, patched.description(), True
        ) as are_prepared:
            assert are_prepared
        for shadow in (whole, patched, whole):
            await engine.load_weights(shadow, VersionId(0, 1))
            await read_back(engine, shadow, ((0, shadow.manifest.num_blocks),))

        prepared: list[float] = []

        async def changes() -> float:
            begin = time.perf_counter()
            pause = await engine.load_weights(patched, VersionId(0, 1))
            prepared.append(time.perf_counter() - begin - pause)
            return pause

        async def everything() -> float:
            return await engine.load_weights(whole, VersionId(0, 0))

        async def own() -> float:
            begin = time.perf_counter()
            await call_worker(engine, "load_local")
            return time.perf_counter() - begin

        found = await interleave({"changes": changes, "whole": everything, "own": own}, ROUNDS)
    rows = [
        Row(
            "pause_after_delta_against_own_load",
            found["changes"] / found["own"],
            "ratio",
            0.1,
            False,
        ),
        Row("pause_after_delta_seconds", found["changes"], "s", None, False),
        Row("prepared_before_the_pause_seconds", statistics.median(prepared), "s", None, False),
        Row("pause_whole_against_own_load", found["whole"] / found["own"], "ratio", 1.1, False),
        Row("pause_whole_seconds", found["whole"], "s", None, False),
        Row("own_load_seconds", found["own"], "s", None, False),
    ]
    return rows, (
        f"median of {ROUNDS} interleaved rounds on an idle engine whose linear layers are not packed, as"
        f" on an accelerator; {CHANGED_SHARE:.2%} of all elements changed, which is what a step at"
        " learning rate 1e-6 changes at the mean (`delta`)"
    )


def measure_proof(model: Path, work: Path) -> tuple[list[Row], str]:
    return asyncio.run(_measure_proof(model))


async def _measure_proof(model: Path) -> tuple[list[Row], str]:
    share = WeightSyncSection().sample_share
    pauses: dict[str, list[float]] = {"without": [], "with": []}
    full, sampled, rates = [], [], {"without": [], "with": []}
    async with running_engine(model, max_tokens=LOAD_TOKENS) as engine:
        shadow = shadow_of(model)
        num_blocks = shadow.manifest.num_blocks
        everything: Ranges = ((0, num_blocks),)
        for number in range(ROUNDS + 1):
            alone = await engine.load_weights(shadow, VersionId(0, 2 * number))
            reading = asyncio.create_task(read_back(engine, shadow, everything))
            await asyncio.sleep(UNDER_WAY_SECONDS)
            beside = await engine.load_weights(shadow, VersionId(0, 2 * number + 1))
            await reading
            seconds_full = await read_back(engine, shadow, everything)
            sample = sample_blocks(num_blocks, share, number)
            seconds_sampled = await read_back(engine, shadow, sample)
            if number:  # the first warms up
                pauses["without"].append(alone)
                pauses["with"].append(beside)
                full.append(seconds_full)
                sampled.append(seconds_sampled)
        for number in range(ROUNDS_UNDER_LOAD + 1):
            without = await decode(engine, LOAD_TOKENS)
            decoding = asyncio.create_task(decode(engine, LOAD_TOKENS))
            await asyncio.sleep(SETTLE_SECONDS)
            await read_back(engine, shadow, sample_blocks(num_blocks, share, number))
            with_sample = await decoding
            if number:
                rates["without"].append(without)
                rates["with"].append(with_sample)
    median = statistics.median
    pause_ratio = median(pauses["with"]) / median(pauses["without"])
    rows = [
        Row("read_back_full_seconds", median(full), "s", None, False),
        Row("read_back_sample_seconds", median(sampled), "s", None, False),
        Row("pause_with_a_proof_under_way_against_alone", pause_ratio, "ratio", None, False),
        Row(
            "decoding_rate_with_one_sample",
            median(rates["with"]) / median(rates["without"]),
            "ratio",
            None,
            True,
        ),
    ]
    return rows, (
        f"median of {ROUNDS} rounds; a sample is {share:g} of {num_blocks} blocks; a proof runs in"
        " slices beside decoding, and none falls into a pause: one that comes while a full read-back"
        " is under way is as long as one alone"
    )


async def read_back(engine: VllmEngine, shadow: Shadow, blocks: Ranges) -> float:
    """In the portions in which weight sync asks for them."""
    manifest = shadow.manifest
    all_blocks = list_blocks(manifest.tensors)
    begin = time.perf_counter()
    digests: dict[int, str] = {}
    for portion in split_portions(all_blocks, blocks, PORTION_BYTES):
        digests |= await engine.read_back(manifest, portion)
    seconds = time.perf_counter() - begin
    wanted = list_digests(manifest)
    assert digests == {number: wanted[number] for number in numbers_of(blocks)}, (
        "what the engine has loaded is not what was published"
    )
    return seconds


def patched_shadow_of(model: Path) -> Shadow:
    """Of a version that is a few elements away, over the model's own."""
    import torch

    from weights.delta.delta_stage import apply_verified
    from weights.memory.shadow import Shadow

    base, tensors = shadow_of(model), load_model(model)
    before = snapshot_of(model, tensors)
    generator = torch.Generator().manual_seed(0)
    for value in tensors.values():
        here = torch.rand(value.shape, generator=generator) < CHANGED_SHARE
        value[here] *= 1.0078125
    after = snapshot_of(model, tensors, reuse=before, keep_delta=True)
    assert after.delta
    shadow = Shadow(after.manifest, reuse=base)
    apply_verified(shadow, after.delta, lambda: None)
    assert shadow.changes
    return shadow


def shadow_of(model: Path, changed: bool = False) -> Shadow:
    """The model's version in a shadow of this process."""
    from weights.memory.shadow import Shadow

    tensors = load_model(model)
    snapshot = snapshot_of(model, change_all(tensors) if changed else tensors)
    shadow = Shadow(snapshot.manifest)
    shadow.buffer.copy_(snapshot.buffer)
    return shadow
