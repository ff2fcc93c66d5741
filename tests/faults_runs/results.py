"""How long recoveries took, by kind of fault; gathered in one file over many runs of the driver."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.faults_runs.drive import Report


def table(recoveries: Mapping[str, Sequence[float]]) -> Iterator[str]:
    for kind, figures in sorted(summary(recoveries).items()):
        yield (
            f"  {figures['n']:4d}  {kind}: median {figures['median']:.1f} s,"
            f" p90 {figures['p90']:.1f} s, max {figures['max']:.1f} s"
        )


def summary(recoveries: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Seconds by kind: median, p90 (nearest rank), max, n."""
    return {
        kind: {
            "median": round(median(seconds), 2),
            "p90": sorted(seconds)[-(-9 * len(seconds) // 10) - 1],
            "max": max(seconds),
            "n": len(seconds),
        }
        for kind, seconds in recoveries.items()
    }


def add(path: Path, report: Report) -> None:
    """Several drivers may do it at once."""
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        tree: dict[str, Any] = json.loads(text) if text else {"pieces": []}
        this = {"commit": report.commit, "seed": report.seed, "store": report.store}
        # Again after each site: what it reported before is in what it reports now.
        tree["pieces"] = [p for p in tree["pieces"] if not this.items() <= p.items()]
        tree["pieces"].append(
            {
                **this,
                "date": date.today().isoformat(),
                "runs": report.num_runs,
                "faults": report.num_faults,
                "steps": report.num_steps,
                "tokens": report.num_tokens,
                "wrong": report.wrong,
                "recoveries": report.recoveries,
            }
        )
        pieces = tree["pieces"]
        all_of: dict[str, list[float]] = {}
        for piece in pieces:
            for kind, seconds in piece["recoveries"].items():
                all_of.setdefault(kind, []).extend(seconds)
        tree["total"] = {key: sum(piece[key] for piece in pieces) for key in ("runs", "faults")}
        tree["seconds"] = summary(all_of)
        file.truncate(0)
        file.write(json.dumps(tree, indent=1, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
