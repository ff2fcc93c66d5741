"""A newborn is what a process that was executed would be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, os, subprocess, sys
from tests.faults_runs import born

def live(arguments):
    shown = open("/proc/self/cmdline").read().split("\\0")
    print(json.dumps({
        "arguments": arguments, "shown": shown[-4:], "parent": os.getppid(), "pid": os.getpid(),
        "session": os.getsid(0), "folder": os.getcwd(), "open": os.listdir("/proc/self/fd"),
        "environment": open("/proc/self/environ").read().split("\\0")[:2],
        "own": dict(os.environ),
    }))
    sys.exit(7)

if born.ROOM_VARIABLE not in os.environ:
    born.execute_with_room([__file__], dict(os.environ))
born.bear_from(born.split_off(live))
environment = {"ONE": "1", born.NOTES: os.environ[born.NOTES]}
child = subprocess.Popen(
    [*born.COMMAND, "serve", "x"], stdout=subprocess.PIPE, env=environment, cwd="/",
    start_new_session=True,
)
found = json.loads(child.communicate()[0])
code = subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode  # another program
print(json.dumps(found | {"code": child.returncode, "asker": os.getpid(), "other": code}))
"""


def test_a_newborn_is_a_child_with_all_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRIMARAN_FAULTS_NOTES": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["code"] == 7 and found["other"] == 3
    assert found["parent"] == found["asker"]
    assert found["session"] == found["pid"]
    assert found["folder"] == "/"
    assert found["arguments"] == ["serve", "x"]
    assert found["shown"] == ["commands.cli", "serve", "x", ""]
    assert found["environment"] == ["ONE=1", f"TRIMARAN_FAULTS_NOTES={tmp_path}"]
    assert found["own"] == {"ONE": "1", "TRIMARAN_FAULTS_NOTES": str(tmp_path)}
    assert len(found["open"]) == 4  # its streams, and what lists them
    note = json.loads((tmp_path / str(found["pid"])).read_text())
    assert note["arguments"] == ["serve", "x"]
