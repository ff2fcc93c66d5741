"""The images of the test: those that tests.compose builds, in its engine, and a few small ones."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.inputs import write_inputs
from tests.compose.__main__ import FOLDER as ENGINE
from tests.compose.engine import engine
from tests.compose.images import BASE, ROOT, build, variables

NAME = "trimaran-test/kubernetes"
"""Of the chart's images, in values.yaml."""
PAUSE = "trimaran-test/pause"
KINDS = ("control", "rollout", "trainer")
VERSION, NEXT = "0.1.0", "0.1.0-next"
"""The chart's own version, and that of what an upgrade installs. The images are the same: that it goes is the point."""


def build_all() -> None:
    """What has not changed comes from the engine's cache."""
    with engine(ENGINE) as environment, tempfile.TemporaryDirectory() as scratch:
        build(ENGINE, environment | variables(), KINDS)
        ours = variables()["IMAGE"]
        context = Path(scratch) / "context"
        write_inputs(context)
        shutil.copy(ROOT / "examples/reward_plugin/brevity.py", context)
        for target, tag in (("pause", PAUSE), ("demo", f"{NAME}-demo:{VERSION}-cpu")):
            given = {"BASE": BASE, "CONTROL": f"{ours}-control:cpu"}
            arguments = [f"--build-arg={name}={image}" for name, image in given.items()]
            file = Path(__file__).with_name("Containerfile")
            where = [f"--file={file}", f"--target={target}", f"--tag={tag}", str(context)]
            _docker(environment, "build", "--quiet", *arguments, *where)
        for kind in KINDS:
            _docker(environment, "tag", f"{ours}-{kind}:cpu", f"{NAME}-{kind}:{VERSION}-cpu")
        for kind in (*KINDS, "demo"):
            _docker(environment, "tag", f"{NAME}-{kind}:{VERSION}-cpu", f"{NAME}-{kind}:{NEXT}-cpu")


def _docker(environment: Mapping[str, str], *words: str) -> None:
    command = ["/usr/bin/docker", *words]
    subprocess.run(command, env=dict(environment), check=True, timeout=300, capture_output=True)
