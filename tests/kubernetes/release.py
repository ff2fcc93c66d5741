"""One release of the chart in a namespace of its own, and what the tests ask of it and its run."""

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
VALUES = (CHART / "cpu.yaml", Path(__file__).with_name("values.yaml"))
NAME = "demo"
NPU = "huawei.com/Ascend910"
COMMAND_SECONDS = 300
POLL_SECONDS = 0.5
LOG_LINES = 30


class Release:
    """Example: Release("trimaran-test").install("install")"""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def helm(self, action: str, *arguments: str) -> str:
        return self._run("helm", action, NAME, *arguments)

    def install(self, action: str, *arguments: str) -> None:
        """`action`: install or upgrade."""
        given = [str(CHART), *(f"--values={path}" for path in VALUES), *arguments]
        if self.version() < "v1.22":  # it cannot apply at the server all that Helm 4 would
            given.append("--server-side=false")
        self.helm(action, *given)

    def kubectl(self, *arguments: str) -> str:
        return self._run("kubectl", *arguments)

    def get(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        return json.loads(self.kubectl("get", kind, *arguments, "--output=json"))["items"]

    def version(self) -> str:
        return json.loads(self.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]

    def pods(self, component: str) -> list[dict[str, Any]]:
        return self.get("pods", f"--selector=app.kubernetes.io/component={component}")

    def phases(self, component: str) -> list[str]:
        return sorted(pod["status"].get("phase", "") for pod in self.pods(component))

    def images(self, component: str) -> set[str]:
        return {pod["spec"]["containers"][0]["image"] for pod in self.pods(component)}

    def is_ready(self, component: str, count: int = 1) -> bool:
        """So many pods of it, and each is ready."""
        pods = self.pods(component)
        return len(pods) == count and all(map(_is_ready, pods))

    def trimaran(self, *words: str) -> str:
        """In the manager's pod, as the chart's notes do it."""
        return self.kubectl("exec", f"deployment/{NAME}-manager", "--", "trimaran", *words)

    def run(self) -> dict[str, Any]:
        """The newest run; empty while nothing is said about it."""
        try:
            return json.loads(self.trimaran("show", "latest", "--json"))
        except RuntimeError:
            return {}

    def give_npus(self, count: int) -> None:
        """To the first node, as a device plugin would: the scheduler counts them."""
        path = "/status/capacity/" + NPU.replace("/", "~1")
        [node, *_] = self.get("nodes")
        patch = json.dumps([{"op": "add", "path": path, "value": str(count)}])
        name = node["metadata"]["name"]
        self.kubectl(
            "patch", "node", name, "--subresource=status", "--type=json", f"--patch={patch}"
        )

    def wait_for(self, what: str, holds: Callable[[], bool], limit: float = 300.0) -> float:
        """How many seconds it took. Raises TimeoutError."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() > began + limit:
                raise TimeoutError(f"{what}: not within {limit:g} s; the run: {self.run()}")
            time.sleep(POLL_SECONDS)
        return round(time.monotonic() - began, 1)

    def wait_for_steps(self, count: int = 1) -> float:
        """So many more than now. How many seconds it took. Raises TimeoutError."""
        answered = self.wait_for("a word of the run", lambda: bool(self.run()))
        before = self.run().get("step", 0)
        made = self.wait_for(
            f"{count} more steps than {before}", lambda: self.run().get("step", 0) >= before + count
        )
        return round(answered + made, 1)

    def why(self) -> str:
        """What there is to read where a step has failed."""
        said = [self.kubectl("get", "pods,events", "--output=wide")]
        for pod in self.get("pods"):
            name = pod["metadata"]["name"]
            said.append(f"--- {name}\n" + self._log(name))
        return "\n".join(said)

    def _log(self, pod: str) -> str:
        try:
            return self.kubectl("logs", pod, f"--tail={LOG_LINES}")
        except RuntimeError as error:
            return str(error)

    @contextmanager
    def namespace(self) -> Iterator[None]:
        """With the release in it; removed at the end, and the NPUs as well."""
        self._run("kubectl", "create", "namespace", self._namespace)
        try:
            yield
        finally:
            self.give_npus(0)
            self._run("kubectl", "delete", "namespace", self._namespace, "--timeout=240s")

    def _run(self, tool: str, *arguments: str) -> str:
        """What it prints. Raises RuntimeError with its last lines."""
        command = [str(find(tool)), f"--namespace={self._namespace}", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-2000:]}")
        return done.stdout


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = {"type": "Ready", "status": "True"}.items()
    return "deletionTimestamp" not in pod["metadata"] and any(
        ready <= condition.items() for condition in conditions
    )
