"""A standing system under test: a manager, its store, and the runs that it was given."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.faults import house, orders
from tests.faults_runs import born, entry
from tests.faults_runs.lives import Life, Lives
from tests.faults_runs.reported import Harm
from tests.faults_runs.standins import MODEL
from tests.faults_runs.supervisor import Supervisor
from tests.marked import MARK, marked, survivors, words
from tests.redis_server import RedisServer
from trimaran.clients import AsyncRunClient
from trimaran.config import RunConfig, load_config
from trimaran.errors import DeadlineError, InputError, TrimaranError, UnavailableError
from trimaran.run.context import RunContext
from trimaran.run.lease import holder_name
from trimaran.run.network import LOOPBACK
from trimaran.run.runs import Run, RunState, launcher_lease
from trimaran.store import Store, entries, find_store

GROUPS_PER_STEP = 2
FROZEN_SECONDS = 3.0
"""frozen_timeout."""
TOKEN_SECONDS, MAX_TOKENS = 0.03, 32
"""So that a step takes a second."""
START_SECONDS = 30.0
END_SECONDS = 40.0
"""For every process of a site to be gone once its runs have ended."""
MANAGER, REDIS, LAUNCHER = "manager", "redis", "launcher"


@dataclass(slots=True)
class Setting:
    """What varies between runs."""

    max_lag: int
    """0: synchronous."""
    num_ranks: int
    num_replicas: int

    def __str__(self) -> str:
        kind = f"asynchronous (lag {self.max_lag})" if self.max_lag else "synchronous"
        return f"{kind}, {self.num_ranks} ranks, {self.num_replicas} replicas"


@dataclass(slots=True)
class DrivenRun:
    """One run, and what the manager and its ledger say of it."""

    run: Run
    setting: Setting
    num_steps: int
    wanted: tuple[RunState, ...] = (RunState.SUCCEEDED,)
    """In which of these it must end."""
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    step: int = 0
    """The last committed one."""
    harms: list[Harm] = field(default_factory=list)
    _store: Store | None = None

    @property
    def name(self) -> str:
        return self.run.run_id

    @property
    def folder(self) -> Path:
        return Path(self.run.folder)

    @property
    def context(self) -> RunContext:
        return RunContext.in_folder(self.folder)

    @property
    def config(self) -> RunConfig:
        return load_config(self.folder / "config.yaml")

    @property
    def has_ended(self) -> bool:
        return self.run.state.has_ended

    @property
    def processes(self) -> list[str]:
        """Names of all that it must have while it runs."""
        ranks = (f"trainer-{rank}" for rank in range(self.setting.num_ranks))
        replicas = (f"rollout-{index}" for index in range(self.setting.num_replicas))
        return [LAUNCHER, "controller", "reward", "weight-sync", *ranks, *replicas]

    async def read(self) -> None:
        """What was added to the ledger; nothing while its store is away."""
        try:
            if self._store is None:
                self._store = await find_store(self.context.store_url)
            if self._store is None:
                return
            after = self.rows[-1][0] if self.rows else 0
            async with asyncio.timeout(2):
                new = [row async for row in entries(self._store, f"ledger/{self.name}", after)]
        except (UnavailableError, InputError, TimeoutError):
            return
        self.rows += new
        for _, tree in new:
            if tree["kind"] == "committed":
                self.step = tree["version"]["step"]

    async def has_lease(self, launcher: Life) -> bool:
        """Whether this very launcher has taken its lease; False while the store is away."""
        try:
            async with asyncio.timeout(2):
                lease = self._store and await self._store.holder(launcher_lease(self.name))
        except (UnavailableError, TimeoutError):
            return False
        return bool(lease) and lease.holder == holder_name(launcher.pid)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


class Site:
    """Example:
    site = Site(folder, seed=1, store="redis")
    await site.open()
    run = await site.submit(Setting(max_lag=1, num_ranks=1, num_replicas=2), num_steps=10)
    """

    def __init__(self, folder: Path, seed: int, store: str) -> None:
        self.folder, self._seed = folder, seed
        for name in ("notes", "orders", "runs", "temporary"):
            (folder / name).mkdir(parents=True)
        self.lives = Lives(folder / "notes")
        os.environ[born.NOTES] = str(folder / "notes")
        os.environ[entry.ORDERS] = str(folder / "orders")
        os.environ["TMPDIR"] = str(folder / "temporary")
        os.environ[entry.PACE] = str(folder / "pace")
        self.set_pace(TOKEN_SECONDS)
        self._model = house.write_model(folder / "model", MODEL)
        row = json.dumps({"prompt": "What is 1 + 2?", "answer": "3"}) + "\n"
        (folder / "train.jsonl").write_text(64 * row)
        self.redis = RedisServer(folder / "redis") if store == "redis" else None
        self.address = LOOPBACK.free_address()
        self.client = AsyncRunClient(self.address, timeout=2.0)
        self.runs: list[DrivenRun] = []
        self.supervisor = Supervisor(self._kill_manager, self.start_manager)
        self._looking = asyncio.Lock()
        self._ours = {process.pid for process in marked(os.environ[MARK])}
        """The driver and its zygote."""

    async def open(self) -> None:
        if self.redis:
            await asyncio.to_thread(self.redis.start)
        settings = {
            "folder": str(self.folder / "runs"),
            "store": self.redis.url("site") if self.redis else "",
            "address": self.address,
            "http_address": LOOPBACK.free_address(),
            "pools": {"host": {"device": "cpu", "slots": 16}},
            "allow": {"models": [str(self.folder)], "data": [str(self.folder)]},
        }
        (self.folder / "manager.yaml").write_text(yaml.safe_dump(settings))
        self.start_manager()

    def set_pace(self, seconds: float) -> None:
        """Of a token, from now on."""
        part = self.folder / "pace.part"
        part.write_text(str(seconds))
        part.rename(self.folder / "pace")

    def start_manager(self) -> None:
        """As an operator's supervisor does, whenever it has ended."""
        with (self.folder / "manager.log").open("ab") as log:
            subprocess.Popen(
                [*born.COMMAND, "up", "--config", str(self.folder / "manager.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.supervisor.environment},
            )
        self.supervisor.expect()

    def _kill_manager(self) -> None:
        if manager := self.lives.alive.get("up"):
            manager.send(signal.SIGKILL)

    async def submit(self, setting: Setting, num_steps: int, harm: str = "") -> DrivenRun:
        """`harm`: an order for the call, which is made until it is answered, as `calls.py` has it."""
        request = f"run-{len(self.runs)}"
        if harm:
            orders.give(self.folder / "orders", "up", "CreateRun", harm)
        tree = self._tree(request, setting, num_steps)
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    run = await self.client.create_run(tree, request_id=request)
                    break
                except (UnavailableError, DeadlineError):
                    await asyncio.sleep(0.1)
        self.runs.append(DrivenRun(run, setting, num_steps))
        return self.runs[-1]

    async def look(self) -> None:
        """Brings `runs` up to date, as far as a process answers."""
        async with self._looking:
            for driven in self.runs:
                try:
                    async with asyncio.timeout(1):
                        driven.run = await self.client.get_run(driven.name)
                except (TrimaranError, TimeoutError):
                    pass  # the manager is away: what was known stays
                await driven.read()

    def alive(self, run: DrivenRun) -> dict[str, Life]:
        """The manager's process and the run's, by name."""
        lives, start = self.lives.alive, f"{run.name}."
        found = {n.removeprefix(start): life for n, life in lives.items() if n.startswith(start)}
        if "up" in lives:
            found[MANAGER] = lives["up"]
        return found

    async def close(self) -> list[str]:
        """Ends everything; what should not have been there any more."""
        await self.supervisor.close()
        for run in self.runs:
            await run.close()
        await self.client.close()
        is_over = all(run.has_ended for run in self.runs)
        for name, life in self.lives.alive.items():
            life.send(signal.SIGCONT)
            if name == "up":
                life.send(signal.SIGTERM)
            elif not is_over:  # the driver has given the run up
                life.send(signal.SIGKILL)
        if self.redis:
            self.redis.kill()
        left = await asyncio.to_thread(survivors, os.environ[MARK], END_SECONDS, self._ours)
        self.lives.reap()
        names = {life.pid: life.name for life in self.lives.all()}
        found = []
        for process in left:
            with suppress(psutil.NoSuchProcess):
                found.append(f"{process.pid} {names.get(process.pid) or words(process)}")
                process.kill()
        return found

    def _tree(self, name: str, setting: Setting, num_steps: int) -> dict[str, Any]:
        return {
            "run": {
                "name": name,
                "seed": self._seed,
                "steps": num_steps,
                "groups_per_step": GROUPS_PER_STEP,
                "max_lag": setting.max_lag,
                "deterministic": True,
                "checkpoint_every": 3,
                "keep_payloads": "all",
            },
            "model": {"path": str(self._model)},
            "data": {"train": str(self.folder / "train.jsonl")},
            "reward": {"rules": {"last_integer": 1.0}, "workers": 1},
            "rollout": {
                "engine": "transformers",
                "replicas": setting.num_replicas,
                "device": "cpu",
                "group_size": 2,
                "max_tokens": MAX_TOKENS,
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
            "start_timeout": START_SECONDS,
            "outage_timeout": 30,
            "frozen_timeout": FROZEN_SECONDS,
        }
