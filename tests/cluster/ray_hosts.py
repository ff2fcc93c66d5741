"""A Ray cluster on hosts of their own: a head, whose memory is in Redis, and nodes."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Host, Network

ROOT = Path(__file__).parents[2]
PORT, REDIS_PORT = 6379, 6400
RAY = ("-m", "ray.scripts.scripts")
PATIENCE_SECONDS = 300.0
VARIABLES = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    # As docs/deploy.md recommends: a node that is gone is noticed after about three seconds.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_USAGE_STATS_ENABLED": "0",
    # The hosts share one machine's memory, which others use as well.
    "RAY_memory_monitor_refresh_ms": "0",
}
REDIS = (
    "--port",
    str(REDIS_PORT),
    "--protected-mode",
    "no",
    "--save",
    "",
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
)


class RayHosts:
    """Example:
    with RayHosts(tmp_path) as cluster:
        cluster.node("node1", "--num-cpus=2")
        cluster.head.run("trimaran", "train", …)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network(folder)

    def __enter__(self) -> RayHosts:
        self.network.__enter__()
        self.head = self.network.host("head")
        self.start_redis()
        self.start_head()
        return self

    def __exit__(self, *_: object) -> None:
        self.network.__exit__()

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    @property
    def store(self) -> str:
        return f"redis://{self.head.address}:{REDIS_PORT}/1"

    def start_redis(self) -> None:
        program = shutil.which("redis-server")
        assert program, "redis-server is not installed"
        words = (program, "--bind", self.head.address, "--dir", "/srv", *REDIS)
        self.head.start(*words, log=self.folder / "redis.log")
        wait_for(lambda: "Ready to accept" in (self.folder / "redis.log").read_text(), "Redis")

    def start_head(self) -> None:
        self._ray(
            self.head,
            *("--head", f"--port={PORT}", "--num-cpus=0", "--temp-dir=/srv/ray"),
            *("--include-dashboard=false", "--disable-usage-stats"),
            RAY_REDIS_ADDRESS=f"{self.head.address}:{REDIS_PORT}",
        )

    def node(self, name: str, *words: str) -> Host:
        """A further host, which joins."""
        host = self.network.host(name)
        self.join(host, *words)
        return host

    def join(self, host: Host, *words: str) -> None:
        self._ray(host, f"--address={self.address}", *words)

    def drain(self, host: Host, seconds: float) -> None:
        """The host says that it is gone in so many seconds, as a cloud's machine does that is taken
        away."""
        [node_id] = [
            n["NodeID"] for n in self.nodes() if n["NodeName"] == host.address and n["Alive"]
        ]
        self.head.run(
            *(
                sys.executable,
                *RAY,
                "drain-node",
                f"--address={self.address}",
                "--node-id",
                node_id,
            ),
            *(
                "--reason",
                "DRAIN_NODE_REASON_PREEMPTION",
                "--reason-message",
                "the host is taken away",
            ),
            *("--deadline-remaining-seconds", str(int(seconds))),
            variables=VARIABLES,
        )

    def nodes(self) -> list[Mapping[str, Any]]:
        """As Ray sees them; slow, because each look starts a Python."""
        program = (
            "import json, ray; ray.init('auto', logging_level='ERROR', log_to_driver=False);"
            "print(json.dumps(ray.nodes()))"
        )
        printed = self.head.run(sys.executable, "-c", program, variables=VARIABLES)
        return json.loads(printed.splitlines()[-1])

    def kill_head(self) -> None:
        """Ray's processes there, all of them; Redis goes on."""
        for words in (("gcs_server",), ("raylet/raylet",), ("ray",)):
            self.head.kill(signal.SIGKILL, *words)

    def trimaran(self, host: Host, *words: str | Path, seconds: float = 300.0) -> str:
        command = (sys.executable, "-m", "commands.cli", *words)
        return host.run(*command, variables=VARIABLES, seconds=seconds)

    def _ray(self, host: Host, *words: str, **variables: str) -> None:
        host.run(
            *(sys.executable, *RAY, "start", *words),
            *(f"--node-ip-address={host.address}", "--object-store-memory=100000000"),
            variables=VARIABLES | variables,
        )


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
