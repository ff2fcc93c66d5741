"""Seconds from the command to the first finished step: before there was a manager, and now.

The demo with one step and a small validation. Three sides in turn: `trimaran train` as it was at
the commit BEFORE, `trimaran train` now, and `trimaran submit` to a manager that is up.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.start import EXAMPLE, ROOT, check_out, environment, trimaran
from trimaran.run.network import LOOPBACK

BEFORE = "712bf5c"
"""The last commit without a manager."""
SETTINGS = ("run.steps=1", "validation.max_prompts=2", "validation.final_samples=0")
ROUNDS = 5
RUN_SECONDS = 240.0
POLL_SECONDS = 0.05


def measure_start(work: Path, quick: bool) -> tuple[list[Row], str]:
    before = check_out(BEFORE, work / "before")
    rounds = 1 if quick else ROUNDS
    seconds: dict[str, list[float]] = {"train_before": [], "train": [], "submit": []}
    with _manager(work / "managed") as address:
        for number in range(rounds):
            for side, tree in (("train_before", before), ("train", ROOT)):
                folder = work / f"{side}-{number}"
                command = ["train", str(tree / EXAMPLE), *SETTINGS, f"run.folder={folder}"]
                seconds[side].append(_time(tree, command, folder))
            command = ["submit", "--manager", address, str(ROOT / EXAMPLE), *SETTINGS]
            command.append(f"run.name=round-{number}")
            seconds["submit"].append(_time(ROOT, command, work / "managed", f"round-{number}"))
            print(
                f"round {number}: { ({k: round(v[-1], 1) for k, v in seconds.items()}) }",
                flush=True,
            )
    medians = {side: statistics.median(found) for side, found in seconds.items()}
    spread = max(seconds["train_before"]) / min(seconds["train_before"])
    return [
        *(Row(f"{side}_to_first_step", value, "s", None, False) for side, value in medians.items()),
        Row(
            "train_against_before", medians["train"] / medians["train_before"], "ratio", 1.05, False
        ),
        Row(
            "submit_against_before",
            medians["submit"] / medians["train_before"],
            "ratio",
            None,
            False,
        ),
        Row("slowest_against_fastest_before", spread, "ratio", None, False),
    ], (
        f"{rounds} interleaved rounds of the demo with {', '.join(SETTINGS)}; before: {BEFORE}; the"
        " manager was up before the first round"
    )


def _time(tree: Path, arguments: list[str], runs: Path, name: str = "") -> float:
    """Until the first step's row stands; returns when the run has ended."""
    begin = time.time()
    process = subprocess.Popen(trimaran(tree, arguments), cwd=tree, env=environment(tree), stdout=2)
    deadline = time.monotonic() + RUN_SECONDS
    while not (ended := list(runs.glob(f"**/{name}*/summary.json"))):
        if time.monotonic() > deadline or process.poll():
            process.terminate()
            raise RuntimeError(f"{' '.join(arguments)}: no run has ended well; see {runs}")
        time.sleep(POLL_SECONDS)
    process.wait(RUN_SECONDS)
    lines = (ended[0].parent / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return next(row["time"] for row in map(json.loads, lines) if row["kind"] == "step") - begin


@contextmanager
def _manager(folder: Path) -> Iterator[str]:
    """The address of one that is up."""
    folder.mkdir()
    address, http = LOOPBACK.free_address(), LOOPBACK.free_address()
    command = ["up", "--folder", str(folder), "--address", address, "--http", http]
    process = subprocess.Popen(
        trimaran(ROOT, command), cwd=ROOT, env=environment(ROOT), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    try:
        if not any("RunService listens" in line for line in process.stdout):
            raise RuntimeError("the manager did not start")
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(RUN_SECONDS)
