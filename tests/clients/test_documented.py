"""What docs/clients.md shows works as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clients.fake_manager import ThreadedManager, managing
from tests.clients.test_run import TREE

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
README = (ROOT / "README.md").read_text(encoding="utf-8")
[README_SCRIPT] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("script", [SCRIPTS[0], README_SCRIPT], ids=["clients.md", "README.md"])
def test_ten_lines_lead_from_a_file_to_its_numbers(tmp_path: Path, script: str) -> None:
    """With what `make install` brings, and nothing else."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(TREE))
    assert len([line for line in script.splitlines() if line]) <= 10
    with managing() as manager:
        manager.after(0.1, train_when_there, manager)
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={**os.environ, "TRIMARAN_MANAGER": manager.address, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["state 0 ", "step 1 ", "finished 1 ", "step 1 0.25"]


def train_when_there(manager: ThreadedManager) -> None:
    if "run-1" in manager.runs.runs:
        manager.runs.step("run-1", 1, 0.25)
        manager.runs.finish("run-1")
    else:
        manager.after(0.1, train_when_there, manager)


@pytest.mark.e2e
def test_a_users_script_is_checked_by_its_types(tmp_path: Path) -> None:
    """pyright, strict: what is documented is right, and what is wrong is seen."""
    wrong = """
from trimaran import RunClient

with RunClient() as client:
    client.get_run(17)
    client.scale_run("run", 1)
    for event in client.watch_run("run"):
        event.kinds
    client.metrics("run").rows
"""
    for name, text in (("right.py", SCRIPTS[0]), ("asyncio.py", SCRIPTS[1]), ("wrong.py", wrong)):
        (tmp_path / f"my_{name}").write_text(text)
    settings: dict[str, Any] = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [(Path(each["file"]).name, each["range"]["start"]["line"]) for each in found]
    assert sorted({line for name, line in errors if name == "my_wrong.py"}) == [4, 5, 7, 8]
    assert not [each for each in found if Path(each["file"]).name != "my_wrong.py"]
