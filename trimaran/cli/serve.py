"""`trimaran serve`: one service in this process.

Sets the process environment (by starting anew when it differs), ties its life to the
launcher's, and turns SIGTERM and SIGINT into an orderly end.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import cast

from trimaran import tracing
from trimaran.config import RunConfig, load_config
from trimaran.errors import InputError, TrimaranError, first_error
from trimaran.launch.devices import placed_environment
from trimaran.launch.endpoints import with_replica
from trimaran.launch.environment import process_name, serve_command, service_address
from trimaran.launch.exits import FAILED, exit_code
from trimaran.launch.lifetime import PARENT_VARIABLE, die_with_parent
from trimaran.run_context import RunContext
from trimaran.telemetry import setup_logging

STOP_SECONDS = 20.0
"""An orderly end that takes longer is cut short."""

logger = logging.getLogger(__name__)


def serve(kind: str, config_path: str, run_folder: str, index: int, address: str = "") -> int:
    config = load_config(config_path)
    if address:
        if kind != "rollout":
            raise InputError("--address: only replicas join beyond those of the configuration")
        config = with_replica(config, index, address)
    service_address(config, kind, index)
    folder = Path(run_folder).resolve()
    if not folder.is_dir():
        raise InputError(f"--run-folder: {folder} is not a folder; make it first")
    environment = placed_environment(config, kind, index, os.environ)
    if any(os.environ.get(name) != value for name, value in environment.items()):
        command = serve_command(kind, config_path, run_folder, index, address)
        os.execve(command[0], command, environment)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent:
        die_with_parent(int(parent), signal.SIGTERM)
    setup_logging(process_name(kind, index), RunContext.in_folder(folder).run_id)
    tracing.configure(os.environ)
    return _run(kind, config, folder, index)


def _run(kind: str, config: RunConfig, folder: Path, index: int) -> int:
    # Late: this loads the service's libraries, and only now stands their environment.
    module = importlib.import_module(f"services.{kind.replace('-', '_')}.server")

    async def until_stopped() -> None:
        task = asyncio.current_task()
        assert task
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            logger.info("%s: stopping", number.name)
            _cut_short_after(STOP_SECONDS, "")
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        try:
            await module.serve(config, RunContext.in_folder(folder), index)
        except Exception as error:
            # What has failed may have left a thread that hangs; it must not hold the process.
            _cut_short_after(STOP_SECONDS, f"; it ends because of: {error}", exit_code(error))
            raise

    try:
        asyncio.run(until_stopped())
    except asyncio.CancelledError:
        return 0
    except TrimaranError as error:
        return _tell(error)
    except Exception as error:
        logger.exception("the service failed")
        if isinstance(error, ExceptionGroup):
            group = cast(ExceptionGroup[Exception], error)
            if ours := group.subgroup(TrimaranError):
                return _tell(first_error(ours))
        return FAILED
    finally:
        tracing.stop()
    return 0


def _tell(error: BaseException) -> int:
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr)
    return exit_code(error)


def _cut_short_after(seconds: float, cause: str, code: int = FAILED) -> None:
    def cut_short() -> None:
        logger.error("still not stopped after %g s: ending now%s", seconds, cause)
        os._exit(code)

    timer = threading.Timer(seconds, cut_short)
    timer.daemon = True
    timer.start()
