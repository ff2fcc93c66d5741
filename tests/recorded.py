"""The tables of docs/deploy.md that hold what `make test-cluster` and `make test-compose` saw last:

python -m tests.recorded
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FAULTS = {
    "a replica is killed": "a replica",
    "the trainer is killed": "the trainer",
    "a replica's actor is killed": "a replica's actor",
    "the trainer's actor is killed": "the trainer's actor",
    "the launcher is killed": "the launcher",
    "the manager and the launcher are killed": "the manager and the launcher",
    "the head and a replica are killed": "the head (gone for 5 s) and a replica",
    "the trainer's raylet is killed": (
        "the raylet of the trainer's node (gone for 15 s), which had a replica, too"
    ),
    "a replica's raylet is killed": "a replica's raylet (gone for 15 s)",
    "the trainer's raylet is frozen": (
        "nothing: the raylet of the trainer's node was frozen for 60 s"
    ),
    "a replica's node says that it leaves": (
        "nothing: a node with two replicas said that it leaves (`ray drain-node`, with the seconds that"
        " this command takes), after another one had come"
    ),
}
"""By the name in tests/cluster/results.json."""
MOVED = "the manager moves to another node"
ACTIONS = {
    ("up",): "`up`, until every service is healthy and the run is under way",
    ("scale",): "`--scale rollout=4`, until four replicas are in the run and a step was trained",
    ("kill",): (
        "a replica, the reward service, the trainer and the controller killed, one after another"
    ),
    ("pause",): "a replica paused (`docker pause`), a step, unpaused, healthy",
    ("disconnect",): (
        "a replica cut off (`docker network disconnect`) for 20 s and a step, connected, healthy"
    ),
    ("drain",): "a replica stopped (`docker stop`): exit code 0, a step",
    ("queues", "ends"): (
        "a second run submitted, the end of the first, and of the second after two steps"
    ),
    ("down",): "`down --volumes`: no container, network, volume or process is left",
}
"""By steps of tests/compose/results.json."""
IN_ALL = (("kill",), ("queues", "ends"))


def results(name: str) -> dict[str, Any]:
    """Example: results("cluster")["ray"]"""
    return json.loads((HERE / name / "results.json").read_text())


def cluster_rows(seen: Mapping[str, Any]) -> Iterator[str]:
    """Of what was killed, by SIGKILL, or done."""
    for name, reported in FAULTS.items():
        cells = (reported, *(_seconds(seen[name][key]) for key in ("noted", "answers", "steps")))
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")
    yield (
        "| the manager, and another was started on another node: it had the metrics of all processes"
        f" after {_seconds(seen[MOVED]['seconds'])} s, and none of them had ended | | | |"
    )


def compose_rows(seen: Mapping[str, Any]) -> Iterator[str]:
    """Of what was done."""
    for steps, reported in ACTIONS.items():
        seconds = _seconds(sum(seen["steps"][step]["seconds"] for step in steps))
        yield f"| {reported} | {seconds}{' in all' * (steps in IN_ALL)} |"


def _seconds(number: float | None) -> str:
    """Example: _seconds(1121.0) == "1,121" """
    if number is None:
        return ""
    return f"{number:.1f}" if number < 5 else f"{number:,.0f}"


if __name__ == "__main__":
    print(*cluster_rows(results("cluster")), "", *compose_rows(results("compose")), sep="\n")
