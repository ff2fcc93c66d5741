"""`python -m benchmarks.run [demo] [rollout] [trainer] [attention] [start] [waiting] [colocated] [agents]`: measure, print, write results.

Each bench runs in a process of its own, with the environment that the service itself would get.
`make bench` runs all of them; quiet the machine first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results_file import Row, write_results
from trimaran.run.environment import COMPUTE

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"
TRL_PYTHON = ROOT / ".cache" / "trl" / "bin" / "python"
THREADS = {
    "demo": 1,
    "rollout": 1,
    "trainer": 2,
    "attention": 1,
    "start": 1,
    "waiting": 1,
    "colocated": 1,
    "agents": 1,
}
ROUNDS = {
    "demo": 3,
    "rollout": 5,
    "trainer": 5,
    "attention": 7,
    "start": 3,
    "waiting": 2,
    "colocated": 3,
    "agents": 2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="|".join(THREADS))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.benches) - set(THREADS):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    for bench in arguments.benches or THREADS:
        if arguments.here:
            _measure_here(bench)
        else:
            _measure_in_own_process(bench)


def _measure_in_own_process(bench: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS[bench]), "HF_HUB_OFFLINE": "1"}
    if bench in ("rollout", "trainer", "attention"):
        environment |= COMPUTE
    command = [sys.executable, "-m", "benchmarks.run", bench, "--here"]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)


def _measure_here(bench: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows, method = BENCHES[bench](Path(folder), ROUNDS[bench])
    print(f"{write_results(bench, rows, method).relative_to(ROOT)}:")
    for row in rows:
        goal = f"   goal {'>=' if row.higher_is_better else '<='} {row.goal:g}" if row.goal else ""
        print(f"  {row.name:48} {row.value:10.2f} {row.unit}{goal}")


def _demo(work: Path, rounds: int) -> tuple[Sequence[Row], str]:
    from benchmarks.demo import measure_throughput

    return measure_throughput(MODEL, TRL_PYTHON, work, rounds)


def _rollout(work: Path, rounds: int) -> tuple[Sequence[Row], str]:
    from benchmarks.rollout import measure_rollout

    return measure_rollout(MODEL, rounds)


def _trainer(work: Path, rounds: int) -> tuple[Sequence[Row], str]:
    from benchmarks.trainer import measure_trainer

    return measure_trainer(MODEL, work, rounds)


def _attention(work: Path, rounds: int) -> tuple[Sequence[Row], str]:
    from benchmarks.attention import measure_attention

    return measure_attention(work, rounds)


def _start(work: Path, rounds: int) -> tuple[Sequence[Row], str]:
    from benchmarks.start import measure_start

    return measure_start(work, rounds)


def _waiting(work: Path, rounds: int) -> tuple[Sequence[Row], str]:
    from benchmarks.waiting import measure_waiting

    return measure_waiting(work, rounds)


def _colocated(work: Path, rounds: int) -> tuple[Sequence[Row], str]:
    from benchmarks.colocated import measure_colocated

    return measure_colocated(work, rounds)


def _agents(work: Path, rounds: int) -> tuple[Sequence[Row], str]:
    from benchmarks.agents import measure_agents

    return measure_agents(MODEL, TRL_PYTHON, work, rounds)


BENCHES: dict[str, Callable[[Path, int], tuple[Sequence[Row], str]]] = {
    "demo": _demo,
    "rollout": _rollout,
    "trainer": _trainer,
    "attention": _attention,
    "start": _start,
    "waiting": _waiting,
    "colocated": _colocated,
    "agents": _agents,
}


if __name__ == "__main__":
    main()
