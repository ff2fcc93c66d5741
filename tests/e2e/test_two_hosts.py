"""The tiny run on two hosts: network namespaces, each with an address and a run folder of its own.

Every service is started by hand, `trimaran serve KIND`: the replica on the second host, all others and the
launcher on the first. They meet in a Redis server that both reach.
"""

from __future__ import annotations

import asyncio
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
from tests.redis_server import RedisServer
from trimaran.config import load_config
from trimaran.run.context import RunContext
from trimaran.run.folder import write_config
from trimaran.run.runs import config_key
from trimaran.store import open_store
from trimaran.trust.access import Trust, make_token

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SECONDS = 300.0
TRUSTED = Trust(is_network_trusted=True)


@pytest.fixture
def pair() -> Iterator[list[NamespaceHost]]:
    """This thread, and what it starts, is on the first meanwhile."""
    with hosts("10.77.0", 2) as made, made[0].entered():
        yield made


@pytest.fixture(scope="module")
def known() -> list[bytes]:
    """Weights of the run on loopback, which need no second one for another transport."""
    return []


async def until_configured(url: str) -> None:
    """A service that comes before its configuration is in the store says that it is not."""
    store = await open_store(url)
    async with asyncio.timeout(SECONDS):
        while await store.get(config_key("run")) is None:
            await asyncio.sleep(0.1)
    await store.close()


def weights(run_folder: Path) -> bytes:
    return (run_folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("transport", "has_tls"), [("collective", False), ("relay", True)])
def test_a_run_on_two_hosts_reaches_the_weights_of_one_on_loopback(
    pair, write_run, tmp_path, redis_program, transport, has_tls, known
):
    """With TLS each host has a certificate of its own, which names its address."""
    sections = {"run": {"deterministic": True}, "weight_sync": {"transport": transport}}
    if not known:
        known.append(weights(runs.finished(write_run(**sections), parent=tmp_path)[0]))

    config = load_config(write_run(**sections, network={"subnet": "10.77.0.0/24"}))
    authority = Authority("services")
    first, second = folders = [tmp_path / "hosts" / host.name / "run" for host in pair]
    with ExitStack() as stack:
        redis = RedisServer(tmp_path / "redis", address=pair[0].address).start()
        stack.callback(redis.kill)
        for host, folder in zip(pair, folders, strict=True):
            (folder / "logs").mkdir(parents=True)
            files = authority.write(tmp_path / host.name, addresses=(host.address,))
            trust = Trust(tls=files) if has_tls else TRUSTED
            RunContext("run", folder, redis.url("run"), trust, launcher="external").write()
        make_token(first)
        shutil.copy(first / "token", second / "token")  # as a secret is handed out
        write_config(first, config)

        def start(host: int, name: str, *words: str) -> subprocess.Popen[bytes]:
            command = pair[host].inside(sys.executable, "-m", "commands.cli", *words)
            environment = {**os.environ, marked.MARK: str(tmp_path)}
            with (tmp_path / f"{name}.log").open("ab") as file:
                process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
            return process

        launcher = start(0, "launcher", "launch", str(first))
        asyncio.run(until_configured(redis.url("run")))
        for kind in ("reward", "weight-sync", "trainer", "controller"):
            start(0, kind, "serve", kind, "--run-folder", str(first), "--index", "0")
        start(1, "rollout", "serve", "rollout", "--run-folder", str(second), "--index", "0")
        logs = sorted(tmp_path.glob("*.log"))
        assert launcher.wait(SECONDS) == 0, [log.read_text()[-3000:] for log in logs]
        assert [weights(first)] == known
        # Nothing of the run lies on the second host but what it was handed.
        left = {file.name for file in second.iterdir()}
        assert left <= {"context.json", "token", "logs"}
