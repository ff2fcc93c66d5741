"""One managed run on the hosts of a Ray cluster, as its observer sees it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.hosts import DISK, Host
from tests.cluster.ray_hosts import VARIABLES, RayHosts, wait_for
from trimaran.store.open import run_store_url
from trimaran.trust.access import new_token, write_private

RECOVERY_SECONDS = 300.0
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds after a fault."""

    noted: float | None
    """Until the run's events said so; None where nothing had to."""
    answers: float
    """Until a new life of the service answered."""
    steps: float
    """Until the run had made a further step after that."""


class ManagedRun:
    """Example:
    run = ManagedRun(cluster, node1)
    run.submit(path)
    run.recover("rollout-0", lambda: node2.kill(signal.SIGKILL, "serve rollout"))
    """

    def __init__(self, cluster: RayHosts, host: Host) -> None:
        self.cluster, self.host, self.run_id = cluster, host, ""
        """Where the manager is, at the moment."""
        self._observer = host
        self._secret = cluster.folder / "service-token"
        write_private(self._secret, new_token())

    def start_manager(self) -> None:
        (self.host.folder / "manager.yaml").write_text(
            f"store: {self.cluster.store}\nfolder: {DISK}/managed\nnetwork: trusted\n"
            f"launcher: ray\nservices: {{network: {{subnet: {self.host.subnet}}}}}\n"
            f"service_token: {self._secret}\n"
        )
        log = self.cluster.folder / "manager.log"
        words = ("-m", "commands.cli", "up", "--config", DISK / "manager.yaml")
        before = log.read_text().count("listens on") if log.exists() else 0
        self.host.start(sys.executable, *words, log=log, variables=VARIABLES)
        wait_for(lambda: log.read_text().count("listens on") > before, "the manager")

    def submit(self, config: Path, *overrides: str) -> None:
        printed = self.cluster.trimaran(self.host, "submit", config, *overrides)
        self.run_id = printed.split()[0].strip(":,")
        store = run_store_url(self.cluster.store, self.run_id)
        words = ("-m", "tests.cluster.observer", store, self.run_id, DISK / "observed.jsonl")
        log = self.cluster.folder / "observer.log"
        self.host.start(sys.executable, *words, log=log, variables=VARIABLES)

    @property
    def looks(self) -> list[dict[str, Any]]:
        path = self._observer.folder / "observed.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def last(self) -> dict[str, Any]:
        looks = self.looks
        return looks[-1] if looks else {"step": -1, "state": "", "answering": []}

    def until_all_answer(self, *names: str) -> None:
        wait_for(lambda: set(names) <= set(self.last["answering"]), f"{names} to answer")
        step = self.last["step"]
        wait_for(lambda: self.last["step"] > step, "a step", RECOVERY_SECONDS)

    def recover(self, name: str, harm: Callable[[], object]) -> Recovery:
        """What became of a fault that ends the service's life."""
        life, began = self.last["lives"][name], time.time()
        harm()

        def again(look: dict[str, Any]) -> bool:
            own = look["lives"].get(name)
            return own not in (None, life) and name in look["answering"]

        answered = self._first(began, again, f"{name} to answer again")
        step = answered["step"]
        stepped = self._first(answered["time"], lambda look: look["step"] > step, "a step")
        reported = [note for look in self.looks for note in look["notes"]]
        noted = [at - began for at, text in reported if at >= began and name in text]
        return Recovery(
            round(noted[0], 1) if noted else None,
            round(answered["time"] - began, 1),
            round(stepped["time"] - began, 1),
        )

    def _first(
        self, since: float, condition: Callable[[dict[str, Any]], bool], what: str
    ) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def seen() -> bool:
            found[:] = [look for look in self.looks if look["time"] > since and condition(look)]
            return bool(found)

        wait_for(seen, what, RECOVERY_SECONDS)
        return found[0]

    def metrics(self, name: str) -> str:
        """What the manager hears from one of the run's processes, which wants the run's token."""
        url = f"http://127.0.0.1:7980/metrics/runs/{self.run_id}/{name}"
        return self.host.run(sys.executable, "-c", GET, url)

    def end(self) -> str:
        """Cancels it; how it stands then."""
        self.cluster.trimaran(self.host, "cancel", self.run_id)
        wait_for(lambda: self.last["state"] in ("cancelled", "succeeded", "failed"), "its end")
        return self.last["state"]
