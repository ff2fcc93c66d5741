"""One release of the chart in a namespace of its own, and what the tests ask of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kubernetes.tools import find

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/kubernetes"
VALUES = Path(__file__).with_name("values.yaml")
NPU = "huawei.com/Ascend910"
COMMAND_SECONDS = 300
POLL_SECONDS = 1.0


class Release:
    """Example: Release("trimaran-test").helm("install")"""

    def __init__(self, name: str) -> None:
        """`name`: of its namespace."""
        self._name = name

    def helm(self, action: str, *arguments: str) -> str:
        return self._run("helm", action, "demo", *arguments)

    def install(self, action: str, *arguments: str) -> None:
        """`action`: install or upgrade."""
        given = [str(CHART), "--values", str(VALUES), *arguments]
        if self.is_old():  # it has no server-side apply for all that Helm 4 would apply
            given.append("--server-side=false")
        self.helm(action, *given)

    def kubectl(self, *arguments: str) -> str:
        return self._run("kubectl", *arguments)

    def get(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        return json.loads(self.kubectl("get", kind, *arguments, "--output=json"))["items"]

    def version(self) -> str:
        return json.loads(self.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]

    def is_old(self) -> bool:
        return self.version() < "v1.22"

    def pods(self, component: str) -> list[dict[str, Any]]:
        return self.get("pods", f"--selector=app.kubernetes.io/component={component}")

    def phases(self, component: str) -> list[str]:
        return sorted(pod["status"].get("phase", "") for pod in self.pods(component))

    def image(self, component: str) -> set[str]:
        return {pod["spec"]["containers"][0]["image"] for pod in self.pods(component)}

    def give_npus(self, count: int) -> None:
        """To the first node, as a device plugin would: the scheduler counts them."""
        path = "/status/capacity/" + NPU.replace("/", "~1")
        [node, *_] = self.get("nodes")
        patch = json.dumps([{"op": "add", "path": path, "value": str(count)}])
        name = node["metadata"]["name"]
        self.kubectl(
            "patch", "node", name, "--subresource=status", "--type=json", f"--patch={patch}"
        )

    def wait_for(self, what: str, holds: Callable[[], bool], limit: float = 240.0) -> None:
        """Raises TimeoutError."""
        deadline = time.monotonic() + limit
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {limit:g} s")
            time.sleep(POLL_SECONDS)

    @contextmanager
    def namespace(self) -> Iterator[None]:
        """With the release in it; removed at the end, and the NPUs as well."""
        self._run("kubectl", "create", "namespace", self._name)
        try:
            yield
        finally:
            self.give_npus(0)
            self._run("kubectl", "delete", "namespace", self._name, "--timeout=240s")

    def _run(self, tool: str, *arguments: str) -> str:
        """What it prints. Raises RuntimeError with its last lines."""
        command = [str(find(tool)), f"--namespace={self._name}", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-2000:]}")
        return done.stdout
