"""A run whose services are on hosts of their own, as far as disks go: each sees its own folder alone.

hosts/trainer-0/   run/ with context.json and token, cache/      the other hosts' folders are hidden
hosts/controller/  run/, data/                                   by a mount namespace, for root
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml

from commands.launch.launch import launch
from commands.launch.local.endpoints import fill_endpoints
from commands.launch.local.local_children import LocalChildren
from commands.launch.run_services import run_services
from commands.launch.service_process import ServiceProcess
from commands.launch.site import Site
from trimaran.clients import ControllerClient
from trimaran.config import RunConfig, load_config
from trimaran.host.machine import read_machine
from trimaran.model.fetch import CACHE_VARIABLE
from trimaran.run.context import RunContext
from trimaran.run.environment import serve_command
from trimaran.run.folder import write_config
from trimaran.run.placement import place
from trimaran.run.runs import Goal, Run
from trimaran.store import entries, open_store
from trimaran.trust.access import TOKEN_NAME, Trust, make_token

RUN_ID = "tiny"
ALONE = """
set -e
mount --make-rprivate /
mount --bind "$1/$2" "$1.mounts/$2"
mount -t tmpfs none "$1"
mkdir "$1/$2"
mount --move "$1.mounts/$2" "$1/$2"
shift 2
exec "$@"
"""
HIDES = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


class Hosts:
    """Example: asyncio.run(Hosts(tmp_path, "redis://…").conduct(config))"""

    def __init__(self, folder: Path, store_url: str) -> None:
        self.root, self.store_url = folder / "hosts", store_url
        (folder / "hosts.mounts").mkdir(parents=True)
        self.own = self.root / "manager" / RUN_ID
        self.own.mkdir(parents=True)
        (self.own / "logs").mkdir()
        self.run = RunContext(RUN_ID, self.own, store_url, Trust(make_token(self.own)))
        self.run.write()

    def run_folder(self, name: str) -> Path:
        return self.root / name / RUN_ID

    def make(self, name: str, config: RunConfig) -> None:
        """A fresh host, with what the starter of services puts there."""
        folder = self.run_folder(name)
        folder.mkdir(parents=True)
        (self.root.with_name("hosts.mounts") / name).mkdir(exist_ok=True)
        shutil.copy(self.own / TOKEN_NAME, folder / TOKEN_NAME)
        replace(self.run, folder=folder).write()
        write_config(folder, config)

    def _on_host(self, service: ServiceProcess) -> ServiceProcess:
        name = service.name
        kind, _, index = name.partition("-") if name != "weight-sync" else (name, "", "")
        folder = self.run_folder(name)
        command = serve_command(kind, str(folder / "config.yaml"), str(folder), int(index or 0))
        alone = ("unshare", "--mount", "sh", "-c", ALONE, "sh", str(self.root), name)
        cache = {CACHE_VARIABLE: str(self.root / name / "cache")}
        return replace(
            service,
            command=(*alone, *command) if HIDES else command,
            environment={**service.environment, **cache},
        )

    async def conduct(
        self,
        config: RunConfig,
        prepare: Callable[[], None] = lambda: None,
    ) -> Run | None:
        """As the launcher does."""
        services = run_services(config, self.own, place(config, read_machine(os.environ)))
        services = [self._on_host(service) for service in services]
        for service in services:
            self.make(service.name, config)
        prepare()
        site = Site(services, _no_replica, LocalChildren())

        async def set_goal(address: str, goal: Goal) -> None:
            async with ControllerClient(address, RUN_ID, self.run.trust) as client:
                await client.set_goal(goal)

        store = await open_store(self.store_url)
        try:
            return await launch(config, self.run, site, store, set_goal)
        finally:
            await store.close()


async def roots_of(store_url: str, run_id: str) -> dict[int, str]:
    """Roots of the versions that the run's trainers made, by step."""
    store = await open_store(store_url)
    try:
        found = [value async for _, value in entries(store, f"versions/{run_id}")]
    finally:
        await store.close()
    assert all(record["lineage"] == 0 for record in found)
    return {record["step"]: record["root"] for record in found}


def _no_replica(index: int, devices: tuple[str, ...]) -> list[ServiceProcess]:
    raise AssertionError("the run has as many replicas as it began with")


def read_config(path: Path, changes: dict[str, dict[str, object]]) -> RunConfig:
    """A run's YAML with other values, and free addresses."""
    tree = yaml.safe_load(path.read_text())
    for section, values in changes.items():
        tree[section] = tree.get(section, {}) | values
    path.write_text(yaml.safe_dump(tree))
    return fill_endpoints(load_config(path))
