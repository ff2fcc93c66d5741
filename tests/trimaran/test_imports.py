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
    names = ["services.weight_sync.data.manifest"]
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
    assert not loaded & {"torch", "transformers", "vllm"}


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["serve", "--help"]])
def test_nothing_heavy_is_imported_before_parsing(arguments: list[str]) -> None:
    code = f"""
from trimaran.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    pass
"""
    heavy = {"grpc", "pydantic", "numpy", "rich", "yaml", "torch", "asyncio", "matplotlib"}
    assert not modules_after(code) & heavy


def test_what_reward_workers_are_forked_from_holds_no_threads_of_grpc() -> None:
    loaded = modules_after("import services.reward.workers.worker, services.reward.workers.warm")
    assert not loaded & {"grpc", "aiohttp"}
