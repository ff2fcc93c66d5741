"""A container engine of our own: dockerd with its own folder and socket, started and ended here.

It runs in a network namespace that has no way out, so that its bridges and rules touch nothing of
this machine. Images are built by an engine without a bridge in the machine's own network, because
packages have to be fetched; it makes no interface and no rule.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 60.0
BRIDGE = "172.31.250.1/24"
FOR_BUILDS = ("--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false")
NEEDED = {
    "dockerd": "Debian's docker.io, with --no-install-recommends",
    "/usr/bin/docker": "Debian's docker.io, with --no-install-recommends",
    "docker-compose": "compose v2: its binary on the path, under this name",
    "iptables": "Debian's iptables",
    "ip": "Debian's iproute2",
    "nsenter": "Debian's util-linux",
    "mmdebstrap": "Debian's mmdebstrap",
}


def check_tools() -> None:
    """Ends the program with a line a tool that is missing."""
    missing = [
        f"{tool} is missing: install {how}" for tool, how in NEEDED.items() if not which(tool)
    ]
    if os.geteuid() != 0:
        missing.append("this starts a container engine and a network namespace: run it as root")
    if missing:
        print("\n".join(missing), file=sys.stderr)
        sys.exit(2)


def which(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@contextmanager
def namespace(name: str) -> Iterator[str]:
    """A network namespace with a loopback interface alone."""
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _run("ip", "netns", "delete", name)


@contextmanager
def engine(
    folder: Path, in_namespace: str = "", options: Sequence[str] = FOR_BUILDS
) -> Iterator[dict[str, str]]:
    """The environment for docker and compose. With neither namespace nor options it is for builds alone."""
    folder.mkdir(parents=True, exist_ok=True)
    socket = folder / "socket"
    command = [
        str(which("dockerd")),
        "--host",
        f"unix://{socket}",
        "--pidfile",
        str(folder / "pid"),
    ]
    command += ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    if in_namespace:
        # `ip netns exec` would hide the control groups.
        inside = ["nsenter", f"--net=/run/netns/{in_namespace}"]
        command = [*inside, *command, "--bip", BRIDGE]
    else:
        command += options
    environment = os.environ | {"DOCKER_HOST": f"unix://{socket}", "DOCKER_BUILDKIT": "1"}
    with (folder / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_ready(daemon, environment, folder / "dockerd.log")
        yield environment
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()


def _wait_until_ready(
    daemon: subprocess.Popen[bytes], environment: dict[str, str], log: Path
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and daemon.poll() is None:
        asked = subprocess.run(["/usr/bin/docker", "version"], env=environment, capture_output=True)
        if asked.returncode == 0:
            return
        time.sleep(0.2)
    raise SystemExit(f"dockerd did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60)
