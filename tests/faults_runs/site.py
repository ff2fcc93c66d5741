"""One place where runs are driven: its folder, its store, who lives in it, and how its runs stand."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.faults import house
from tests.faults_runs import born, entry
from tests.faults_runs.lives import Life, Lives
from tests.faults_runs.standins import MODEL
from tests.marked import MARK, marked, survivors
from trimaran.config import RunConfig, load_config
from trimaran.errors import InputError, UnavailableError
from trimaran.run_context import RunContext
from trimaran.store import Store, entries, find_store

GROUPS_PER_STEP = 2
FROZEN_SECONDS = 3.0
"""frozen_timeout."""
END_SECONDS = 40.0
"""For every process of a site to be gone once its runs have ended."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What varies between runs."""

    store: str
    """sqlite or redis."""
    max_lag: int
    """0: synchronous."""
    num_ranks: int
    num_replicas: int

    def __str__(self) -> str:
        kind = f"asynchronous (lag {self.max_lag})" if self.max_lag else "synchronous"
        return f"{self.store}, {kind}, {self.num_ranks} ranks, {self.num_replicas} replicas"


@dataclass(slots=True)
class DrivenRun:
    """One run, and what its ledger says so far."""

    folder: Path
    setting: Setting
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    step: int = 0
    """The last committed one."""
    _store: Store | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def config(self) -> RunConfig:
        return load_config(self.folder / "config.yaml")

    @property
    def processes(self) -> list[str]:
        """Names of all that it must have while it runs."""
        ranks = (f"trainer-{rank}" for rank in range(self.setting.num_ranks))
        replicas = (f"rollout-{index}" for index in range(self.setting.num_replicas))
        names = ("controller", "reward", "weight-sync", *ranks, *replicas)
        return [f"{self.name}.{name}" for name in names]

    async def read(self) -> None:
        """What was added to the ledger; nothing while its store is away."""
        try:
            if self._store is None:
                self._store = await find_store(RunContext.in_folder(self.folder).store_url)
            if self._store is None:
                return
            after = self.rows[-1][0] if self.rows else 0
            new = [row async for row in entries(self._store, f"ledger/{self.name}", after)]
        except (UnavailableError, InputError):
            return
        self.rows += new
        for _, tree in new:
            if tree["kind"] == "committed":
                self.step = tree["version"]["step"]

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


class Site:
    """Runs are started by `trimaran train` and started again with `--resume`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self._seed = folder, seed
        for name in ("notes", "orders", "runs", "temporary"):
            (folder / name).mkdir(parents=True)
        self.lives = Lives(folder / "notes")
        os.environ[born.NOTES] = str(folder / "notes")
        os.environ[entry.ORDERS] = str(folder / "orders")
        os.environ["TMPDIR"] = str(folder / "temporary")
        self._model = house.write_model(folder / "model", MODEL)
        row = json.dumps({"prompt": "What is 1 + 2?", "answer": "3"}) + "\n"
        (folder / "train.jsonl").write_text(64 * row)
        self._ours = {process.pid for process in marked(os.environ[MARK])}
        """The driver and its zygote."""
        self._launchers: dict[str, subprocess.Popen[bytes]] = {}

    def write_config(self, name: str, setting: Setting, num_steps: int) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(self._tree(name, setting, num_steps)))
        return path

    def start(self, name: str, setting: Setting, num_steps: int) -> DrivenRun:
        path = self.write_config(name, setting, num_steps)
        before = set((self.folder / "runs").iterdir())
        launcher = self._spawn(name, "train", str(path))
        deadline = time.monotonic() + 20
        while not (new := set((self.folder / "runs").iterdir()) - before):
            assert launcher.poll() is None and time.monotonic() < deadline, "no run folder"
            time.sleep(0.02)
        [folder] = new
        self._launchers[folder.name] = launcher
        return DrivenRun(folder, setting)

    def launcher(self, run: DrivenRun) -> Life:
        pid = self._launchers[run.name].pid
        return Life(f"{run.name}.launcher", pid, 0.0)

    def resume(self, run: DrivenRun) -> None:
        self._launchers[run.name] = self._spawn(run.name, "train", "--resume", str(run.folder))

    def exit_code(self, run: DrivenRun) -> int | None:
        return self._launchers[run.name].poll()

    def alive(self, run: DrivenRun) -> dict[str, Life]:
        found = {
            name: life for name, life in self.lives.alive.items() if name.startswith(f"{run.name}.")
        }
        if self.exit_code(run) is None:
            found[f"{run.name}.launcher"] = self.launcher(run)
        return found

    async def close(self) -> list[str]:
        """Ends everything; what should not have been there any more."""
        for launcher in self._launchers.values():
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGCONT)
                launcher.terminate()
        left = await asyncio.to_thread(survivors, os.environ[MARK], END_SECONDS, self._ours)
        names = {life.pid: life.name for life in self.lives.all()}
        found = [f"{one.pid} {names.get(one.pid) or ' '.join(one.cmdline())}" for one in left]
        for process in left:
            process.kill()
        return found

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*born.COMMAND, *arguments], stdout=log, stderr=log, start_new_session=True
            )
        self.lives.own.add(process.pid)
        return process

    def _tree(self, name: str, setting: Setting, num_steps: int) -> dict[str, Any]:
        return {
            "run": {
                "name": name,
                "folder": str(self.folder / "runs"),
                "seed": self._seed,
                "steps": num_steps,
                "groups_per_step": GROUPS_PER_STEP,
                "max_lag": setting.max_lag,
                "deterministic": True,
                "checkpoint_every": 3,
            },
            "model": {"path": str(self._model)},
            "data": {"train": str(self.folder / "train.jsonl")},
            "reward": {"rules": {"last_integer": 1.0}, "workers": 1},
            "rollout": {
                "engine": "transformers",
                "replicas": setting.num_replicas,
                "device": "cpu",
                "group_size": 2,
                "max_tokens": 32,
                "max_prompt_tokens": 64,
                "max_concurrency": 8,
                "idle_timeout": 2,
            },
            "trainer": {
                "device": "cpu",
                "tensor_parallel": setting.num_ranks,
                "step_timeout": 10,
                "save_timeout": 10,
            },
            "weight_sync": {
                "bucket_mib": 1,
                "stage_timeout": 3,
                "commit_timeout": 2,
                "join_timeout": 5,
                "prove_timeout": 3,
                "heartbeat_timeout": 1.5,
                "sample_share": 0.25,
            },
            "start_timeout": 30,
            "outage_timeout": 30,
        }
