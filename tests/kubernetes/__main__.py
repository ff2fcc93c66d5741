"""`python -m tests.kubernetes [STEP...]`: the chart on a cluster, step by step.

On one of its own, with one node, or on that of KUBECONFIG. That should be one of yours: a node of it is
given NPUs that are numbers alone, and it takes a namespace, which is deleted at the end. It needs a
default storage class, and the images of values.yaml.

Prints a line a step and records them in results.json. Ends with 1 when one fails, with 2 where
something lacks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.compose import engine
from tests.compose.__main__ import seconds
from tests.contract_run.results import commit
from tests.kubernetes import images, node, programs
from tests.kubernetes.release import Release
from tests.kubernetes.steps import STEPS
from tests.kubernetes.tools import HOW, TOOLS, find

FILE = Path(__file__).with_name("results.json")


def main(names: list[str]) -> int:
    has_cluster = "KUBECONFIG" in os.environ
    if missing := _missing(has_cluster):
        print("\n".join(missing), file=sys.stderr)
        return 2
    if has_cluster:
        return run_steps(names)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    programs.build()
    images.build_all()
    with tempfile.TemporaryDirectory() as folder:
        return node.run_on_node(Path(folder), sys.executable, "-m", "tests.kubernetes", *names)


def _missing(has_cluster: bool) -> list[str]:
    lines = [f"{tool} is missing: {HOW}" for tool in TOOLS if not find(tool)]
    if has_cluster:
        return lines
    needed = engine.NEEDED | programs.NEEDED
    if not programs.are_built():
        needed |= programs.NEEDED_TO_BUILD
    del needed["docker-compose"]
    lines += [
        f"{tool} is missing: install {how}"
        for tool, how in needed.items()
        if not (engine.which(tool) or Path(tool).is_dir())
    ]
    if os.geteuid() != 0:
        lines.append(
            "this starts a container engine and a node: run it as root, or give KUBECONFIG"
        )
    return lines


def run_steps(names: list[str]) -> int:
    """On the cluster of KUBECONFIG, until one fails."""
    chosen = [step for step in STEPS if not names or step.__name__ in names]
    release = Release(f"trimaran-test-{os.getpid()}")
    results: dict[str, Any] = {"commit": commit(FILE), "date": datetime.now(UTC).date().isoformat()}
    results |= {"kubernetes": release.version(), "steps": {}}
    with release.namespace():
        for step in chosen:
            good = _run_step(step, release, results["steps"])
            if not names:
                FILE.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
            if not good:
                return 1
    return 0


def _run_step(step: Any, release: Release, results: dict[str, Any]) -> bool:
    began, failure, figures = time.monotonic(), "", None
    try:
        figures = step(release)
    except Exception as error:  # whatever it is, the others' results are kept
        failure = f"{type(error).__name__}: {error}"
    result = {"seconds": seconds(began), "what": step.__doc__.strip()} | (figures or {})
    results[step.__name__] = result | ({"failed": failure} if failure else {})
    print(f"{step.__name__}: {failure or 'good'}, {result}", flush=True)
    if failure:
        print(release.why(), flush=True)
    return not failure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
