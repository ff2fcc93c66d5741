"""Versions of a run with adapters: alone beside the frozen model, against merged into it, on real vLLM.

Both engines stand at once, each with the same model. Every number of A and B is another in each version, which
is the most that a step can change. The merged way is `VllmEngine.load_weights` of a whole version.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.results_file import Row
from benchmarks.weights.commit import (
    LOAD_TOKENS,
    PLAIN_WORKER,
    ROUNDS,
    interleave,
    read_back,
    shadow_of,
)
from benchmarks.weights.engine import decode, running_engine
from benchmarks.weights.versions import load_model, snapshot_of
from trimaran.types import VersionId

if TYPE_CHECKING:
    from weights.memory.shadow import Shadow

RANK = 16
LORA = {"rank": RANK, "merged": False}


def measure_adapters(model: Path, work: Path) -> tuple[list[Row], str]:
    return asyncio.run(_measure_adapters(model))


async def _measure_adapters(model: Path) -> tuple[list[Row], str]:
    first, second, num_bytes = adapted_shadows(model)
    merged = shadow_of(model, changed=True)
    rows = [Row("bytes_against_merged", num_bytes / merged.layout.num_bytes, "ratio", 0.05, False)]
    for kind, worker in (("packed", "auto"), ("plain", PLAIN_WORKER)):
        rows += await _measure_engines(model, kind, worker, (first, second), merged)
    return rows, (
        f"rank {RANK}, all matrices; every element of A and B changed; medians of {ROUNDS} interleaved rounds on"
        " idle engines; packed: as vLLM keeps linear layers on the CPU; plain: as on an accelerator; rates with"
        " 64 completions"
    )


async def _measure_engines(
    model: Path, kind: str, worker: str, alone: tuple[Shadow, Shadow], merged: Shadow
) -> list[Row]:
    first, second = alone
    options = {"max_tokens": LOAD_TOKENS, "worker": worker}
    async with (
        running_engine(model, **options, trainer={"lora": LORA}) as adapted,
        running_engine(model, **options) as plain,
    ):
        for engine, shadow in ((adapted, first), (plain, merged)):
            await engine.load_weights(shadow, VersionId(0, 0))
            await read_back(engine, shadow, ((0, shadow.manifest.num_blocks),))
        async with adapted._workers.prepared_writes(
            second.path, second.description(), True
        ) as are_prepared:
            assert are_prepared
        pauses = await interleave(
            {
                "alone": lambda: adapted.load_weights(second, VersionId(0, 1)),
                "merged": lambda: plain.load_weights(merged, VersionId(0, 1)),
            },
            ROUNDS,
        )
        await read_back(adapted, second, ((0, second.manifest.num_blocks),))
        rates = await interleave(
            {
                "alone": lambda: decode(adapted, LOAD_TOKENS),
                "merged": lambda: decode(plain, LOAD_TOKENS),
            },
            ROUNDS // 2,
        )
    return [
        Row(
            f"{kind}_pause_against_merged", pauses["alone"] / pauses["merged"], "ratio", 0.2, False
        ),
        Row(f"{kind}_pause_seconds", pauses["alone"], "s", None, False),
        Row(f"{kind}_merged_pause_seconds", pauses["merged"], "s", None, False),
        Row(
            f"{kind}_decoding_against_merged", rates["alone"] / rates["merged"], "ratio", None, True
        ),
    ]


def adapted_shadows(model: Path) -> tuple[Shadow, Shadow, int]:
    """Of two versions, the second over a copy of the first, and the bytes of the delta between them."""
    from tests.rollout.versions import draw_adapters
    from weights.delta.delta_stage import apply_verified
    from weights.memory.shadow import Shadow

    tensors = load_model(model)
    before = snapshot_of(model, tensors | draw_adapters(tensors, RANK, 1))
    first, base = Shadow(before.manifest), Shadow(before.manifest)
    for shadow in (first, base):
        shadow.buffer.copy_(before.buffer)
    changed = tensors | draw_adapters(tensors, RANK, 2)
    after = snapshot_of(model, changed, reuse=before, keep_delta=True)
    assert after.delta
    second = Shadow(after.manifest, reuse=base)
    apply_verified(second, after.delta, lambda: None)
    assert second.changes
    return first, second, sum(map(len, after.delta.pieces.values()))
