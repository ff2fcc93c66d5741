"""Turns of episodes a second through the control path.

open -> (generate -> step) x turns -> close, for each episode of a group, then score -> consume -> commit: the
real controller on a core of its own, stand-ins on the other one, as in `groups`.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.control.one_run import Outcome, Work, measure
from benchmarks.control.stand_ins import Shape
from benchmarks.results_file import Row

GOAL = 300.0
EPISODES = {
    "4_turns_of_64": Shape(replicas=4, samples=8, tokens=64, chunks=1, turns=4),
    "16_turns_of_512": Shape(replicas=4, samples=8, tokens=512, chunks=1, turns=16),
}
WORK = Work(steps=12, groups_per_step=8, warmup=4)
ROUNDS = 5


def measure_turns(work: Path, quick: bool) -> tuple[list[Row], str]:
    found: dict[str, list[Outcome]] = {name: [] for name in EPISODES}
    rounds = 1 if quick else ROUNDS
    for number in range(rounds):
        for name, shape in EPISODES.items():
            folder = work / f"{name}-{number}"
            folder.mkdir()
            found[name].append(measure(folder, shape, WORK))
            turns = shape.turns * shape.samples
            one = found[name][-1]
            print(
                f"round {number} {name}: {turns * one.groups_per_second:.0f} turns/s,"
                f" {1e3 * one.cpu_seconds_per_group / turns:.2f} ms of CPU each",
                flush=True,
            )
    rows: list[Row] = []
    for name, outcomes in found.items():
        turns = EPISODES[name].turns * EPISODES[name].samples
        pace = turns * statistics.median(one.groups_per_second for one in outcomes)
        cost = 1e3 / turns * statistics.median(one.cpu_seconds_per_group for one in outcomes)
        rows.append(Row(f"turns_{name}", pace, "turns/s", GOAL, True))
        rows.append(Row(f"turns_{name}_cpu_of_a_turn", cost, "ms", None, False))
    return rows, (
        f"{rounds} interleaved rounds of {WORK.steps - WORK.warmup} steps of {WORK.groups_per_step}"
        " groups of 8 episodes, max_lag 1; controller on core 0, stand-ins on core 1"
    )
