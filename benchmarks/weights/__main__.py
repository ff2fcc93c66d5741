"""`python -m benchmarks.weights [--only stage,pause,…]`: the weight plane's numbers.

Each part runs in a process of its own, with the environment that a service would get, and writes
`benchmarks/results/weights_<part>.json`. `make bench-weights` runs all of them; quiet the machine
first.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.parts import print_result
from benchmarks.results_file import RESULTS, write_results
from benchmarks.weights import published
from trimaran.run.environment import COMMON, COMPUTE

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"
PARTS = {
    "stage": "transfer:measure_stage",
    "same_host": "transfer:measure_same_host",
    "memory": "memory:measure_memory",
    "pause": "commit:measure_pause",
    "after_delta": "commit:measure_after_delta",
    "adapters": "adapters:measure_adapters",
    "proof": "commit:measure_proof",
    "reload": "files:measure_reload",
    "decode": "decode:measure_decode",
    "delta": "delta:measure_delta",
    "control": "control:measure_control",
    "scale": "scale:measure_scale",
}
"""Part -> module and function `(model, work folder) -> (rows, method)`."""
THREADS = {"delta": 2}
PLAIN_MEMORY = ("stage", "same_host", "memory")
"""Without the services' allocator settings: huge pages would be the other side's only, as memory
that two processes can map does not get them here."""
PART_SECONDS = 600
"""No part may take longer; all of them together take about twelve minutes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar=",".join(PARTS), help="some parts instead of all")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    parts = arguments.only.split(",") if arguments.only else list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    if arguments.here:
        for part in parts:
            _measure_here(part)
        return
    failed = [part for part in parts if not _measure_in_own_process(part)]
    _print_table([part for part in parts if part not in failed])
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _measure_in_own_process(part: str) -> bool:
    threads = {"OMP_NUM_THREADS": str(THREADS.get(part, 1))}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.weights", "--only", part, "--here"]
    print(f"== {part}", flush=True)
    settings = {} if part in PLAIN_MEMORY else COMPUTE
    environment = os.environ | COMMON | settings | threads
    try:
        done = subprocess.run(command, env=environment, cwd=ROOT, timeout=PART_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{part}: not done within {PART_SECONDS} s", flush=True)
        return False
    return done.returncode == 0


def _measure_here(part: str) -> None:
    module, _, function = PARTS[part].partition(":")
    measure = getattr(importlib.import_module(f"benchmarks.weights.{module}"), function)
    with tempfile.TemporaryDirectory() as folder:
        rows, method = measure(MODEL, Path(folder))
    write_results(f"weights_{part}", rows, method)


def _print_table(parts: list[str]) -> None:
    for part in parts:
        print_result(json.loads((RESULTS / f"weights_{part}.json").read_text(encoding="utf-8")))
    if "reload" in parts:
        print(published.table())


if __name__ == "__main__":
    main()
