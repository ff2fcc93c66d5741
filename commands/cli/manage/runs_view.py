"""What the commands say of runs and samples, in words and tables."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from commands.cli.plain import plain
from commands.cli.train.view import format_seconds
from trimaran.run.answers import Checkpoint
from trimaran.run.runs import Run, RunState


def runs_table(runs: Sequence[Run]) -> Iterator[str]:
    """One line for each run, whole however narrow the terminal is: an id that is cut names no run. The
    last column says what keeps a run from going on, or takes long. A column that says nothing of any run is left out."""
    columns = {
        "run": [run.run_id for run in runs],
        "state": [run.state.value for run in runs],
        "step": [f"{run.step}/{run.num_steps}" for run in runs],
        "left": list(map(_left, runs)),
        "reward": [_number(run.reward) for run in runs],
        "held-out": [_number(run.held_out) for run in runs],
        "age": list(map(_age, runs)),
        "replicas": list(map(_replicas, runs)),
        "devices": [str(run.devices or "") for run in runs],
        "priority": [str(run.priority) for run in runs],
        "owner": [run.owner for run in runs],
        "": [plain(" ".join(remark(run).split())) for run in runs],
    }
    table = [(heading, *cells) for heading, cells in columns.items() if any(cells)]
    widths = [max(map(len, column)) for column in table]
    for row in zip(*table, strict=True):
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def remark(run: Run) -> str:
    """What keeps the run from going on, or takes long."""
    if run.state is RunState.QUEUED:
        return run.waiting_for
    return run.error or (f"held: {run.held}" if run.held else run.doing)


def describe_run(run: Run, checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    kept = [f"{each.path} (step {each.step})" for each in checkpoints if each.kept]
    facts = {
        "state": run.state.value,
        "step": f"{run.step} of {run.num_steps}",
        "left": _left(run),
        "reward": _number(run.reward),
        "held-out": _number(run.held_out),
        "why it waits": run.waiting_for if run.state is RunState.QUEUED else "",
        "held": run.held,
        "doing": run.doing,
        "error": run.error,
        "what to do": run.remedy,
        "replicas": _replicas(run),
        "devices": str(run.devices or ""),
        "name": run.name,
        "owner": run.owner,
        "priority": str(run.priority),
        "submitted": _when(run.created_at),
        "started": _when(run.started_at),
        "starts": str(run.starts) if run.starts > 1 else "",
        "ended": _when(run.ended_at),
        "checkpoint": kept[-1] if kept else "",
        "folder": run.folder,
    }
    yield run.run_id
    yield from (f"  {name:<13} {plain(value)}" for name, value in facts.items() if value)


def print_config(config: Mapping[str, Any], as_json: bool) -> int:
    """As YAML that `trimaran submit` takes again, or as JSON."""
    if as_json:
        print(json.dumps(config, indent=2))
    else:
        print(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True), end="")
    return 0


def describe_end(run: Run) -> Iterator[str]:
    """After the last event."""
    yield f"{run.run_id}: {run.state.value} after step {run.step} of {run.num_steps}"
    if run.remedy:
        yield f"what to do: {plain(run.remedy)}"
    if run.folder:
        yield f"run folder: {run.folder}"


def _replicas(run: Run) -> str:
    least, most, granted = run.replicas.min, run.replicas.max, run.replicas.granted
    bounds = str(least) if least == most else f"{least}-{most}"
    return f"{granted} of {bounds}" if most else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _left(run: Run) -> str:
    left = run.seconds_left(time.time())
    return "" if left is None else format_seconds(left)


def _age(run: Run) -> str:
    """The time since the run was submitted, in its largest unit."""
    if not run.created_at:
        return ""
    seconds = max(time.time() - run.created_at, 0.0)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else ""
