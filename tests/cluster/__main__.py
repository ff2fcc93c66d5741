"""`python -m tests.cluster [--only NAME]`: runs on a Ray cluster of several hosts.

A head, whose memory is in Redis, and three nodes, each with its own network, disk and processes. A
run goes to its end; then one is harmed in every way that docs/deploy.md names, and nothing helps it.
Needs root, iproute2, util-linux, redis-server and Ray. `results.json` is what came of it last.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cluster.hosts import why_impossible
from tests.cluster.ray_hosts import RayHosts
from tests.cluster.trial import Trial
from tests.contract_run.results import commit

NAMES = ("whole", "harmed")
RESULTS = Path(__file__).with_name("results.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("--only", choices=NAMES, help="and leaves results.json alone")
    options = parser.parse_args()
    why = why_impossible()
    if importlib.util.find_spec("ray") is None:
        why = why or "needs Ray: pip install 'trimaran[ray]'"
    if why:
        print(f"error: {why}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    folder, results = Path(tempfile.mkdtemp()), dict[str, Any]()
    try:
        with RayHosts(folder) as cluster:
            trial = Trial(cluster, folder, results)
            for name in (options.only,) if options.only else NAMES:
                getattr(trial, name)()
        results["all of it"] = "passed"
    finally:
        if not options.only:
            RESULTS.write_text(json.dumps(describe() | results, indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def describe() -> dict[str, Any]:
    import ray  # pyright: ignore[reportMissingImports]

    return {
        "commit": commit(RESULTS),
        "date": time.strftime("%Y-%m-%d"),
        "ray": ray.__version__,
        "unit": "seconds after the fault; all hosts together have the machine's cores",
        "cores": os.cpu_count(),
        "load of the last 15 minutes": round(os.getloadavg()[2], 1),
    }


if __name__ == "__main__":
    sys.exit(main())
