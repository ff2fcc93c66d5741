"""Runs the parts of a benchmark: `python -m benchmarks.NAME [--only PART,…] [--quick]`.

Each part runs in a process of its own and writes `benchmarks/results/<prefix>_<part>.json`. Quiet the
machine first. `--quick` does less of everything, prints the figures and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.results_file import RESULTS, write_results
from trimaran.run.environment import COMMON

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Parts:
    """Example: Parts("benchmarks.reward", "reward", {"leak": "leak:measure_leak"}, 1800.0).main()"""

    package: str
    prefix: str
    """Of the result files."""
    functions: Mapping[str, str]
    """Part -> module and function `(work folder, quick) -> (rows, method)`."""
    seconds: float
    """No part may take longer."""

    def main(self) -> None:
        parser = argparse.ArgumentParser(prog=f"python -m {self.package}", description=__doc__)
        names = ",".join(self.functions)
        parser.add_argument("--only", metavar=names, help="some parts instead of all")
        parser.add_argument(
            "--quick", action="store_true", help="less of everything; writes nothing"
        )
        parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
        arguments = parser.parse_args()
        parts = arguments.only.split(",") if arguments.only else list(self.functions)
        if unknown := set(parts) - set(self.functions):
            parser.error(f"no such part: {', '.join(sorted(unknown))}; known: {names}")
        if arguments.here:
            for part in parts:
                self._measure_here(part, arguments.quick)
            return
        failed = [part for part in parts if not self._in_own_process(part, arguments.quick)]
        if not arguments.quick:
            for part in parts:
                if part not in failed:
                    print_result(json.loads(self._result_file(part).read_text(encoding="utf-8")))
        if failed:
            sys.exit(f"failed: {', '.join(failed)}")

    def _in_own_process(self, part: str, quick: bool) -> bool:
        command = [sys.executable, "-m", self.package, "--only", part, "--here"]
        print(f"== {part}", flush=True)
        environment = os.environ | COMMON | {"OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command + ["--quick"] * quick, env=environment, cwd=ROOT, timeout=self.seconds
            )
        except subprocess.TimeoutExpired:
            print(f"{part}: not done within {self.seconds:g} s", flush=True)
            return False
        return done.returncode == 0

    def _measure_here(self, part: str, quick: bool) -> None:
        module, _, function = self.functions[part].partition(":")
        measure = getattr(importlib.import_module(f"{self.package}.{module}"), function)
        with tempfile.TemporaryDirectory() as folder:
            rows, method = measure(Path(folder), quick)
        if quick:
            print_result({"bench": part, "method": method, "rows": [asdict(row) for row in rows]})
        else:
            write_results(f"{self.prefix}_{part}", rows, method)

    def _result_file(self, part: str) -> Path:
        return RESULTS / f"{self.prefix}_{part}.json"


def print_result(result: dict[str, Any]) -> None:
    """Rows, goals and verdicts of one result file."""
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
