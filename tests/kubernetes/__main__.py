"""`python -m tests.kubernetes [STEP...]`: the chart on the cluster of KUBECONFIG, step by step.

The cluster should be one of your own: a node of it is given NPUs that are numbers alone, and takes a
namespace, which is deleted at the end. Ends with 1 when a step fails, with 2 where something lacks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.compose.__main__ import commit, seconds
from tests.kubernetes.release import Release
from tests.kubernetes.steps import STEPS
from tests.kubernetes.tools import HOW, TOOLS, find

FILE = Path(__file__).with_name("results.json")


def main(names: list[str]) -> int:
    missing = [f"{tool} is missing: {HOW}" for tool in TOOLS if not find(tool)]
    if "KUBECONFIG" not in os.environ:
        missing.append("KUBECONFIG names no cluster; give one of your own, such as kind's or k3s'")
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 2
    chosen = [step for step in STEPS if not names or step.__name__ in names]
    results: dict[str, Any] = {"commit": commit(), "date": datetime.now(UTC).date().isoformat()}
    release = Release(f"trimaran-test-{os.getpid()}")
    results["cluster"] = release.version()
    steps: dict[str, Any] = {}
    with release.namespace():
        for step in chosen:
            began, failure = time.monotonic(), ""
            try:
                step(release)
            except Exception as error:  # whatever it is, the others' results are kept
                failure = f"{type(error).__name__}: {error}"
            steps[step.__name__] = {"seconds": seconds(began), "what": step.__doc__}
            print(f"{step.__name__}: {failure or 'good'}, {seconds(began)} s", flush=True)
            if failure:
                steps[step.__name__]["failed"] = failure
                print(release.kubectl("get", "pods,events", "--output=wide"), flush=True)
                break
    if not names:
        FILE.write_text(json.dumps(results | {"steps": steps}, indent=2) + "\n", encoding="utf-8")
    return 1 if any("failed" in step for step in steps.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
