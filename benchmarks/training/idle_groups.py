"""A trainer's step beside idle Gloo groups of another process, whose threads wake a hundred times a second.

`GROUPS` is how many a run on one machine had while each group had a thread: megatron-core's 18 and those of two vLLM
cores. The other process is stopped and continued from step to step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.training.work import THREADS, interleave, make_batch, make_config, our_step
from trimaran.run.environment import COMPUTE

GROUPS = 44
LENGTHS, PROMPT = [[24] * 8] * 8, 38
ROUNDS, QUICK_ROUNDS = 11, 3
SECONDS = 600.0
IDLE = """
import os, signal, sys, time
import torch.distributed as dist
from trimaran.host.lifetime import die_with_parent
die_with_parent(os.getppid(), signal.SIGKILL)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
groups = [dist.new_group([0]) for _ in range(int(sys.argv[1]) - 1)]
print("made", flush=True)
time.sleep(3600)
"""


def measure_idle_groups(work: Path, quick: bool) -> tuple[list[Row], str]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    # As the trainer's process has it.
    environment = {**os.environ, **COMPUTE, "OMP_NUM_THREADS": str(THREADS)}
    command = [sys.executable, "-m", "benchmarks.training.idle_groups", str(rounds)]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True
    )
    alone, beside = map(float, done.stdout.splitlines()[-1].split())
    rows = [
        Row("beside_over_alone", beside / alone, "ratio", None, False),
        Row("seconds_alone", alone, "s", None, False),
    ]
    return rows, (
        f"SmolLM2-135M, 8 x 8 of {PROMPT} + 24 tokens, two threads, bf16; {GROUPS} idle groups of a rank each;"
        f" medians of {rounds} interleaved rounds"
    )


def _measure(rounds: int) -> None:
    command = [sys.executable, "-c", IDLE, str(GROUPS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as idle:
        try:
            assert idle.stdout and idle.stdout.readline() == "made\n"
            step = our_step(make_config(len(LENGTHS)), make_batch(PROMPT, LENGTHS))

            def beside(order: signal.Signals) -> None:
                idle.send_signal(order)
                step()

            sides = {
                "alone": lambda: beside(signal.SIGSTOP),
                "beside": lambda: beside(signal.SIGCONT),
            }
            seconds = interleave(sides, rounds)
        finally:
            idle.kill()
    print(seconds["alone"], seconds["beside"])


if __name__ == "__main__":
    _measure(int(sys.argv[1]))
