"""benchmarks/results/<bench>.json: rows of figures, with the commit and the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
RESULTS_IN_GIT = "benchmarks/results"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    goal: float | None
    higher_is_better: bool


def write_results(bench: str, rows: Sequence[Row], method: str) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{bench}.json"
    tree = {
        "bench": bench,
        "method": method,
        "commit": _commit(),
        "machine": _machine(),
        "rows": [{**asdict(row), "value": round(row.value, 4)} for row in rows],
    }
    path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    return path


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()

    # A part that was measured before has changed its result file, which is no edit of what is measured.
    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", ":/", f":!/{RESULTS_IN_GIT}"
    )
    return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")


def _machine() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = models[0] if models else platform.machine()
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {model}"
