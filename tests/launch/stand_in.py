"""A service that does as it is asked: `stand_in.py WHAT MARK`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from trimaran.host.lifetime import PARENT_VARIABLE, die_with_parent

what, mark = sys.argv[1], Path(sys.argv[2])

if what.startswith("die"):
    print("first words")
    print("error: the engine has no wings", file=sys.stderr)
    sys.exit(int(what.removeprefix("die")))

parent = int(os.environ[PARENT_VARIABLE])
if what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if what == "drains":  # as long as another one is there
    other = Path(f"{mark}-needs")

    def drain(number, frame):
        time.sleep(0.3)
        pid = int(other.read_text())
        Path(f"{mark}-drained").write_text(str(Path(f"/proc/{pid}").exists()))
        sys.exit(0)

    signal.signal(signal.SIGTERM, drain)
if what == "engine":  # starts a process that ignores everything, as an engine's core may
    command = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"
    child = subprocess.Popen([sys.executable, "-c", command])
    Path(f"{mark}-child").write_text(str(child.pid))
die_with_parent(parent, signal.SIGTERM)

mark.with_suffix(".partial").write_text(str(os.getpid()))
mark.with_suffix(".partial").rename(mark)
if what.startswith("finish"):
    while not Path(f"{mark}-may-finish").exists():
        time.sleep(0.02)
    sys.exit(int(what.removeprefix("finish") or 0))
while True:
    time.sleep(3600)
