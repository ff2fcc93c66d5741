"""How long the trainer stands still for a publication, where the next batch waits already.

The real controller with stand-ins, as `one_run` says. The trainer and weight sync take the seconds that
they would take at 70 billion parameters, all divided by SCALE: a step of a minute, and the publication and
the snapshot of docs/weight-plane.md ("Between accelerators"): 7.2 s for the stage, 6 s for the load, up to
1.2 s for the snapshot. Both sides have `max_lag: 1`. One trains the next batch beside the publication, but for
steps with a checkpoint, one in ten as by default. The other saves one after every step, which stand-ins
answer at once: so the trainer waits for each publication.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.control.one_run import Work, measure
from benchmarks.control.stand_ins import Seconds, Shape
from benchmarks.results_file import Row

SCALE = 40
SECONDS = Seconds(train=60 / SCALE, snapshot=1.2 / SCALE, publish=13.2 / SCALE)
GROUPS = Shape(replicas=4, samples=8, tokens=64, chunks=1)
STEPS, WARMUP, GROUPS_PER_STEP = 14, 4, 16
ROUNDS = 3
GOAL = 0.5
SIDES = {"beside": 10, "waits": 1}
"""Steps from one checkpoint to the next."""


def measure_publication(work: Path, quick: bool) -> tuple[list[Row], str]:
    rounds = 1 if quick else ROUNDS
    idle: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side, every in SIDES.items():
            run = Work(STEPS, GROUPS_PER_STEP, warmup=WARMUP, checkpoint_every=every)
            found = measure(work / f"{side}-{number}", GROUPS, run, seconds=SECONDS)
            step_seconds = GROUPS_PER_STEP / found.groups_per_second
            idle[side].append(step_seconds - SECONDS.train)
    beside, waits = (statistics.median(idle[side]) for side in SIDES)
    ratio = statistics.median(a / b for a, b in zip(*idle.values(), strict=True))
    return [
        Row("trainer_idle_against_waiting", ratio, "ratio", GOAL, False),
        Row("trainer_idle_seconds", beside, "s", None, False),
        Row("trainer_idle_seconds_where_it_waits", waits, "s", None, False),
    ], (
        f"{rounds} interleaved rounds of {STEPS - WARMUP} steps with max_lag 1; stand-ins take"
        f" {SECONDS.train:g} s to train, {SECONDS.snapshot:g} s for the snapshot and {SECONDS.publish:g} s"
        f" to publish: 70 billion parameters by the model of docs/weight-plane.md, divided by {SCALE}."
        " Idle: a step without the time in which the trainer trains"
    )
