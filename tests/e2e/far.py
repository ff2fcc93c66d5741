"""A run whose services stand on hosts far from each other: each host has its own network and its own
disk, and a `Link` joins them. The manager and every service are started there as operators start them.

hosts/control/   managed/ (the manager's folder), data/, reward/, ...     a host sees only its own folder
hosts/first/     trainer-0/, cache/
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests import marked
from tests.bucket_server import Endpoint
from tests.e2e.disjoint import ALONE, HIDES, roots_of
from tests.e2e.engines import Engine
from tests.namespaces import Link, NamespaceHost, far_hosts
from tests.redis_server import DURABLE, RedisServer
from trimaran.model.fetch import CACHE_VARIABLE
from trimaran.run.runs import RunState, events_stream
from trimaran.store import entries, open_store, run_store_url

NETWORK = "10.78.0"
BUCKET_PORT = 9000
STORE, CONTROL = "store", "control"
"""The first has Redis and the bucket; the second the manager, and what computes nothing."""
CONTROLLING = ("controller", "reward", "weight-sync")
SECONDS = 240.0
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Far:
    """One host."""

    name: str
    net: NamespaceHost
    engines: tuple[Engine, ...]


class Site:
    """Example: with site(tmp_path, {"far": ("rollout-0",)}, delay_ms=10, loss=0.01) as made: ..."""

    def __init__(self, folder: Path, hosts: list[Far], link: Link, store: RedisServer) -> None:
        self.folder, self.link, self._store = folder, link, store
        self.root = folder / "hosts"
        self.hosts = {host.name: host for host in hosts}
        self.run_id = ""
        self.bucket = f"s3://payloads/{folder.name}"

    def net(self, host: str) -> NamespaceHost:
        return self.hosts[host].net

    def push(self, model: Path) -> dict[str, str]:
        """The keys of `model:` for a run whose hosts fetch it."""
        url = f"{self.bucket}/model"
        printed = self.trimaran(STORE, "model", "push", str(model), url)
        digest = printed.split("digest: ")[1].split()[0]
        return {"path": f"/nowhere/{model.name}", "source": url, "digest": digest}

    def trimaran(self, host: str, *words: str) -> str:
        """What a command prints there."""
        command = self.net(host).inside(sys.executable, "-m", "commands.cli", *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, host: str) -> None:
        """What stands on a host, which is new: its disk is empty."""
        (self.root / host).mkdir(parents=True)
        (self.root.with_name("hosts.mounts") / host).mkdir(parents=True, exist_ok=True)
        for engine in self.hosts[host].engines:
            engine.start()
        if host == CONTROL:
            shutil.copytree(self.folder / "data", self.root / CONTROL / "data")
            self._start_manager()

    def lose(self, host: str) -> None:
        """It is gone with its disk and what ran on it, and nothing hears of it."""
        self.link.cut(self.net(host))
        self.end(host)
        shutil.rmtree(self.root / host)
        self.link.mend(self.net(host))

    def end(self, host: str) -> None:
        for engine in self.hosts[host].engines:
            engine.kill()
        for process in self.processes(host):
            process.kill()

    def processes(self, host: str, *words: str) -> list[psutil.Process]:
        here = os.stat(f"/run/netns/{self.net(host).name}").st_ino
        return [
            process
            for process in marked.marked(self.folder)
            if _namespace(process) == here and all(word in marked.words(process) for word in words)
        ]

    def submit(self, config: Path, changes: Mapping[str, Mapping[str, object]]) -> None:
        """As the host `control` sees its data; checkpoints and payloads lie in the bucket."""
        tree = yaml.safe_load(config.read_text())
        data = self.root / CONTROL / "data"
        fixed: dict[str, dict[str, object]] = {
            "run": {"checkpoints": f"{self.bucket}/runs", "payloads": f"{self.bucket}/payloads"},
            "data": {
                "train": str(data / "train.jsonl"),
                "validation": str(data / "heldout.jsonl"),
            },
        }
        for changed in (fixed, changes):
            for section, values in changed.items():
                tree[section] = tree.get(section, {}) | values
        del tree["run"]["folder"]
        path = self.folder / "far.yaml"
        path.write_text(yaml.safe_dump(tree))
        self.run_id = self.trimaran(CONTROL, "submit", str(path)).split()[0].strip(":,")

    def until_step(self, step: int) -> None:
        self._until(lambda tree: tree["run"]["step"] >= step, f"step {step}")

    def until_noted(self, words: str, after: int = 0) -> None:
        """By an event, after so many."""
        self._until(lambda tree: words in tree["text"], words, after)

    def until_ended(self) -> RunState:
        """Its state in the end."""
        self._until(lambda tree: RunState(tree["run"]["state"]).has_ended, "the end")
        return RunState(self.events()[-1]["run"]["state"])

    def events(self) -> list[dict[str, Any]]:
        async def read(store: Any) -> list[dict[str, Any]]:
            return [tree async for _, tree in entries(store, events_stream(self.run_id))]

        return self._ask(read)

    def roots(self) -> dict[int, str]:
        return asyncio.run(roots_of(self._run_store, self.run_id))

    def tell(self) -> str:
        """The last lines of everybody, for a test that fails."""
        logs = [*sorted(self.root.rglob("log")), self.folder / "manager.log"]
        logs += sorted(self.root.rglob("*.log"))
        notes = "\n".join(f"{tree['kind']}: {tree['text']}" for tree in self.events())
        return notes + "".join(f"\n== {p}\n{p.read_text()[-3000:]}" for p in logs if p.exists())

    @property
    def _run_store(self) -> str:
        return run_store_url(self._store.url("trimaran"), self.run_id)

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        async def ask() -> Any:
            store = await open_store(self._run_store)
            try:
                return await question(store)
            finally:
                await store.close()

        return asyncio.run(ask())

    def _until(
        self, condition: Callable[[dict[str, Any]], bool], what: str, after: int = 0
    ) -> None:
        deadline = time.monotonic() + SECONDS
        while not any(map(condition, (events := self.events())[after:])):
            ended = events and RunState(events[-1]["run"]["state"]).has_ended
            late = time.monotonic() > deadline
            assert not (ended or late), f"waited in vain for {what}:\n{self.tell()}"
            time.sleep(POLL_SECONDS)

    def _start_manager(self) -> None:
        settings = {
            "folder": str(self.root / CONTROL / "managed"),
            "store": self._store.url("trimaran"),
            "launcher": "external",
            "service_token": str(self.folder / "service-token"),
            "network": "trusted",
            "services": {"network": {"subnet": f"{NETWORK}.0/24"}},
            "pools": {"cluster": {"device": "cpu", "slots": 8}},
        }
        path = self.folder / "manager.yaml"
        path.write_text(yaml.safe_dump(settings))
        words = (sys.executable, "-m", "commands.cli", "up", "--config", str(path))
        log = self.folder / "manager.log"
        before = log.read_text().count("listens on") if log.exists() else 0
        with log.open("ab") as file:
            subprocess.Popen(
                [*_prefix(self.net(CONTROL), self.root, CONTROL), *words],
                stdout=file,
                stderr=file,
                env={**os.environ, marked.MARK: str(self.folder)},
            )
        deadline = time.monotonic() + SECONDS
        while log.read_text().count("listens on") == before:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(POLL_SECONDS)


@contextmanager
def site(
    folder: Path, places: Mapping[str, tuple[str, ...]], delay_ms: float, loss: float
) -> Iterator[Site]:
    """`places`: names of trainer ranks and replicas by the host on which they stand. `folder` has the
    run's data. While it is open, this thread is on the host `store`."""
    data = folder / "data"
    data.mkdir()
    for name in ("train.jsonl", "heldout.jsonl"):
        shutil.copy(folder / name, data / name)
    names = {STORE: (), CONTROL: CONTROLLING, **places}
    with far_hosts(NETWORK, len(names)) as nets, ExitStack() as stack:
        link = stack.enter_context(Link(nets, delay_ms, loss=loss))
        stack.enter_context(nets[0].entered())
        address = nets[0].address
        store = RedisServer(folder / "redis", *DURABLE, address=address).start()
        stack.callback(store.kill)
        bucket = Endpoint(BUCKET_PORT, address)
        with _environment(bucket.variables):
            bucket.start()
            stack.callback(bucket.kill)
            files = folder / "store-url", folder / "service-token"
            files[0].write_text(store.url("trimaran"))
            files[1].write_text("f" * 32)
            files[1].chmod(0o600)
            hosts = [
                Far(name, net, tuple(_engine(folder, name, net, one, *files) for one in services))
                for net, (name, services) in zip(nets, names.items(), strict=True)
            ]
            made = Site(folder, hosts, link, store)
            for name in names:
                stack.callback(made.end, name)
            for name in names:
                made.start(name)
            yield made


def _engine(
    folder: Path, host: str, net: NamespaceHost, service: str, store: Path, token: Path
) -> Engine:
    kind, _, index = service.partition("-") if service != "weight-sync" else (service, "", "")
    root = folder / "hosts"
    return Engine(
        *(root / host, kind, service, store, token, folder),
        options=("--network", "trusted"),
        index=index or "auto",
        prefix=tuple(_prefix(net, root, host)),
        variables={CACHE_VARIABLE: str(root / host / "cache")},
    )


def _prefix(net: NamespaceHost, root: Path, host: str) -> list[str]:
    """Before a command, which then has the host's network and sees no other host's folder."""
    alone = ("unshare", "--mount", "sh", "-c", ALONE, "sh", str(root), host) if HIDES else ()
    return net.inside(*alone)


def _namespace(process: psutil.Process) -> int:
    try:
        return os.stat(f"/proc/{process.pid}/ns/net").st_ino
    except OSError:
        return 0


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    former = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)
