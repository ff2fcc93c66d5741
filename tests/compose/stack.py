"""The compose project of one test: its variables, and what is asked of its run."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.compose.engine import which
from tests.compose.images import ROOT

COMMAND_SECONDS = 300
POLL_SECONDS = 1.0
FETCH = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
"""


class Late(Exception):
    """Something did not come within its time."""


class Stack:
    """Example: Stack(environment).compose("up", "--detach")"""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    def compose(self, *arguments: str) -> str:
        """What it prints. Raises RuntimeError with its last lines."""
        return self._run([str(which("docker-compose")), *arguments])

    def docker(self, *arguments: str) -> str:
        return self._run(["/usr/bin/docker", *arguments])

    def containers(self, service: str) -> list[str]:
        """Ids of those that run or have ended, in the order of their numbers."""
        return self.compose("ps", "--all", "--quiet", service).split()

    def inspect(self, container: str) -> dict[str, Any]:
        return json.loads(self.docker("inspect", container))[0]

    def health(self, service: str) -> set[str]:
        states = [self.inspect(container)["State"] for container in self.containers(service)]
        return {state.get("Health", {}).get("Status", state["Status"]) for state in states}

    def run(self) -> dict[str, Any]:
        """The newest run, as `trimaran show --json` reports it; empty where there is none yet."""
        try:
            shown = self.compose("exec", "-T", "manager", "trimaran", "show", "latest", "--json")
        except RuntimeError:
            return {}
        return json.loads(shown)

    def runs(self) -> list[dict[str, Any]]:
        """All of them, the newest first."""
        return json.loads(self.compose("exec", "-T", "manager", "trimaran", "list", "--json"))

    def submit(self, *words: str) -> None:
        """Another run, from the manager's container."""
        self.compose("exec", "-T", "manager", "trimaran", "submit", *words)

    def answering(self) -> set[str]:
        """Those of the run's processes that Prometheus gets numbers from."""
        found = self.query('up{job="trimaran"}==1')
        return {series["metric"]["process"] for series in found}

    def query(self, promql: str) -> list[dict[str, Any]]:
        """What Prometheus says now."""
        answer = self.fetch(f"http://prometheus:9090/api/v1/query?query={promql}")
        return json.loads(answer)["data"]["result"]

    def fetch(self, url: str) -> str:
        """From within the manager's container."""
        return self.compose("exec", "-T", "manager", "python", "-c", FETCH, url)

    def wait_for(self, what: str, holds: Callable[[], bool], seconds: float) -> None:
        """Raises Late."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise Late(f"{what}: not within {seconds:g} s; the run: {self.run()}")
            time.sleep(POLL_SECONDS)

    def wait_for_steps(self, count: int, seconds: float) -> None:
        """So many more than now, or the run's end."""
        before = self.run().get("step", 0)

        def is_further() -> bool:
            run = self.run()
            return run.get("step", 0) >= before + count or run.get("state") == "succeeded"

        self.wait_for(f"{count} more steps than {before}", is_further, seconds)

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-2000:]}")
        return done.stdout


@contextmanager
def stack(environment: Mapping[str, str]) -> Iterator[Stack]:
    """Taken down at the end, with its volumes."""
    one = Stack(environment)
    try:
        yield one
    finally:
        one.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


def left_behind(environment: Mapping[str, str]) -> list[str]:
    """What `down` should have removed: containers, networks, volumes and processes."""
    one = Stack(environment)
    found = one.docker("ps", "--all", "--format", "container {{.Names}}").splitlines()
    found += one.docker("volume", "ls", "--format", "volume {{.Name}}").splitlines()
    networks = one.docker("network", "ls", "--format", "{{.Name}}").split()
    found += [f"network {name}" for name in networks if name not in ("bridge", "host", "none")]
    return found + [f"process {pid}" for pid in _shims(environment["DOCKER_HOST"])]


def _shims(host: str) -> list[str]:
    """Processes that hold a container of this engine."""
    folder = os.path.dirname(host.removeprefix("unix://")).encode()
    found: list[str] = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:  # it has just ended
            continue
        if words[0].endswith(b"containerd-shim-runc-v2") and any(folder in word for word in words):
            found.append(pid)
    return found
