"""The alerts of deploy/prometheus/rules.yaml, and their table for docs/observability.md:

python -m tests.observability.rules
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yaml"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
WHY_SKIPPED = "needs prometheus and promtool: apt-get install --no-install-recommends prometheus"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def table() -> Iterator[str]:
    """Markdown."""
    yield "| alert | severity | for | it means | what to do |"
    yield "|---|---|---|---|---|"
    for alert in alerts():
        reported = alert["annotations"]
        path, _, anchor = reported["runbook"].removeprefix("docs/").partition("#")
        link = f"[{path.removesuffix('.md')}]({path}{'#' + anchor if anchor else ''})"
        wait, severity = alert.get("for", "0m"), alert["labels"]["severity"]
        cells = (
            alert["alert"],
            severity,
            wait,
            reported["meaning"],
            f"{reported['action']} {link}",
        )
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(table()))
