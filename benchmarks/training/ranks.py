"""Two data-parallel ranks, a thread each, against one with one thread."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.file_meeting import FileMeeting
from benchmarks.results_file import Row
from benchmarks.training.work import interleave, make_batch, make_config

GROUPS, GROUP_SIZE, PROMPT, COMPLETION = 4, 8, 128, 128
ROUNDS, QUICK_ROUNDS = 5, 1
SECONDS = 600.0


def measure_ranks(work: Path, quick: bool) -> tuple[list[Row], str]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    seconds = {num: _run(work / f"{num}.json", num, rounds) for num in (1, 2)}
    rows = [
        Row("two_ranks_over_one", seconds[1] / seconds[2], "ratio", None, True),
        *(Row(f"seconds_of_{num}", seconds[num], "s", None, False) for num in seconds),
    ]
    return rows, (
        f"SmolLM2-135M, {GROUPS} x {GROUP_SIZE} of {PROMPT} + {COMPLETION} tokens, a thread a rank, gloo,"
        f" bf16, gradients summed in fp32; medians of {rounds} rounds, one side after the other"
    )


def _run(file: Path, num_ranks: int, rounds: int) -> float:
    command = [sys.executable, "-m", "benchmarks.training.ranks", str(file), str(num_ranks)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(rounds)], stdout=subprocess.PIPE, text=True)
        for rank in range(num_ranks)
    ]
    try:
        deadline = time.monotonic() + SECONDS
        told = [one.communicate(timeout=deadline - time.monotonic())[0] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
    return float(told[0].splitlines()[-1])


def _rank(arguments: Sequence[str]) -> None:
    from services.trainer.backend import build_policy
    from services.trainer.step.learner import train_step
    from trimaran.host.device import pick

    file, num_ranks, rank, rounds = Path(arguments[0]), *map(int, arguments[1:])
    batch = make_batch(PROMPT, [[COMPLETION] * GROUP_SIZE] * GROUPS)
    config = make_config(GROUPS, threads=1, data_parallel=num_ranks)
    meeting: Any = FileMeeting(file)
    policy = build_policy(config, meeting, pick("cpu"), rank)
    seconds = interleave({"step": lambda: train_step(policy, batch, config)}, rounds)
    print(seconds["step"], flush=True)


if __name__ == "__main__":
    _rank(sys.argv[1:])
