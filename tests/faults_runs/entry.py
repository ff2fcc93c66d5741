"""What a newborn process of a driven run does: its stand-ins, its interceptor, then its command."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

from tests.faults.engine import StandInEngine
from tests.faults.orders import Orders
from tests.faults_runs import born, calls
from tests.faults_runs.standins import LearningPolicy
from trimaran.run.environment import process_name

PRELOAD = (
    "services.controller.server",
    "services.reward.server",
    "services.rollout.server",
    "services.trainer.server",
    "weights.receiving.receiver",
    "services.weight_sync.server",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.compat.proto.summary_pb2",
    "tensorboard.summary.writer.event_file_writer",
    "commands.cli.main",
    "commands.cli.serve.launch",
    "commands.cli.serve.serve",
    "commands.cli.serve.up",
)
PARENTS = ("launch", "up")
"""Commands that start processes."""
ORDERS = "TRIMARAN_FAULTS_ORDERS"
"""Environment variable: the folder of the driver's orders. A process's is RUN_FOLDER_NAME.NAME."""
PACE = "TRIMARAN_FAULTS_PACE"
"""Environment variable: the file that says how many seconds a token takes."""


def preload() -> None:
    """Before the first zygote."""
    for module in PRELOAD:
        import_module(module)


def live(arguments: list[str]) -> NoReturn:
    torch.set_num_threads(1)
    if arguments[0] in PARENTS:
        born.bear_from(born.split_off(live))
    orders = Orders(Path(os.environ[ORDERS]), who(arguments))
    calls.install(orders)
    _stand_in(arguments, orders)
    from commands.cli.main import main

    sys.exit(main(arguments))


def who(arguments: list[str]) -> str:
    """RUN.PROCESS, or the command alone.

    Example: who(["serve", "rollout", "--run-folder", "runs/a-1", "--index", "0"]) == "a-1.rollout-0"
    """
    if arguments[0] == "serve":
        index = _option(arguments, "--index") or "0"
        name = process_name(arguments[1], int(index))
        return f"{Path(_option(arguments, '--run-folder')).name}.{name}"
    if arguments[0] == "launch":
        return f"{Path(arguments[1]).name}.launcher"
    return arguments[0]


def _option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else ""


def _stand_in(arguments: list[str], orders: Orders) -> None:
    if arguments[:2] == ["serve", "trainer"]:
        from services.trainer import rank, server

        module: Any = server
        module.build_policy = lambda config, folder, device, rank: LearningPolicy(
            config, folder, rank
        )
        module = rank
        module.train_step = lambda policy, batch, config, previous: policy.learn(batch)
    if arguments[:2] == ["serve", "rollout"]:
        from services.rollout import server as rollout

        module = rollout
        pace = Path(os.environ[PACE])
        # With more batches under way at a time, each takes longer: steps come as fast as without.
        module.create_engine = lambda config, device, place: StandInEngine(
            orders, lambda: float(pace.read_text()) * (config.run.max_lag + 1)
        )
