"""What may be loaded where, seen from `sys.modules` of fresh processes."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import services.controller
import services.reward
import trimaran


def modules_after(code: str) -> set[str]:
    listing = "\nimport sys; print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code + listing], capture_output=True, text=True, check=True
    )
    return set(answer.stdout.split("\n")[-2].split())


def torch_free_modules() -> list[str]:
    names = ["weights.version.manifest"]
    for package in (trimaran, services.controller, services.reward):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                names.append(module.name)
    return names


@pytest.mark.e2e
def test_trimaran_controller_and_reward_never_load_torch() -> None:
    names = torch_free_modules()
    assert "services.reward.workers.pool" in names
    loaded = modules_after("\n".join(f"import {name}" for name in names))
    assert "services.controller.loop" in loaded
    assert not loaded & {"torch", "transformers", "vllm", "ray"}


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["serve", "--help"]])
def test_nothing_heavy_is_imported_before_parsing(arguments: list[str]) -> None:
    code = f"""
from commands.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    pass
"""
    heavy = {"grpc", "pydantic", "numpy", "rich", "yaml", "torch", "asyncio"}
    assert not modules_after(code) & heavy


def test_what_reward_workers_are_forked_from_holds_no_threads_of_grpc() -> None:
    loaded = modules_after("import services.reward.workers.worker, services.reward.workers.warm")
    assert not loaded & {"grpc", "aiohttp"}


LOCAL_RUN = """
import sys
from pathlib import Path

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "ray":
            sys.modules["somebody_seeks_ray"] = sys

sys.meta_path.insert(0, Watch())
import commands.cli.train.train, commands.cli.serve.serve
from commands.cli.serve.launch import SITES, prepared
from trimaran.config import parse_config
from commands.launch.local.endpoints import fill_endpoints
from trimaran.run.context import RunContext
reward = {"rules": {"gsm8k": 1}}
config = parse_config({"model": {"path": "m"}, "data": {"train": "d"}, "reward": reward})
config = fill_endpoints(config, False)
SITES["local"](config, RunContext("demo-1", Path("/tmp/demo-1"), "sqlite:x"), None)
"""


def test_a_run_on_one_machine_never_looks_for_ray() -> None:
    """Whether it is installed or not, so that such a run does not pay for it."""
    assert not modules_after(LOCAL_RUN) & {"somebody_seeks_ray", "commands.launch.ray"}
    on_ray = (
        "from contextlib import suppress\nwith suppress(Exception): prepared(config, 'ray', False)"
    )
    assert "somebody_seeks_ray" in modules_after(LOCAL_RUN + on_ray)
