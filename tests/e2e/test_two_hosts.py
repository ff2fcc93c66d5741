"""The tiny run on two hosts: network namespaces, each with an address and a run folder of its own.

Every service is started by hand, `trimaran serve KIND`: the replica on one host, all others and the
launcher on the other one. They meet in a Redis server that both reach.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import marked
from tests.certificates import Authority
from tests.e2e import runs
from tests.namespaces import NamespaceHost, hosts
from tests.redis_server import DURABLE, PROGRAM, WHY_SKIPPED
from trimaran.config import RunConfig, load_config
from trimaran.run.context import RunContext
from trimaran.run.folder import write_config
from trimaran.trust.access import Trust, make_token

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SECONDS = 300.0
LOOK = """
import asyncio, sys
from trimaran.run.runs import config_key
from trimaran.store import open_store

async def look():
    store = await open_store(sys.argv[1])
    while await store.get(config_key("run")) is None:
        await asyncio.sleep(0.1)
    await store.close()

asyncio.run(look())
"""
TRUSTED = Trust(is_network_trusted=True)
ADDED = ("reward", "weight-sync", "trainer", "controller")


@pytest.fixture
def pair() -> Iterator[list[NamespaceHost]]:
    with hosts("10.77.0", 2) as made:
        yield made


class TwoHosts:
    """One run's processes on both."""

    def __init__(
        self, pair: list[NamespaceHost], folder: Path, config: RunConfig, stack: ExitStack
    ) -> None:
        if PROGRAM is None:
            pytest.skip(WHY_SKIPPED)
        self.pair, self.folder, self.config = pair, folder, config
        self._stack = stack
        folder.mkdir()
        self.url = f"redis://{pair[0].address}:6379/0?prefix=run"
        place = ("--bind", pair[0].address, "--port", "6379", "--dir", str(folder))
        settings = ("--protected-mode", "no", "--save", "", *DURABLE)
        self.start(0, PROGRAM, *place, *settings, log="redis")

    def prepare(self, *trusts: Trust) -> None:
        """The run's folder on the first host, and what the second one gets of it. `trusts`: of each."""
        first, second = self.folders
        for folder in self.folders:
            (folder / "logs").mkdir(parents=True)
        make_token(first)
        shutil.copy(first / "token", second / "token")  # as a secret is handed out
        for folder, trust in zip(self.folders, trusts, strict=True):
            RunContext("run", folder, self.url, trust, launcher="external").write()
        write_config(first, self.config)

    @property
    def folders(self) -> tuple[Path, Path]:
        return self.folder / "first" / "run", self.folder / "second" / "run"

    def start(self, host: int, *command: str, log: str) -> subprocess.Popen[bytes]:
        path = self.folder / f"{log}.log"
        with path.open("ab") as file:
            process = subprocess.Popen(
                self.pair[host].inside(*command),
                stdout=file,
                stderr=file,
                env={**os.environ, marked.MARK: str(self.folder)},
            )
        self._stack.callback(_end, process)
        return process

    def trimaran(self, host: int, *words: str, log: str) -> subprocess.Popen[bytes]:
        return self.start(host, sys.executable, "-m", "commands.cli", *words, log=log)

    def launch(self) -> subprocess.Popen[bytes]:
        """Returns once the configuration is in the store: a service that comes before says that it is not."""
        launcher = self.trimaran(0, "launch", str(self.folders[0]), log="launcher")
        looking = self.pair[0].inside(sys.executable, "-c", LOOK, self.url)
        subprocess.run(looking, check=True, timeout=SECONDS)
        return launcher

    def serve(self, host: int, kind: str) -> subprocess.Popen[bytes]:
        where = ("--run-folder", str(self.folders[host]), "--index", "0")
        return self.trimaran(host, "serve", kind, *where, log=kind)

    def tell(self) -> str:
        """The last lines of everybody, for a test that fails."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in logs)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_there(there: TwoHosts) -> None:
    launcher = there.launch()
    for kind in ADDED:
        there.serve(0, kind)
    there.serve(1, "rollout")
    assert launcher.wait(SECONDS) == 0, there.tell()


def weights(run_folder: Path) -> bytes:
    return (run_folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def known() -> list[bytes]:
    """Weights of the run on loopback, which need no second one for another transport."""
    return []


@pytest.mark.parametrize("transport", ["collective", "relay"])
def test_a_run_on_two_hosts_reaches_the_weights_of_one_on_loopback(
    pair, write_run, tmp_path, transport, known
):
    sections = {"run": {"deterministic": True}, "weight_sync": {"transport": transport}}
    if not known:
        code, output = runs.train(write_run(**sections), run_folder_parent=tmp_path)
        assert code == 0, output
        known.append(weights(runs.only_run(tmp_path / "runs")))

    config = load_config(write_run(**sections, network={"subnet": "10.77.0.0/24"}))
    with ExitStack() as stack:
        there = TwoHosts(pair, tmp_path / "hosts", config, stack)
        there.prepare(TRUSTED, TRUSTED)
        run_there(there)
        assert [weights(there.folders[0])] == known
        # Nothing of the run lies on the second host but what it was handed.
        left = {file.name for file in there.folders[1].iterdir()}
        assert left <= {"context.json", "token", "logs"}
    assert runs.survivors(tmp_path / "hosts") == []


def test_a_run_on_two_hosts_that_trusts_only_by_tls(pair, write_run, tmp_path):
    """Each host has a certificate of its own, which names its address."""
    authority = Authority("services")
    files = [authority.write(tmp_path / host.name, addresses=(host.address,)) for host in pair]
    sections = {"run": {"deterministic": True, "steps": 2}, "weight_sync": {"transport": "relay"}}
    config = load_config(write_run(**sections, network={"subnet": "10.77.0.0/24"}))
    with ExitStack() as stack:
        there = TwoHosts(pair, tmp_path / "hosts", config, stack)
        there.prepare(*(Trust(tls=tls) for tls in files))
        run_there(there)
        assert len(runs.rows(there.folders[0], "step")) == 2
    assert runs.survivors(tmp_path / "hosts") == []


def test_beyond_loopback_nothing_starts_without_tls_or_the_word(pair, write_run, tmp_path):
    config = load_config(write_run(network={"subnet": "10.77.0.0/24"}))
    with ExitStack() as stack:
        there = TwoHosts(pair, tmp_path / "hosts", config, stack)
        there.prepare(Trust(), Trust())
        there.launch()
        for kind in ("reward", "rollout"):
            assert there.serve(0, kind).wait(60) == 2
            said = (there.folder / f"{kind}.log").read_text()
            assert f"error: {pair[0].address}" in said or "error: network.subnet" in said, said
            assert "beyond loopback" in said and "Traceback" not in said
