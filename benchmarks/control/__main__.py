"""`python -m benchmarks.control [--only groups,…] [--quick]`: what the control path costs.

Each part runs in a process of its own and writes `benchmarks/results/control_<part>.json`.
`make bench-control` runs all of them; quiet the machine first. `--quick` does less of everything,
prints the figures and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.results_file import RESULTS, write_results
from trimaran.launch.environment import COMMON

ROOT = Path(__file__).parents[2]
PARTS = {
    "groups": "groups:measure_groups",
    "growth": "groups:measure_growth",
    "memory": "memory:measure_memory",
    "watchers": "watchers:measure_watchers",
    "store": "store:measure_store",
    "start": "start:measure_start",
    "idle": "idle:measure_idle",
}
"""Part -> module and function `(work folder, quick) -> (rows, method)`."""
PART_SECONDS = 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar=",".join(PARTS), help="some parts instead of all")
    parser.add_argument("--quick", action="store_true", help="less of everything; writes nothing")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    parts = arguments.only.split(",") if arguments.only else list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    if arguments.here:
        for part in parts:
            _measure_here(part, arguments.quick)
        return
    failed = [part for part in parts if not _measure_in_own_process(part, arguments.quick)]
    if not arguments.quick:
        for part in parts:
            if part not in failed:
                _print_result(json.loads(_result_file(part).read_text(encoding="utf-8")))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _measure_in_own_process(part: str, quick: bool) -> bool:
    command = [sys.executable, "-m", "benchmarks.control", "--only", part, "--here"]
    print(f"== {part}", flush=True)
    environment = os.environ | COMMON | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command + ["--quick"] * quick, env=environment, cwd=ROOT, timeout=PART_SECONDS
        )
    except subprocess.TimeoutExpired:
        print(f"{part}: not done within {PART_SECONDS} s", flush=True)
        return False
    return done.returncode == 0


def _measure_here(part: str, quick: bool) -> None:
    module, _, function = PARTS[part].partition(":")
    measure = getattr(importlib.import_module(f"benchmarks.control.{module}"), function)
    with tempfile.TemporaryDirectory() as folder:
        rows, method = measure(Path(folder), quick)
    if quick:
        _print_result({"bench": part, "method": method, "rows": [asdict(row) for row in rows]})
    else:
        write_results(f"control_{part}", rows, method)


def _result_file(part: str) -> Path:
    return RESULTS / f"control_{part}.json"


def _print_result(result: dict[str, Any]) -> None:
    print(f"\n{result['bench']} ({result['method']})")
    for row in result["rows"]:
        goal, verdict = _judge(row)
        print(f"  {row['name']:60}{row['value']:12.4g}  {row['unit']:<12}{goal:>10}  {verdict}")


def _judge(row: dict[str, Any]) -> tuple[str, str]:
    value, goal, higher = row["value"], row["goal"], row["higher_is_better"]
    if goal is None:
        return "", "reported"
    met = value >= goal if higher else value <= goal
    return f"{'>=' if higher else '<='} {goal:g}", "met" if met else "MISSED"


if __name__ == "__main__":
    main()
