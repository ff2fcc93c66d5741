"""What the commands say of runs and samples, in words and tables."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from commands.cli.plain import plain
from trimaran.run.answers import Checkpoint
from trimaran.run.runs import Run, RunState


def runs_table(runs: Sequence[Run]) -> Iterator[str]:
    """One line for each run, whole however narrow the terminal is: an id that is cut names no run. The
    last column says what keeps a run from going on."""
    rows = [("run", "state", "step", "reward", "age", "replicas", "priority", "owner", "")]
    for run in runs:
        step = f"{run.step}/{run.num_steps}"
        reward = "" if run.reward is None else f"{run.reward:.3f}"
        facts = run.run_id, run.state.value, step, reward, _age(run)
        note = plain(" ".join(remark(run).split()))
        rows.append((*facts, _replicas(run), str(run.priority), run.owner, note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def remark(run: Run) -> str:
    """What keeps the run from going on, if anything does."""
    if run.state is RunState.QUEUED:
        return run.waiting_for
    return run.error or (f"held: {run.held}" if run.held else "")


def describe_run(run: Run, checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    kept = [f"{each.path} (step {each.step})" for each in checkpoints if each.kept]
    facts = {
        "state": run.state.value,
        "step": f"{run.step} of {run.num_steps}",
        "reward": "" if run.reward is None else f"{run.reward:.3f}",
        "why it waits": run.waiting_for if run.state is RunState.QUEUED else "",
        "held": run.held,
        "error": run.error,
        "what to do": run.remedy,
        "replicas": _replicas(run),
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
