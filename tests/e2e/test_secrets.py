"""What the processes of a run leave to be read by others: no token, and no password of the store."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest

from commands.launch.local.endpoints import fill_endpoints
from tests import marked
from tests.e2e import runs
from tests.e2e.test_reward_plugin import EXAMPLE, serving
from trimaran.clients import ControllerClient, TrainerClient
from trimaran.config import load_config
from trimaran.errors import UnauthenticatedError
from trimaran.run.context import RunContext
from trimaran.run.folder import write_config
from trimaran.trust.access import NO_TRUST, Trust, make_token, new_token
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.types import Caller
from trimaran.wire import rpc

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
PASSWORD = "correct-horse-battery-staple"
BUCKET_SECRET = "bucket-secret-of-the-test"
PLUGIN_VARIABLE, PLUGIN_TOKEN = "TRIMARAN_STYLE_TOKEN", "plugin-token-of-the-test"


@pytest.fixture
def plugin():
    bounds = ("--minimum", "0", "--maximum", "1", "--token-variable", "T_TOKEN")
    with serving(EXAMPLE, "brevity.py:brevity", *bounds, T_TOKEN=PLUGIN_TOKEN) as url:
        yield url


def test_no_secret_is_in_command_lines_environments_logs_or_files_of_others(
    write_run, tmp_path, redis_server, plugin, monkeypatch
):
    redis_server.require(PASSWORD)
    monkeypatch.setenv(PLUGIN_VARIABLE, PLUGIN_TOKEN)
    monkeypatch.setenv(ALLOW_VARIABLE, plugin)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", BUCKET_SECRET)
    folder = tmp_path / "runs" / "secret-run"
    (folder / "logs").mkdir(parents=True)
    style = {"weight": 0.1, "plugin": {"url": plugin, "token_variable": PLUGIN_VARIABLE}}
    rules = {"last_integer": 1.0, "style": style}
    config = write_run(run={"steps": 500}, reward={"rules": rules})
    config = fill_endpoints(load_config(config))
    write_config(folder, config)
    token = make_token(folder)
    url = f"redis://:{PASSWORD}@127.0.0.1:{redis_server.port}/0?prefix=secrets"
    RunContext("secret-run", folder, url, Trust(token)).write()
    process = runs.start("launch", folder, run_folder_parent=tmp_path)
    try:
        runs.wait_for(lambda: runs.rows(folder, "step"), process, "the first step")
        started = load_config(folder / "config.yaml")  # the launcher may have moved a busy port
        asyncio.run(strangers_are_refused(started, token))
        alive = marked.marked(tmp_path)
        assert len(alive) >= 6  # the launcher, five services, and what they started
        shown = [
            (one, secret, name)
            for one in alive
            for secret in (token, PASSWORD)
            for name in ("cmdline", "environ")
        ]
        assert not [one for one in shown if knows(*one)]
        # The launcher hands it on. The reward's workers run foreign code, and do not have it.
        knowing = [what_it_is(one) for one in alive if knows(one, PLUGIN_TOKEN)]
        assert sorted(knowing) == ["launch", "reward"]
        knowing = [what_it_is(one) for one in alive if knows(one, BUCKET_SECRET)]
        assert sorted(knowing) == ["controller", "launch"]  # of whom one writes the payloads
    finally:
        process.send_signal(signal.SIGTERM)
        output = runs.finish(process)
    assert not [one for one in (token, PASSWORD, PLUGIN_TOKEN, BUCKET_SECRET) if one in output]
    assert not [path for path in files_in(folder) if holds(path, PLUGIN_TOKEN)]
    holders = [path for path in files_in(folder) if holds(path, token)]
    assert holders == [folder / "token"]
    holders += [path for path in files_in(folder) if holds(path, PASSWORD)]
    assert holders == [folder / "token", folder / "context.json"]
    assert {path.stat().st_mode & 0o777 for path in holders} == {0o600}


async def strangers_are_refused(config, token):
    """No token, and that of another run; what is logged about them is looked at later."""
    endpoints = config.endpoints
    for trust in (NO_TRUST, Trust(new_token())):
        async with TrainerClient(endpoints.trainer[0], Caller("secret-run", 1), trust) as trainer:
            with pytest.raises(UnauthenticatedError):
                await trainer.save_checkpoint(1, timeout=10)
        async with ControllerClient(endpoints.controller, trust=trust) as controller:
            with pytest.raises(UnauthenticatedError):
                await controller.get_status()
    async with ControllerClient(endpoints.controller, trust=Trust(token)) as controller:
        assert (await controller.get_status()).running
    for address in (endpoints.reward, endpoints.weight_sync, *endpoints.rollout):
        await rpc.wait_until_serving(address, 10)  # a probe needs none


def knows(process: psutil.Process, secret: str, name: str = "environ") -> bool:
    """`name`: of what the kernel shows of it."""
    try:
        return secret.encode() in Path(f"/proc/{process.pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended


def what_it_is(process: psutil.Process) -> str:
    words = process.cmdline()
    return next(
        (word for word in ("launch", "reward", "controller") if word in words), " ".join(words)
    )


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def holds(path: Path, secret: str) -> bool:
    return secret.encode() in path.read_bytes()
