"""What each process of a run says of itself, and weight sync of the replicas."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.errors import TrimaranError
from trimaran.run.weights import RunWeights
from trimaran.telemetry import series

ASK_SECONDS = 2.0
AT_ONCE = 32
STARTED, MEMORY = "process_start_time_seconds", "process_resident_memory_bytes"
"""As Prometheus' client names them."""
WORK = {
    series.CONTROLLER_GROUPS.name: "groups under way",
    series.ROLLOUT_RUNNING.name: "completions under way",
    series.REWARD_QUEUE.name: "calls waiting",
    series.ENVIRONMENT_EPISODES.name: "episodes open",
    series.SYNC_ROUTABLE.name: "replicas routable",
}
"""What says how busy a process is, and its words."""
PAUSES = (series.ROLLOUT_PAUSE.name, series.SYNC_PAUSE.name)
"""The replica's own, and the longest one of all replicas."""
STEPS = (series.CONTROLLER_STEP.name, series.TRAINER_STEP.name)
SAMPLE = re.compile(r"^(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """Example: ProcessRow("rollout-0", "10.0.0.7:20001", "answers", version="0.12", proof="sampled")"""

    name: str
    address: str = ""
    state: str = ""
    version: str = ""
    """Of the weights that it holds: lineage and step."""
    proof: str = ""
    """The proof's level of the live version; empty where there is none."""
    restarts: int = 0
    """Since the run's processes were last started."""
    fault: str = ""
    started_at: float = 0.0
    num_bytes: float = 0.0
    work: str = ""


async def ask_all(runs: Any, client: Any, run_id: str, weights: RunWeights) -> Sequence[ProcessRow]:
    """Each process that listens, and each replica that weight sync knows."""
    addresses: Mapping[str, str] = await runs.processes(client, run_id)
    restarts: Mapping[str, int] = await runs.restarts(client, run_id)
    replicas = {replica.name: replica for replica in weights.replicas}
    proofs = {proof.replica: proof for proof in weights.live.proofs} if weights.live else {}
    room = asyncio.Semaphore(AT_ONCE)

    async def ask(name: str) -> ProcessRow:
        held = replicas.get(name)
        proof = proofs.get(held.maker) if held else None
        about: dict[str, Any] = {"name": name, "address": addresses.get(name, "")}
        about["restarts"] = restarts.get(name, 0)
        if held:
            about["version"] = "" if held.version is None else str(held.version)
            about["fault"] = held.fault
        if proof:
            about |= {"proof": proof.level.value, "fault": proof.fault or about.get("fault", "")}
        if name not in addresses:
            return ProcessRow(**about)
        try:
            async with room, asyncio.timeout(ASK_SECONDS):
                text = await runs.process_metrics(client, run_id, name)
        except (TrimaranError, TimeoutError):
            return ProcessRow(**about, state="does not answer")
        return ProcessRow(**about_numbers(text) | about, state="answers")

    return await asyncio.gather(*map(ask, sorted({*addresses, *replicas}, key=_place)))


def about_numbers(text: str) -> dict[str, Any]:
    """The fields of a row that stand in a process's numbers."""
    numbers: defaultdict[str, float] = defaultdict(float)
    for name, value in SAMPLE.findall(text):
        numbers[name] += float(value)
    work = [f"{numbers[name]:.0f} {words}" for name, words in WORK.items() if name in numbers]
    work += [f"last pause {numbers[name]:.3f} s" for name in PAUSES if name in numbers]
    versions = [f"step {numbers[name]:.0f}" for name in STEPS if name in numbers]
    if series.SYNC_STEP.name in numbers:
        lineage = numbers[series.SYNC_LINEAGE.name]
        versions.append(f"{lineage:.0f}.{numbers[series.SYNC_STEP.name]:.0f}")
    return {
        "started_at": numbers[STARTED],
        "num_bytes": numbers[MEMORY],
        "work": ", ".join(work),
        "version": "".join(versions),
    }


def _place(name: str) -> tuple[str, int]:
    kind, _, index = name.rpartition("-")
    return (kind, int(index)) if index.isdigit() else (name, 0)
