"""Peak memory of a step's forward and backward, by the size of its micro-batches."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.training.work import make_batch, make_config, our_step

SIZES, QUICK_SIZES = (512, 2048, 8192), (512,)
PROMPT, COMPLETION, GROUP_SIZE = 64, 64, 7
GROUPS = 16
"""8,192 packed tokens."""
SECONDS = 900.0


def measure_memory(work: Path, quick: bool) -> tuple[list[Row], str]:
    rows = []
    for size in QUICK_SIZES if quick else SIZES:
        command = [sys.executable, "-m", "benchmarks.training.memory", str(size)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        built, peak = map(float, done.stdout.splitlines()[-1].split())
        rows += [
            Row(f"mib_of_{size}_tokens", peak - built, "MiB", None, False),
            Row(f"mib_of_{size}_tokens_with_all", peak, "MiB", None, False),
        ]
    return rows, (
        "SmolLM2-135M, bf16; resident memory at the peak of two steps, above that of the built policy with"
        " its optimizer's first step still to come, and with everything"
    )


def _measure(size: int) -> None:
    batch = make_batch(PROMPT, [[COMPLETION] * GROUP_SIZE] * GROUPS)
    step = our_step(make_config(GROUPS, micro_batch_tokens=size), batch)
    built, ended, peak = resident_mib(), threading.Event(), [0.0]

    def watch() -> None:
        while not ended.is_set():
            peak[0] = max(peak[0], resident_mib())
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    step()
    step()
    ended.set()
    watcher.join(timeout=10)
    print(built, peak[0])


def resident_mib() -> float:
    """MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


if __name__ == "__main__":
    _measure(int(sys.argv[1]))
