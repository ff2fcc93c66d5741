"""Places where processes are started, for tests that hold in all of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Protocol, cast

from commands.launch.children import Children
from commands.launch.joining.external_children import ExternalChildren
from commands.launch.local.local_children import LocalChildren
from commands.launch.ray.children import RayChildren
from commands.launch.service_process import ServiceProcess
from tests.launch.ray.fake_cluster import FakeCluster
from tests.launch.services import STAND_IN
from tests.trimaran.run.ray.test_placing import configure
from trimaran.run.context import RunContext
from trimaran.run.ray.cluster import Cluster
from trimaran.store import Store, open_store
from trimaran.trust.access import Trust, make_token

REGISTERING = Path(__file__).with_name("registering.py")
RUN = "demo-1"
ROOT = str(Path(__file__).parents[2])


class Stage(Protocol):
    """Example: `stage = LocalStage(tmp_path); children = await stage.open()`"""

    folder: Path

    async def open(self) -> Children: ...

    def make(self, name: str, what: str) -> ServiceProcess:
        """`what`: run, or finishN: with exit code N once FOLDER/NAME-may-finish is there."""
        ...

    async def close(self) -> None: ...


class LocalStage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> Children:
        return LocalChildren()

    def make(self, name: str, what: str) -> ServiceProcess:
        return ServiceProcess(
            name=name,
            command=(sys.executable, str(STAND_IN), what, str(self.folder / name)),
            environment=dict(os.environ),
            log=self.folder / f"{name}.log",
        )

    async def close(self) -> None:
        return None


class ExternalStage:
    """With an engine that starts each service again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"sqlite:{folder / 'run.sqlite'}"
        self.stores: list[Store] = []
        self.engines: list[asyncio.Task[None]] = []

    async def open(self) -> Children:
        store = await open_store(self.url)
        self.stores.append(store)
        return ExternalChildren(store, RUN, start_timeout=30.0)

    def make(self, name: str, what: str) -> ServiceProcess:
        self.engines.append(asyncio.create_task(self._engine(name, what)))
        return ServiceProcess(name, (), {}, self.folder / f"{name}.log")

    async def _engine(self, name: str, what: str) -> None:
        command = (sys.executable, str(REGISTERING), self.url, RUN, name, what)
        while True:
            process = await asyncio.create_subprocess_exec(
                *command, str(self.folder / name), env={**os.environ, "PYTHONPATH": ROOT}
            )
            try:
                await process.wait()
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                if process.returncode is None:
                    process.kill()
                await process.wait()
                raise

    async def close(self) -> None:
        for engine in self.engines:
            engine.cancel()
        await asyncio.gather(*self.engines, return_exceptions=True)
        for store in self.stores:
            await store.close()


class RayStage:
    """With a stand-in for Ray: its actors are objects of this process, their services real."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores: list[Store] = []

    def cluster(self) -> Cluster:
        return cast(Cluster, FakeCluster())

    async def open(self) -> Children:
        (self.folder / "logs").mkdir()
        url = f"sqlite:{self.folder / 'run.sqlite'}"
        store = await open_store(url)
        self.stores.append(store)
        run = RunContext(RUN, self.folder, url, Trust(make_token(self.folder)), "ray")
        run.write()
        return RayChildren(self.cluster(), run, configure(), store)

    def make(self, name: str, what: str) -> ServiceProcess:
        return ServiceProcess(
            name=name,
            command=(sys.executable, str(STAND_IN), what, str(self.folder / name)),
            environment={},
            log=self.folder / "logs" / f"{name}.log",
            kind=name.rpartition("-")[0] or name,
        )

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


def kill(stage: Stage, name: str) -> None:
    """From outside, as the system does that has no memory left."""
    os.kill(int((stage.folder / name).read_text()), signal.SIGKILL)
