"""100,000 answers, 1% that hang and 1% that crash: memory, processes and files of the service."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.reward.hostile import CONCURRENCY, RULES, count_astray, make_hostile
from benchmarks.reward.items import GROUP_SIZE, gsm8k
from benchmarks.reward.service import Service, encode, running_service, score
from benchmarks.reward.unruly import TARGET
from trimaran.types import Group

ANSWERS, QUICK_ANSWERS = 100_000, 4_000
PORTIONS = (0.1, 0.5, 1.0)
TIMEOUT = 0.25
SETTLE_SECONDS = 3.0
"""In which processes that were ended are replaced and reaped."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    service_mib: float
    """Resident, of the service alone."""
    all_mib: float
    """Of all its processes; what they share is counted once (PSS)."""
    processes: int
    files: int
    threads: int


def measure_leak(work: Path, quick: bool) -> tuple[list[Row], str]:
    count = (QUICK_ANSWERS if quick else ANSWERS) // GROUP_SIZE
    problems = [item.group for item in gsm8k()]
    groups = make_hostile(list(itertools.islice(itertools.cycle(problems), count)))
    usages, astray = asyncio.run(_measure(work, groups))
    rows = [
        Row(f"{name}_at_{portion:.0%}", getattr(usage, name), unit, None, False)
        for portion, usage in zip(PORTIONS, usages, strict=True)
        for name, unit in (
            *(("service_mib", "MiB"), ("all_mib", "MiB")),
            *(("processes", ""), ("files", ""), ("threads", "")),
        )
    ]
    first, last = usages[0], usages[-1]
    rows += [
        Row("service_growth", last.service_mib / first.service_mib, "ratio", 1.1, False),
        Row("memory_growth", last.all_mib / first.all_mib, "ratio", 1.1, False),
        Row("processes_more", last.processes - first.processes, "", 0, False),
        Row("files_more", last.files - first.files, "", 0, False),
        Row("threads_more", last.threads - first.threads, "", 0, False),
        Row("not_as_they_must_be", astray, "answers", 0, False),
    ]
    return rows, f"{count * GROUP_SIZE} answers, deadline {TIMEOUT:g} s; growth is from 10% to 100%"


async def _measure(work: Path, groups: Sequence[Group]) -> tuple[list[Usage], int]:
    usages: list[Usage] = []
    astray, start = 0, 0
    async with running_service(work, RULES, [TARGET], timeout=TIMEOUT) as service:
        for portion in PORTIONS:
            end = int(len(groups) * portion)
            _, verdicts = await score(service, encode(groups[start:end]), CONCURRENCY)
            astray += count_astray(groups[start:end], verdicts)
            await asyncio.sleep(SETTLE_SECONDS)
            usages.append(_usage(service))
            start = end
    return usages, astray


def _usage(service: Service) -> Usage:
    processes = service.processes()
    return Usage(
        service.process.memory_info().rss / MIB,
        sum(process.memory_full_info().pss for process in processes) / MIB,
        len(processes),
        service.process.num_fds(),
        service.process.num_threads(),
    )
