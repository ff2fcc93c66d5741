"""The unit of a manager: what ends it, and what does not."""

from __future__ import annotations

from pathlib import Path

UNIT = Path(__file__).parents[2] / "deploy/systemd/trimaran.service"


def test_a_run_that_ends_for_lack_of_memory_takes_no_manager_along() -> None:
    """Runs live in the unit's control group. By its default (OOMPolicy=stop) systemd stops the unit when
    the kernel ends any process of that."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    service = lines[lines.index("[Service]") + 1 : lines.index("[Install]")]
    for line in ("OOMPolicy=continue", "KillMode=process", "Restart=always"):
        assert line in service
