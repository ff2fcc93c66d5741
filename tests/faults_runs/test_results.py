"""The file of figures: a piece has its commit, its seed and its day, and stands there once."""

import json
from datetime import date
from pathlib import Path

from tests.faults_runs import results
from tests.faults_runs.drive import Report


def test_a_piece_names_its_day_and_stands_there_once(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    report = Report(7, "sqlite", "abc")
    for seconds in (1.0, 3.0):
        report.recoveries.setdefault("kill manager", []).append(seconds)
        results.add(path, report)
    results.add(path, Report(8, "sqlite", "abc"))
    tree = json.loads(path.read_text())
    assert [piece["seed"] for piece in tree["pieces"]] == [7, 8]
    assert {piece["date"] for piece in tree["pieces"]} == {date.today().isoformat()}
    assert tree["total"] == {"runs": 0, "faults": 2}
