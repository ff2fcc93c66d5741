"""Groups a second through the control path, and how that changes with replicas and with length.

issue -> generate -> score -> consume -> commit, as `one_run` says: the real controller on a core of
its own, its real ledger, payloads and store; stand-ins, which answer at once, on the other core.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.control.one_run import Outcome, Work, measure
from benchmarks.control.stand_ins import Shape
from benchmarks.results_file import Row
from tests.redis_server import RedisServer

GOAL = 500.0
GROUP = Shape(replicas=4, samples=8, tokens=512, chunks=1)
WORK = Work(steps=65, groups_per_step=64)
GROWTH_WORK = Work(steps=13, groups_per_step=512, warmup=3)
SHORT_WORK = Work(steps=10, groups_per_step=64, warmup=4)
ROUNDS = 5
PLACES = (
    "controller on core 0 (`trimaran serve controller`, all its threads); replicas, reward, trainer,"
    " weight sync (one process), Redis and the observer on core 1"
)


def measure_groups(work: Path, quick: bool) -> tuple[list[Row], str]:
    sides = {
        "sqlite": (GROUP, WORK, False),
        "redis": (GROUP, WORK, True),
        # As an engine sends that decodes for ten seconds.
        "sqlite_ten_chunks": (Shape(4, 8, 512, chunks=10), WORK, False),
    }
    outcomes = _interleaved(work, sides, quick)
    rows: list[Row] = []
    for name, found in outcomes.items():
        goal = GOAL if name in ("sqlite", "redis") else None
        rows += _rows(f"groups_{name}", found, goal)
    return rows, (
        f"{_rounds(quick)} interleaved rounds of {WORK.steps - WORK.warmup} steps of"
        f" {WORK.groups_per_step} groups of 8 x 512 tokens, max_lag 1; {PLACES}"
    )


def measure_growth(work: Path, quick: bool) -> tuple[list[Row], str]:
    replicas = {
        f"replicas_{number}": (Shape(number, 8, 512, 1), GROWTH_WORK, False)
        for number in (1, 10, 100, 1000)
    }
    lengths = {
        f"tokens_{tokens}": (Shape(4, 8, tokens, max(1, tokens // 512)), SHORT_WORK, False)
        for tokens in (512, 2048, 8192, 32768)
    }
    outcomes = _interleaved(work, replicas | lengths, quick)
    rows = [row for name, found in outcomes.items() for row in _rows(name, found, None)]
    cpu = {name: _median(found, "cpu_seconds_per_group") for name, found in outcomes.items()}
    growth = cpu["replicas_1000"] / cpu["replicas_1"]
    tokens = (32768 - 512) * 8
    per_token = (cpu["tokens_32768"] - cpu["tokens_512"]) / tokens
    return [
        *rows,
        Row("cpu_of_a_group_1000_replicas_against_1", growth, "ratio", None, False),
        Row("cpu_of_a_further_token", 1e9 * per_token, "ns", None, False),
    ], (
        f"{_rounds(quick)} interleaved rounds; replicas: {GROWTH_WORK.groups_per_step} groups of"
        f" 8 x 512 tokens a step; lengths: {SHORT_WORK.groups_per_step} groups of 8, a chunk each 512"
        f" tokens; SQLite; {PLACES}"
    )


def _interleaved(
    work: Path, sides: Mapping[str, tuple[Shape, Work, bool]], quick: bool
) -> dict[str, list[Outcome]]:
    outcomes: dict[str, list[Outcome]] = {name: [] for name in sides}
    for number in range(_rounds(quick)):
        for name, (shape, amount, on_redis) in sides.items():
            folder = work / f"{name}-{number}"
            folder.mkdir()
            if on_redis:
                server = RedisServer(folder / "redis", cores={1}).start()
                try:
                    found = measure(folder, shape, amount, server.url("groups"))
                finally:
                    server.kill()
            else:
                found = measure(folder, shape, amount)
            outcomes[name].append(found)
            print(
                f"round {number} {name}: {found.groups_per_second:.0f} groups/s,"
                f" {1e3 * found.cpu_seconds_per_group:.2f} ms of CPU each",
                flush=True,
            )
    return outcomes


def _rounds(quick: bool) -> int:
    return 1 if quick else ROUNDS


def _rows(name: str, found: Sequence[Outcome], goal: float | None) -> list[Row]:
    milliseconds = 1e3 * _median(found, "cpu_seconds_per_group")
    return [
        Row(name, _median(found, "groups_per_second"), "groups/s", goal, True),
        Row(f"{name}_cpu_of_a_group", milliseconds, "ms", None, False),
    ]


def _median(found: Sequence[Outcome], field: str) -> float:
    return statistics.median(getattr(one, field) for one in found)
