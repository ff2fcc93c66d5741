"""The rate at which a replica decodes while versions are staged beside it, against without.

vLLM's core process has a core of its own. The replica's receiver, its front end and the sender
share the other core, and stage one version after the other over gloo without a pause between
them: many times the rate of any training run.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.results_file import Row
from benchmarks.weights.engine import decode, running_engine
from benchmarks.weights.sides import SenderSide
from benchmarks.weights.versions import LIMITS
from benchmarks.weights.workers import Worker
from trimaran.config import WeightSyncSection
from trimaran.types import CollectiveSource, TransferGroup, VersionId

if TYPE_CHECKING:
    from weights.receiving.receiver import WeightReceiver

ROUNDS = 5
TOKENS = 24
ENGINE_CORE, OTHER_CORE = 0, 1


def measure_decode(model: Path, work: Path) -> tuple[list[Row], str]:
    return asyncio.run(_measure(model))


async def _measure(model: Path) -> tuple[list[Row], str]:
    from benchmarks.weights.commit import shadow_of
    from trimaran.host.device import pick
    from weights.receiving.receiver import WeightReceiver

    rates: dict[str, list[float]] = {"without": [], "during": []}
    stages_per_second = []
    async with running_engine(model, core=ENGINE_CORE, max_tokens=TOKENS) as engine:
        await engine.load_weights(shadow_of(model), VersionId(0, 0))
        receiver = WeightReceiver(pick("cpu"), 0, WeightSyncSection())
        receiver.start()
        with Worker(SenderSide, model, cores=(OTHER_CORE,)) as sender:
            stager = _Stager(sender, receiver)
            stager.stage()
            for number in range(ROUNDS + 1):
                without = await decode(engine, TOKENS)
                staging = asyncio.create_task(asyncio.to_thread(stager.stage_until_stopped))
                during = await decode(engine, TOKENS)
                stager.stopped = True
                per_second = await staging
                if number:  # the first warms up
                    rates["without"].append(without)
                    rates["during"].append(during)
                    stages_per_second.append(per_second)
        receiver.close()
    median = {side: statistics.median(values) for side, values in rates.items()}
    rows = [
        Row("decoding_during_stage", median["during"] / median["without"], "ratio", 0.9, True),
        Row("decoding_rate_without_stage", median["without"], "tokens/s", None, True),
        Row("decoding_rate_during_stage", median["during"], "tokens/s", None, True),
        Row("stages_while_decoding", statistics.median(stages_per_second), "1/s", None, True),
    ]
    return rows, (
        f"median of {ROUNDS} interleaved rounds of 64 completions of {TOKENS} tokens; vLLM's core"
        " process on core 0, front end, receiver and sender on core 1"
    )


class _Stager:
    """Stages the sender's two versions in turn, in a thread beside the engine's front end."""

    def __init__(self, sender: Worker, receiver: WeightReceiver) -> None:
        sender.call("take_snapshots", 2)
        _, self._versions = sender.call("describe")
        self._sender, self._receiver = sender, receiver
        self._group = sender.call("open", TransferGroup(1, "bench", 2, ""))
        self._num_staged = 0
        self.stopped = False

    def stage(self) -> None:
        self._num_staged += 1
        step = self._num_staged % 2
        policy, manifest, _ = self._versions[step]
        blocks = ((0, manifest.num_blocks),)
        source = CollectiveSource(blocks, self._group, rank=1)
        self._sender.begin("send", step, self._group, blocks)
        self._receiver.stage(policy, manifest, [source], LIMITS)
        self._receiver.keep(policy.version)
        self._sender.result()

    def stage_until_stopped(self) -> float:
        """Stages a second."""
        self.stopped, before, begin = False, self._num_staged, time.perf_counter()
        while not self.stopped:
            self.stage()
        return (self._num_staged - before) / (time.perf_counter() - begin)
