"""What a run on a Ray cluster must survive, one thing after another."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.cluster.hosts import DISK, Host
from tests.cluster.inputs import write_inputs
from tests.cluster.ray_hosts import VARIABLES, RayHosts, wait_for
from tests.cluster.run import RECOVERY_SECONDS, ManagedRun

LEFT_SECONDS = 30.0
LEAVE_SECONDS = 300.0
"""Before a node that leaves is gone."""
LAUNCHER, MANAGER = "commands.cli launch", "commands.cli up"
OURS = ("commands.cli serve", LAUNCHER, "ray::Supervisor")
LEFT_IN_RAY = """
import ray
from ray.util import list_named_actors, placement_group_table
ray.init("auto", logging_level="ERROR", log_to_driver=False)
groups = placement_group_table().values()
print(list_named_actors(all_namespaces=True), [g["name"] for g in groups if g["state"] != "REMOVED"])
"""
Harm = Callable[[], object]


class Trial:
    """All of it, on one cluster."""

    def __init__(self, cluster: RayHosts, folder: Path, results: dict[str, Any]) -> None:
        """`results` is filled as it goes."""
        self.cluster, self.config = cluster, write_inputs(folder / "inputs")
        self.nodes = [
            cluster.node("node1", "--num-cpus=0"),
            cluster.node("node2", "--num-cpus=2"),
            cluster.node("node3", "--num-cpus=2"),
        ]
        self.run = ManagedRun(cluster, self.nodes[0])
        self.results = results

    def whole(self) -> None:
        """`trimaran train` from its first step to its last, with folders of which no host sees
        another's."""
        began = time.monotonic()
        printed = self.cluster.trimaran(
            self.nodes[0],
            *("train", self.config, "--launcher", "ray", "--store", self.cluster.store),
            *("--network", "trusted", f"network.subnet={self.nodes[0].subnet}"),
            *("run.steps=3", f"run.folder={DISK}/runs"),
        )
        assert "3 steps in" in printed, printed
        used = [n.name for n in self.nodes if list(n.folder.glob("runs/*/logs/*.log"))]
        assert used == ["node1", "node2", "node3"], used
        self._record("a run from its start to its end", seconds=time.monotonic() - began)
        self.nothing_is_left()

    def harmed(self) -> None:
        """Every fault on one run."""
        run = self.run
        run.start_manager()
        shared = [f"run.{what}={self.config.parent}/{what}" for what in ("checkpoints", "payloads")]
        run.submit(self.config, "rollout.max_replicas=3", "run.steps=1000000", *shared)
        needed = ("controller", "reward", "weight-sync", "trainer-0", "rollout-0", "rollout-1")
        run.until_all_answer(*needed, "rollout-2")
        for title, name, harm in self.faults():
            self._record(title, **asdict(run.recover(name, harm)))
            run.until_all_answer(*needed)
        self.a_node_leaves()
        run.until_all_answer(*needed)
        self.the_manager_moves()
        assert run.end() == "cancelled"
        print(self.cluster.trimaran(run.host, "ledger", "verify", run.run_id), flush=True)
        self.nothing_is_left()

    def a_node_leaves(self) -> None:
        """And says so before: its replicas are drained and go on elsewhere. Another node has come."""
        self.nodes.append(self.cluster.node("node4", "--num-cpus=2"))
        [leaving] = [h for h in self.nodes[1:3] if h is not self.host_of("trainer-0")]
        hosts = self.run.last["hosts"].items()
        names = [name for name, at in hosts if "rollout" in name and at == leaving.address]
        log = self.run.host.folder / "managed" / self.run.run_id / "logs" / "weight-sync.log"
        before = len(log.read_text())
        recovery = self.run.recover(names[0], lambda: self.cluster.drain(leaving, LEAVE_SECONDS))
        self._record("a replica's node says that it leaves", **asdict(recovery))
        wait_for(lambda: not leaving.processes("commands.cli serve"), f"{leaving.name} to be empty")
        said = log.read_text()[before:]
        assert all(f"{name} is drained" in said for name in names), (names, said)

    def the_manager_moves(self) -> None:
        """Another host takes its place; launcher and services go on, and it has their token."""
        run, before = self.run, self.run.last["lives"]
        began = time.monotonic()
        self.kill(run.host, MANAGER)
        run.host = self.nodes[-1]
        run.start_manager()
        for name in before:
            assert "trimaran_" in run.metrics(name), name
        self._record("the manager moves to another node", seconds=time.monotonic() - began)
        step = run.last["step"]
        wait_for(lambda: run.last["step"] > step, "a step", RECOVERY_SECONDS)
        assert run.last["lives"] == before

    def faults(self) -> list[tuple[str, str, Harm]]:
        """What, whose life it ends, and how."""
        return [
            ("a replica is killed", "rollout-0", lambda: self.kill_service("rollout-0")),
            ("the trainer is killed", "trainer-0", lambda: self.kill_service("trainer-0")),
            ("a replica's actor is killed", "rollout-1", lambda: self.kill_actor("rollout-1")),
            ("the trainer's actor is killed", "trainer-0", lambda: self.kill_actor("trainer-0")),
            ("the launcher is killed", "trainer-0", lambda: self.kill(self.nodes[0], LAUNCHER)),
            ("the manager and the launcher are killed", "trainer-0", self.kill_manager),
            ("the head and a replica are killed", "rollout-0", self.kill_head),
            ("the trainer's raylet is killed", "trainer-0", lambda: self.kill_raylet("trainer-0")),
            ("a replica's raylet is killed", "rollout-0", lambda: self.kill_raylet("rollout-0")),
            ("the trainer's raylet is frozen", "trainer-0", self.freeze_raylet),
        ]

    def kill_service(self, name: str) -> None:
        host = self.host_of(name)
        host.kill_process(signal.SIGKILL, self.process_of(host, name))

    def kill_actor(self, name: str) -> None:
        """The parent of the service's process."""
        host = self.host_of(name)
        parent = host.run("ps", "-o", "ppid=", "-p", str(self.process_of(host, name)))
        host.kill_process(signal.SIGKILL, int(parent))

    def kill_manager(self) -> None:
        self.kill(self.nodes[0], MANAGER)
        self.kill(self.nodes[0], LAUNCHER)
        self.run.start_manager()

    def kill_head(self) -> None:
        self.cluster.kill_head()
        self.kill_service("rollout-0")
        time.sleep(5.0)
        self.cluster.start_head()

    def kill_raylet(self, name: str) -> None:
        """It comes back after a while, as another node; without it not all have room."""
        host = self.host_of(name)
        self.kill(host, "raylet/raylet")
        threading.Timer(15.0, self.cluster.join, (host, "--num-cpus=2")).start()

    def freeze_raylet(self) -> None:
        """Ray takes the node for dead, once it has not answered three checks of 10 s; what runs there
        goes on."""
        host = self.host_of("trainer-0")
        assert host.kill(signal.SIGSTOP, "raylet/raylet")
        threading.Timer(60.0, self.replace_raylet, (host,)).start()

    def replace_raylet(self, host: Host) -> None:
        self.kill(host, "raylet/raylet")
        self.cluster.join(host, "--num-cpus=2")

    def host_of(self, name: str) -> Host:
        address = self.run.last["hosts"][name]
        return next(host for host in self.nodes if host.address == address)

    @staticmethod
    def process_of(host: Host, name: str) -> int:
        kind, _, index = name.rpartition("-")
        [pid] = host.processes(f"commands.cli serve {kind}", f"--index {index}")
        return pid

    @staticmethod
    def kill(host: Host, words: str) -> None:
        assert host.kill(signal.SIGKILL, words), f"{host.name}: nothing like {words}"

    def nothing_is_left(self) -> None:
        """Of services, actors and placement groups, on any host."""

        def left() -> list[str]:
            hosts = [*self.nodes, self.cluster.head]
            return [line for h in hosts for words in OURS for line in h.processes(words).values()]

        wait_for(lambda: not left(), "processes to be gone", LEFT_SECONDS)
        program = (sys.executable, "-c", LEFT_IN_RAY)
        printed = self.nodes[0].run(*program, variables=VARIABLES)
        assert printed.splitlines()[-1] == "[] []", printed

    def _record(self, title: str, **seconds: float | None) -> None:
        reported = {
            name: value if value is None else round(value, 1) for name, value in seconds.items()
        }
        self.results[title] = reported
        print(f"{title}: {reported}", flush=True)
