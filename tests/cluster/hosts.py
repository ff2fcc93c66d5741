"""Hosts on one machine: each has its own network, processes, host name, disk and shared memory.

A switch (a bridge in a network namespace of its own) joins them. Nothing touches the machine's own
interfaces. A host is the process that holds its namespaces: when it is killed, everything on the
host dies with it, as when the power fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

NAMESPACES = (
    "--net",
    "--mount",
    "--pid",
    "--uts",
    "--ipc",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
START_SECONDS = 10.0
SUBNET = "10.77.0"
SHARED_MEMORY = "512m"
DISK = Path("/srv")
"""Where each host has its own files; what lies elsewhere is the machine's, for all to read."""


def why_impossible() -> str:
    """Empty where hosts can be made."""
    missing = [
        name for name in ("ip", "unshare", "nsenter", "setpriv") if shutil.which(name) is None
    ]
    if missing:
        return f"needs {', '.join(missing)}: Debian's packages iproute2 and util-linux bring them"
    if os.geteuid() != 0:
        return "needs root: namespaces with addresses of their own"
    return ""


class Host:
    """Example: Network().host("node1").start("redis-server", "--port", "6379")"""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address = name, address
        self.folder = folder
        """What lies at DISK on this host, and at DISK on no other."""
        self._holder = _hold(*NAMESPACES)
        self._sh(f"mount --bind {folder} {DISK}")
        self._sh(f"mount -t tmpfs -o size={SHARED_MEMORY} tmpfs /dev/shm")
        self._sh(f"hostname {name}; ip link set lo up")

    @property
    def pid(self) -> int:
        """Of the process that holds its namespaces, as the machine sees it."""
        return self._holder.pid

    @property
    def subnet(self) -> str:
        return f"{SUBNET}.0/24"

    def command(self, *words: str | Path) -> list[str]:
        """What runs `words` on this host."""
        child = _only_child(self.pid)
        spaces = ("--net", "--mount", "--pid", "--uts", "--ipc")
        return ["nsenter", f"--target={child}", *spaces, "--wd=/", "--", *map(str, words)]

    def start(
        self, *words: str | Path, log: Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(variables or {})},
            )

    def run(
        self,
        *words: str | Path,
        variables: Mapping[str, str] | None = None,
        seconds: float = 120.0,
    ) -> str:
        """What it prints. Raises AssertionError where it fails."""
        done = subprocess.run(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, **(variables or {})},
        )
        assert done.returncode == 0, f"{self.name}: {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def processes(self, *words: str) -> dict[int, str]:
        """Command lines that hold all the words, by the process id on the host. Those that are dead and
        not reaped are left out."""
        every = ("ps", "-wweo", "pid=,stat=,args=")  # -ww: a worker of xdist has 80 columns
        lines = self.run(*every).splitlines()
        found = (line.split(maxsplit=2) for line in lines)
        return {
            int(pid): line
            for pid, state, line in found
            if state[0] != "Z" and all(word in line for word in words) and "ps -wweo" not in line
        }

    def kill(self, number: signal.Signals, *words: str) -> int:
        """A signal to each process whose command line holds the words; how many there were."""
        found = self.processes(*words)
        for pid in found:
            self.kill_process(number, pid)
        return len(found)

    def kill_process(self, number: signal.Signals, pid: int) -> None:
        self._sh(f"kill -{int(number)} {pid} || true")

    def lose(self) -> None:
        """The power fails."""
        self._holder.kill()
        self._holder.wait()

    def _sh(self, line: str) -> None:
        self.run("sh", "-c", line)


class Network:
    """Hosts on one switch.

    Example:
        with Network(tmp_path) as network:
            network.host("node1").run("ip", "address")
    """

    def __init__(self, folder: Path, label: str = "ray") -> None:
        self._folder, self._label = folder, label
        self._switch = _hold("--net")
        self.hosts: list[Host] = []
        self._number = 0

    def __enter__(self) -> Network:
        self._on_switch("ip", "link", "set", "lo", "up")
        self._on_switch("ip", "link", "add", "bridge", "type", "bridge")
        self._on_switch("ip", "link", "set", "bridge", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.lose()
        self._switch.kill()
        self._switch.wait()

    def host(self, name: str) -> Host:
        """A further one, with the next address."""
        self._number += 1
        address, port = f"{SUBNET}.{self._number}", f"port{self._number}"
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        host = Host(name, address, folder)
        self.hosts.append(host)
        self._on_switch(
            *("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0"),
            *("netns", str(_only_child(host.pid))),
        )
        self._on_switch("ip", "link", "set", port, "master", "bridge", "up")
        host.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return host

    def _on_switch(self, *words: str) -> None:
        subprocess.run(
            ["nsenter", f"--target={self._switch.pid}", "--net", "--", *words],
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )


def _hold(*spaces: str) -> subprocess.Popen[bytes]:
    """A process that lives in namespaces of its own and does nothing."""
    ends_with_us = ("setpriv", "--pdeathsig", "KILL")
    # It is process 1 there and reaps nothing, as in many a container.
    body = ("--", "sh", "-c", "echo; exec sleep infinity")
    words: Sequence[str] = (*ends_with_us, "unshare", *spaces, *body)
    holder = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert holder.stdout and holder.stdout.readline(), "the namespaces cannot be made"
    return holder


def _only_child(pid: int) -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(children) == 1:
            return int(children[0])
        time.sleep(0.01)
    raise AssertionError(f"process {pid} has no child")
