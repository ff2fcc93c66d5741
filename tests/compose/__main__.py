"""`python -m tests.compose [STEP...]`: the compose demo under a real engine, step by step.

Prints a line each and records them in results.json. Ends with status 1 when one fails, and with
status 2 where a tool is missing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.compose.engine import check_tools, engine, namespace
from tests.compose.images import ROOT, build, sizes, variables
from tests.compose.stack import Stack, left_behind, stack
from tests.compose.steps import STEPS
from tests.contract_run.results import commit

FOLDER = ROOT / ".cache/compose"
FILE = Path(__file__).with_name("results.json")
LOG_LINES = "40"


def main(names: list[str]) -> int:
    check_tools()
    chosen = [step for step in STEPS if not names or step.__name__ in names]
    results: dict[str, Any] = {"commit": commit(FILE), "date": datetime.now(UTC).date().isoformat()}
    results["images"] = build_all()
    print(f"images: {results['images']}", flush=True)
    results["steps"] = {}
    with namespace(f"compose-{os.getpid()}") as name, engine(FOLDER, name) as environment:
        good = run_steps(chosen, environment | variables(), results["steps"])
    if not names:
        FILE.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0 if good else 1


def build_all() -> dict[str, Any]:
    began = time.monotonic()
    with engine(FOLDER) as environment:
        build(FOLDER, environment | variables())
        return {"seconds": seconds(began), "megabytes": sizes(environment)}


def run_steps(chosen: list[Any], environment: dict[str, str], results: dict[str, Any]) -> bool:
    """Until one fails; then what the services said last. In each case, what `down` leaves."""
    with stack(environment) as one:
        good = all(run_step(step, one, results) for step in chosen)
        if not good:
            print(one.compose("ps", "--all"), one.compose("logs", "--tail", LOG_LINES), flush=True)
        began = time.monotonic()
    left = left_behind(environment)
    results["down"] = {"seconds": seconds(began), "left behind": left}
    print(f"down: {results['down']}", flush=True)
    return good and not left


def run_step(step: Any, one: Stack, results: dict[str, Any]) -> bool:
    began, failure = time.monotonic(), ""
    try:
        step(one)
    except Exception as error:  # whatever it is, the others' results are kept
        failure = f"{type(error).__name__}: {error}"
    results[step.__name__] = {"seconds": seconds(began), "what": step.__doc__.strip()}
    if failure:
        results[step.__name__]["failed"] = failure
    print(f"{step.__name__}: {failure or 'good'}, {seconds(began)} s", flush=True)
    return not failure


def seconds(began: float) -> float:
    return round(time.monotonic() - began, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
