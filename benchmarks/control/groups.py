"""Groups a second through the control path, and how that changes with replicas and with length.

issue -> generate -> score -> consume -> commit, as `one_run` says: the real controller on a core of
its own, its real ledger, payloads and store; stand-ins, which answer at once, on the other core.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.control.one_run import Outcome, Work, measure
from benchmarks.control.stand_ins import Shape
from benchmarks.results_file import Row
from tests.redis_server import RedisServer

GOAL = 500.0
GROUP = Shape(replicas=4, samples=8, tokens=512, chunks=1)
WORK = Work(steps=65, groups_per_step=64)
GROWTH_REPLICAS = (1, 8, 64)
GROWTH_WORK = {
    tokens: Work(steps=steps, groups_per_step=64, warmup=4)
    for tokens, steps in {512: 44, 8192: 14, 32768: 10}.items()
}
"""By the tokens of an answer."""
MANY_WORK = Work(steps=13, groups_per_step=512, warmup=3)
ROUNDS, GROWTH_ROUNDS = 5, 2
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
    outcomes = _interleaved(work, sides, _rounds(quick))
    rows: list[Row] = []
    for name, found in outcomes.items():
        goal = GOAL if name in ("sqlite", "redis") else None
        rows += _rows(f"groups_{name}", found, goal)
    return rows, (
        f"{_rounds(quick)} interleaved rounds of {WORK.steps - WORK.warmup} steps of"
        f" {WORK.groups_per_step} groups of 8 x 512 tokens, max_lag 1; {PLACES}"
    )


def measure_growth(work: Path, quick: bool) -> tuple[list[Row], str]:
    """From 1 to 64 replicas, and to 1,000; answers of 512 to 32,768 tokens."""
    sides = {
        _name(replicas, tokens): (_shape(replicas, tokens), GROWTH_WORK[tokens], False)
        for tokens in GROWTH_WORK
        for replicas in GROWTH_REPLICAS
    }
    sides[_name(1000, 512)] = (_shape(1000, 512), MANY_WORK, False)
    rounds = 1 if quick else GROWTH_ROUNDS
    outcomes = _interleaved(work, sides, rounds)
    rows: list[Row] = []
    for name, found in outcomes.items():
        num_tokens = GROUP.samples * sides[name][0].tokens
        rate = num_tokens * _median(found, "groups_per_second")
        size = _median(found, "ledger_bytes_per_group")
        rows += _rows(name, found, None)
        rows.append(Row(f"{name}_tokens", rate, "tokens/s", None, True))
        rows.append(Row(f"{name}_ledger_of_a_group", size, "bytes", None, False))
    return [*rows, *_linearity(outcomes)], (
        f"{rounds} interleaved rounds; groups of {GROUP.samples}, a chunk each 512 tokens; SQLite; {PLACES}"
    )


def _linearity(outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[Row]:
    """A group's cost with 64 replicas over that with 1; that of answers of 8,192 tokens over what a straight line
    from the shortest to the longest says."""
    cpu = {name: _median(found, "cpu_seconds_per_group") for name, found in outcomes.items()}
    for tokens in GROWTH_WORK:
        ratio = cpu[_name(64, tokens)] / cpu[_name(1, tokens)]
        yield Row(f"cpu_of_64_replicas_over_1_at_{tokens}", ratio, "ratio", 1.1, False)
    short, middle, long = GROWTH_WORK
    for replicas in GROWTH_REPLICAS:
        low, found, high = (cpu[_name(replicas, tokens)] for tokens in GROWTH_WORK)
        line = low + (high - low) * (middle - short) / (long - short)
        yield Row(f"cpu_over_a_line_with_{replicas}", found / line, "ratio", 1.1, False)
    size = {name: _median(found, "ledger_bytes_per_group") for name, found in outcomes.items()}
    for name, other in ((_name(1, long), "longest_answers"), (_name(64, short), "64_replicas")):
        ratio = size[name] / size[_name(1, short)]
        yield Row(f"ledger_of_a_group_with_{other}", ratio, "ratio", 1.1, False)


def _name(replicas: int, tokens: int) -> str:
    return f"replicas_{replicas}_tokens_{tokens}"


def _shape(replicas: int, tokens: int) -> Shape:
    return Shape(replicas, GROUP.samples, tokens, tokens // 512)


def _interleaved(
    work: Path, sides: Mapping[str, tuple[Shape, Work, bool]], rounds: int
) -> dict[str, list[Outcome]]:
    outcomes: dict[str, list[Outcome]] = {name: [] for name in sides}
    for number in range(rounds):
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
