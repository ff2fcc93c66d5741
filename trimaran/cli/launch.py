"""`trimaran launch`: the launcher of one run as a process of its own, without a display.

Its exit code is 0 when the run has ended as it should, is paused or cancelled, 2 for bad input and
1 when the run has failed. How the run stands is recorded in its store in each case.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from trimaran import scope
from trimaran.cli.preflight import check_run
from trimaran.clients import ControllerClient
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.launch.devices import place
from trimaran.launch.endpoints import fill_endpoints
from trimaran.launch.environment import is_of_bucket, plugin_variables
from trimaran.launch.launch import launch
from trimaran.launch.lease import held_lease
from trimaran.launch.local import Processes, ServiceDiedError
from trimaran.launch.reports import Reports
from trimaran.launch.run_folder import locked, open_run_folder, write_config
from trimaran.launch.run_services import run_services
from trimaran.machine import read_machine
from trimaran.run_context import RunContext
from trimaran.runs import Goal, Run, launcher_lease
from trimaran.scrape import ADDRESS_VARIABLE
from trimaran.store import Store, open_store
from trimaran.telemetry import setup_logging

logger = logging.getLogger(__name__)


def launch_run(run_folder: str) -> int:
    """Of the run whose context.json and config.yaml the folder holds."""
    setup_logging("launcher")
    folder, config = open_run_folder(run_folder)
    run = RunContext.in_folder(folder)
    scope.process.run_id = run.run_id
    with locked(folder):
        return asyncio.run(_launch(config, run))


async def _launch(config: RunConfig, run: RunContext) -> int:
    store = await open_store(run.store_url)
    try:
        return await _launch_with(store, config, run)
    finally:
        await store.close()


async def _launch_with(store: Store, config: RunConfig, run: RunContext) -> int:
    try:
        check_run(config)
        config = fill_endpoints(config, move_busy=True)
    except InputError as error:
        async with held_lease(store, launcher_lease(run.run_id)) as lease:
            await Reports(store, run, lease).refused(config, error)
        raise
    write_config(run.folder, config)
    try:
        await launch_here(config, run, store, Signals().end)
    except ServiceDiedError as error:
        logger.info("the run has failed: %s", error)
        return error.exit_code
    except asyncio.CancelledError:
        logger.info("stopped; the run can be resumed")
    return 0


async def launch_here(
    config: RunConfig, run: RunContext, store: Store, on_start: Callable[[Processes], None]
) -> Run | None:
    """`trimaran.launch.launch.launch` of the processes that the configuration names, on this
    machine."""
    address = config.endpoints.controller
    assert address, "endpoints are filled"

    async def set_goal(goal: Goal) -> None:
        async with ControllerClient(address, run.run_id, run.trust) as client:
            await client.set_goal(goal)

    # An address for one process; of those that we start the manager tells.
    os.environ.pop(ADDRESS_VARIABLE, None)
    services = run_services(config, run.folder, place(config, read_machine(os.environ)))
    # The reward service and the controller have theirs; what else is started gets none.
    for name in [*plugin_variables(config), *filter(is_of_bucket, os.environ)]:
        os.environ.pop(name, None)
    return await launch(config, run, services, store, set_goal, on_start)


class Signals:
    """The first signal ends the processes in order, a second one at once.

    Example: await launch_here(config, run, store, Signals().end)
    """

    def __init__(self) -> None:
        self.seen: list[int] = []

    def end(self, processes: Processes) -> None:
        """Called in the task that is then to be cancelled."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task

        def stop(number: int) -> None:
            self.seen.append(number)
            if len(self.seen) == 1:
                task.cancel()
            else:
                processes.kill_all()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, int(number))
