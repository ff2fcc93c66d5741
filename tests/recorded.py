"""The table of docs/deploy.md that holds what `make test-cluster` saw last:

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


def _seconds(number: float | None) -> str:
    """Example: _seconds(1121.0) == "1,121" """
    if number is None:
        return ""
    return f"{number:.1f}" if number < 5 else f"{number:,.0f}"


if __name__ == "__main__":
    print(*cluster_rows(results("cluster")), sep="\n")
