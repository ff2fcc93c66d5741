"""What 8 slow, 8 failing and 8 lying plugins do to 40 good ones beside them.

All 64 are real servers in a process of their own; one PluginJudge asks them, as the reward service
does. Each good plugin is asked for one group after the other; each bad one is offered a group as
often as a good one is, also while its circuit is open. Rounds with and without the bad ones
alternate.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.reward.plugin_servers import WORK_SECONDS
from services.reward.outcome import Fault, Value
from services.reward.plugins.calling.client import PluginJudge
from services.reward.terms import PluginSpec
from trimaran.config import PluginSection
from trimaran.rewards import Sample
from trimaran.trust.allowed import Allowed
from trimaran.types import Message

GROUP = [
    Sample("The sum is 42. " * 60, "42", messages=(Message("user", "What is 40 + 2?"),)),
] * 8
BAD_KINDS = ("slow", "failing", "lying")
TIMEOUT = 2.0
START_SECONDS = 30


@dataclass
class Round:
    seconds: float
    latencies: list[float] = field(default_factory=list)
    """Of each call to a good plugin, in seconds."""
    bad_groups: int = 0
    """That were offered to bad ones."""

    @property
    def samples_per_second(self) -> float:
        return len(self.latencies) * len(GROUP) / self.seconds

    def percentile_ms(self, share: float) -> float:
        return 1000 * sorted(self.latencies)[int(share * (len(self.latencies) - 1))]


def measure_plugins(work: Path, quick: bool) -> tuple[list[Row], str]:
    """Raises RuntimeError where a good plugin's completion is not scored, or a bad one's is."""
    logging.getLogger("services.reward").setLevel(logging.ERROR)
    rounds, seconds = (2, 2.0) if quick else (6, 5.0)
    with _servers() as ports:
        rows = asyncio.run(_measure(ports, rounds, seconds))
    return rows, f"{rounds} rounds of {seconds:g} s each, with and without the bad ones in turn"


async def _measure(ports: dict[str, list[int]], rounds: int, seconds: float) -> list[Row]:
    good = [_spec(port) for port in ports["good"]]
    bad = [_spec(port) for kind in BAD_KINDS for port in ports[kind]]
    allowed = Allowed.from_entries(spec.plugin.url for spec in good + bad)
    async with PluginJudge(good + bad, allowed) as judge:
        await _round(judge, good, bad, seconds / 2)  # circuits open, connections stand
        alone, beside = [], []
        for _ in range(rounds):
            alone.append(await _round(judge, good, [], seconds))
            beside.append(await _round(judge, good, bad, seconds))
    return _rows(alone, beside)


def _rows(alone: Sequence[Round], beside: Sequence[Round]) -> list[Row]:
    median = statistics.median
    rates, rates_beside = ([r.samples_per_second for r in rounds] for rounds in (alone, beside))
    last, last_beside = ([r.percentile_ms(0.99) for r in rounds] for rounds in (alone, beside))
    ratio = median(b / a for a, b in zip(rates, rates_beside, strict=True))
    offered = sum(one.bad_groups for one in beside)
    return [
        Row("rate of 40 good plugins beside 24 bad ones, of that alone", ratio, "x", 0.9, True),
        Row("the 40 alone", median(rates), "samples/s", None, True),
        Row("the 40 beside 24 bad ones", median(rates_beside), "samples/s", None, True),
        Row("99th percentile of a call, alone", median(last), "ms", None, False),
        Row("99th percentile of a call, beside", median(last_beside), "ms", None, False),
        Row("what a good plugin itself takes", 1000 * WORK_SECONDS, "ms", None, False),
        Row("groups that bad plugins were offered", offered, "groups", None, True),
    ]


async def _round(
    judge: PluginJudge, good: Sequence[PluginSpec], bad: Sequence[PluginSpec], seconds: float
) -> Round:
    measured = Round(seconds)
    end = time.perf_counter() + seconds
    offering = [asyncio.create_task(_offer(judge, spec, measured)) for spec in bad]
    await asyncio.gather(*(_ask(judge, spec, measured, end) for spec in good))
    for task in offering:
        task.cancel()
    for failure in await asyncio.gather(*offering, return_exceptions=True):
        if isinstance(failure, Exception):
            raise failure
    return measured


async def _ask(judge: PluginJudge, spec: PluginSpec, measured: Round, end: float) -> None:
    while (start := time.perf_counter()) < end:
        outcomes = await judge.judge(spec, GROUP)
        measured.latencies.append(time.perf_counter() - start)
        if outcomes != (Value(1.0),) * len(GROUP):
            raise RuntimeError(f"a good plugin was not believed: {outcomes[0]}")


async def _offer(judge: PluginJudge, spec: PluginSpec, measured: Round) -> None:
    """A group every WORK_SECONDS, but not before the last one came back."""
    while True:
        measured.bad_groups += 1
        outcomes, _ = await asyncio.gather(judge.judge(spec, GROUP), asyncio.sleep(WORK_SECONDS))
        if not all(isinstance(outcome, Fault) for outcome in outcomes):
            raise RuntimeError(f"a bad plugin was believed: {outcomes}")


def _spec(port: int) -> PluginSpec:
    return PluginSpec(PluginSection(url=f"http://127.0.0.1:{port}", timeout=TIMEOUT))


@contextmanager
def _servers() -> Iterator[dict[str, list[int]]]:
    command = [sys.executable, "-m", "benchmarks.reward.plugin_servers"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait(START_SECONDS)
