"""1% of answers hang the checker and 1% crash it: what is left when that is paid for?

Paid are, of the workers' time: for each answer that hangs two deadlines, and for each answer that
hangs or crashes two new processes, at what one costs when nothing else runs. With W workers,
    expected = clean + (2 * hung * deadline + 2 * (hung + crashed) * respawn) / W
seconds, where `clean` is what the same groups take with nothing built in; the ratio is expected
over measured.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.reward.items import group_of, gsm8k
from benchmarks.reward.service import Service, encode, running_service, score
from benchmarks.reward.unruly import CRASH, HANG, TARGET
from trimaran.types import Group, Score, Verdict

SHARE = 0.01
SEED = 1
WORKERS = 2
TIMEOUT = 1.0
GROUPS, QUICK_GROUPS = 1250, 250
CONCURRENCY = 128
"""Groups under way: those with a hung answer must not be all of them."""
RESPAWNS = 20
RULES = {"check": {"function": TARGET, "maximum": 1}}


def measure_hostile(work: Path, quick: bool) -> tuple[list[Row], str]:
    clean = [item.group for item in gsm8k(QUICK_GROUPS if quick else GROUPS)]
    return asyncio.run(_measure(work, clean)), (
        f"{len(clean)} groups of 8 of GSM8K, on {SHARE:.0%} of the answers the checker sleeps and"
        f" on {SHARE:.0%} it aborts; deadline {TIMEOUT:g} s, {WORKERS} workers; two deadlines and two"
        " new processes an answer are paid for"
    )


async def _measure(work: Path, clean: Sequence[Group]) -> list[Row]:
    hostile = make_hostile(clean)
    texts = [c.text for group in hostile for c in group.completions_G]
    hung, crashed = texts.count(HANG), texts.count(CRASH)
    service = running_service(work, RULES, [TARGET], workers=WORKERS, timeout=TIMEOUT)
    async with service as running:
        await score(running, encode(clean[:50]))
        clean_seconds, _ = await score(running, encode(clean), CONCURRENCY)
        respawn = await _measure_respawn(running)
        seconds, verdicts = await score(running, encode(hostile), CONCURRENCY)
    paid = (2 * hung * TIMEOUT + 2 * (hung + crashed) * respawn) / WORKERS
    return [
        Row("hostile_against_what_remains", (clean_seconds + paid) / seconds, "ratio", 0.9, True),
        Row("hostile_seconds", seconds, "s", None, False),
        Row("clean_seconds", clean_seconds, "s", None, False),
        Row("paid_for_seconds", paid, "s", None, False),
        Row("respawn_seconds", respawn, "s", None, False),
        Row("built_to_hang", hung, "answers", None, False),
        Row("built_to_crash", crashed, "answers", None, False),
        Row("not_as_they_must_be", count_astray(hostile, verdicts), "answers", 0, False),
    ]


async def _measure_respawn(service: Service) -> float:
    crash = group_of(0, "crash", "?", "1", [CRASH])
    seconds, _ = await score(service, encode([crash] * RESPAWNS), concurrency=1)
    return seconds / (2 * RESPAWNS)


def make_hostile(groups: Sequence[Group]) -> list[Group]:
    """With SHARE of the texts replaced by one that hangs, and SHARE by one that crashes."""
    chance = random.Random(SEED)

    def change(group: Group) -> Group:
        return replace(
            group,
            completions_G=tuple(
                replace(c, text=HANG if x < SHARE else CRASH if x < 2 * SHARE else c.text)
                for c in group.completions_G
                for x in [chance.random()]
            ),
        )

    return [change(group) for group in groups]


def count_astray(groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> int:
    """Hostile answers that are scored, and others that are not."""
    return sum(
        not isinstance(verdict, Score) or verdict.indigestible != (c.text in (HANG, CRASH))
        for group, of_group in zip(groups, verdicts, strict=True)
        for c, verdict in zip(group.completions_G, of_group, strict=True)
    )
