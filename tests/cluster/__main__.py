"""`python -m tests.cluster [--only NAME] [--results FILE]`: runs on a Ray cluster of several hosts.

A head, whose memory is in Redis, and three nodes, each with its own network, disk and processes. A
run goes to its end; then one is harmed in every way that docs/deploy.md names, and nobody helps it.
Needs root, iproute2, util-linux, redis-server and Ray.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cluster.hosts import why_impossible
from tests.cluster.ray_hosts import ROOT, RayHosts
from tests.cluster.trial import Trial

NAMES = ("whole", "harmed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--keep", action="store_true", help="the hosts' disks, to look at")
    options = parser.parse_args()
    why = why_impossible()
    if importlib.util.find_spec("ray") is None:
        why = why or "needs Ray: pip install 'trimaran[ray]'"
    if why:
        print(f"error: {why}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp())
    try:
        with RayHosts(folder) as cluster:
            trial = Trial(cluster, folder)
            for name in (options.only,) if options.only else NAMES:
                getattr(trial, name)()
    finally:
        if options.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
    if options.results:
        options.results.write_text(json.dumps(describe() | trial.results, indent=1) + "\n")
    return 0


def describe() -> dict[str, Any]:
    import ray  # pyright: ignore[reportMissingImports]

    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "ray": ray.__version__,
        "unit": "seconds after the fault; all hosts together have two cores",
    }


if __name__ == "__main__":
    sys.exit(main())
