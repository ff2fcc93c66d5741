"""Scores a second through gRPC and the pool, against the same library in as many plain processes."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.reward.items import GROUP_SIZE, Item, gsm8k, math500
from benchmarks.reward.plain import PlainProcesses
from benchmarks.reward.service import encode, running_service, score
from trimaran.types import Score, Verdict

WORKERS = (1, 2)
"""One leaves a core for client and service on a machine of two; with two, they have to share."""
ROUNDS = 3
WARM_UP = 40
"""Groups before the clock starts, all of them the first one."""
GOAL = 0.9
QUICK = {"gsm8k": 500, "math500": 60}
SETS: dict[str, Callable[[int | None], list[Item]]] = {"gsm8k": gsm8k, "math500": math500}
CASES = (
    ("gsm8k", "math_verify", GOAL),
    ("math500", "math_verify", GOAL),
    ("math500", "mathruler", None),
)


def measure_throughput(work: Path, quick: bool) -> tuple[list[Row], str]:
    rows: list[Row] = []
    for data, rule, goal in CASES:
        items = SETS[data](QUICK[data] if quick else None)
        for workers in WORKERS:
            rows += asyncio.run(_measure(work, data, rule, workers, goal, items))
    return rows, (
        f"median of {ROUNDS} interleaved rounds with new processes, as many plain ones as workers;"
        f" groups of {GROUP_SIZE} with their tokens, requests encoded before; client, service and"
        " workers share the cores"
    )


async def _measure(
    work: Path, data: str, rule: str, workers: int, goal: float | None, items: Sequence[Item]
) -> list[Row]:
    groups = [item.group for item in items]
    requests = encode(groups)
    jobs = [[(c.text, group.prompt.answer) for c in group.completions_G] for group in groups]
    count = len(groups) * GROUP_SIZE
    rates: dict[str, list[float]] = {"ours": [], "plain": []}
    cpu: dict[str, list[float]] = {"ours": [], "client": [], "plain": []}
    verdicts: list[tuple[Verdict, ...]] = []
    for _ in range(ROUNDS):
        # New processes each time: in training no answer comes twice, and sympy remembers what it saw.
        with PlainProcesses(f"benchmarks.reward.checkers:{rule}", jobs, workers) as processes:
            before = processes.cpu_seconds()
            rates["plain"].append(count / processes.run())
            cpu["plain"].append(processes.cpu_seconds() - before)
        async with running_service(work, {rule: 1.0}, workers=workers) as service:
            await score(service, requests[:1] * WARM_UP)
            before, client = service.cpu_seconds(), time.process_time()
            seconds, verdicts = await score(service, requests)
            rates["ours"].append(count / seconds)
            cpu["ours"].append(service.cpu_seconds() - before)
            cpu["client"].append(time.process_time() - client)
    _print_exceptions(data, rule, items, verdicts)
    name = f"{data}_{rule}_{workers}"
    ours, plain = (statistics.median(rates[side]) for side in ("ours", "plain"))
    microseconds = {side: 1e6 * statistics.median(cpu[side]) / count for side in cpu}
    return [
        Row(f"{name}_against_plain_processes", ours / plain, "ratio", goal, True),
        Row(f"{name}_scores_a_second", ours, "1/s", None, True),
        Row(f"{name}_plain_scores_a_second", plain, "1/s", None, True),
        Row(f"{name}_cpu_of_service_and_workers", microseconds["ours"], "us/score", None, False),
        Row(f"{name}_cpu_of_plain_processes", microseconds["plain"], "us/score", None, False),
        Row(f"{name}_cpu_of_the_client", microseconds["client"], "us/score", None, False),
        Row(f"{name}_exceptions", _count_exceptions(items, verdicts), "groups", None, False),
    ]


def _wrong_places(item: Item, verdicts: Sequence[Verdict]) -> list[int]:
    """Completions whose verdict is not what it must be."""
    expected = [float(k == 0 or not item.is_numeric) for k in range(len(verdicts))]
    return [
        place
        for place, (verdict, value) in enumerate(zip(verdicts, expected, strict=True))
        if not (isinstance(verdict, Score) and verdict.reward == value and not verdict.indigestible)
    ]


def _count_exceptions(items: Sequence[Item], verdicts: Sequence[Sequence[Verdict]]) -> int:
    return sum(bool(_wrong_places(*pair)) for pair in zip(items, verdicts, strict=True))


def _print_exceptions(
    data: str, rule: str, items: Sequence[Item], verdicts: Sequence[Sequence[Verdict]]
) -> None:
    """By id: a reference solution that is not right, or another number that is."""
    for item, of_group in zip(items, verdicts, strict=True):
        if places := _wrong_places(item, of_group):
            prompt = item.group.prompt
            print(f"{data} {rule} {prompt.prompt_id}: completions {places}, {prompt.answer!r}")
