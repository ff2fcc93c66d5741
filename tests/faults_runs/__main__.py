"""`python -m tests.faults_runs`: see `drive.py`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.faults_runs import born
from tests.marked import MARK

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "CUDA_VISIBLE_DEVICES": "",
}

if __name__ == "__main__":
    if MARK not in os.environ:
        mark = tempfile.mkdtemp(prefix="trimaran-faults-runs-")
        environment = {**os.environ, **ENVIRONMENT, MARK: mark}
        born.execute_with_room(["-m", "tests.faults_runs", *sys.argv[1:]], environment)
    sys.argv.pop()
    from tests.faults_runs import entry

    entry.preload()
    # Before there is a second thread.
    born.bear_from(born.split_off(entry.live))
    from tests.faults_runs.drive import main

    sys.exit(main(Path(os.environ[MARK])))
