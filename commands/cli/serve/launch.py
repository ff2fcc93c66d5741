"""`trimaran launch`: the launcher of one run as a process of its own, without a display.

Its exit code is 0 when the run has ended as it should, is paused or cancelled, 2 for bad input and
1 when the run has failed. How the run stands is recorded in its store in each case.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping

from commands.cli.train.preflight import check_run, show_errors, with_checkpoint
from commands.launch.joining.external_children import ExternalChildren
from commands.launch.launch import launch
from commands.launch.local.endpoints import fill_endpoints
from commands.launch.local.local_children import LocalChildren
from commands.launch.processes import Processes
from commands.launch.reports import Reports
from commands.launch.run_services import (
    added_replica,
    remote_replica,
    remote_services,
    run_services,
)
from commands.launch.service_process import ServiceDiedError, ServiceProcess
from commands.launch.site import Site
from trimaran.clients import ControllerClient
from trimaran.config import Endpoints, RunConfig
from trimaran.errors import InputError, UnavailableError
from trimaran.host.machine import read_machine
from trimaran.run.context import RunContext
from trimaran.run.environment import plugin_variables
from trimaran.run.folder import locked, open_run_folder, write_config
from trimaran.run.launchers import check_hosts
from trimaran.run.lease import held_lease
from trimaran.run.network import find_host
from trimaran.run.place import has_checkpoint
from trimaran.run.placement import place
from trimaran.run.runs import Goal, Run, launcher_lease
from trimaran.store import Store, open_store
from trimaran.telemetry import scope
from trimaran.telemetry.run_files import setup_logging
from trimaran.trust.credentials import is_of_bucket, is_of_sink
from trimaran.wire.scrape import ADDRESS_VARIABLE

logger = logging.getLogger(__name__)


def launch_run(options: argparse.Namespace) -> int:
    """Launches the run whose context.json and config.yaml the folder holds."""
    setup_logging("launcher")
    folder, config = open_run_folder(options.run_folder)
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
        config = prepared(config, run.launcher, move_busy=True, run=run)
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


def prepared(
    config: RunConfig, launcher: str, move_busy: bool, run: RunContext | None = None
) -> RunConfig:
    """Checked, and with addresses, where all of it is on this machine. Elsewhere each service finds
    its files, devices and address itself. `run`: one that may have begun."""
    check_hosts(config, launcher)
    if launcher == "ray":
        from trimaran.run.ray.cluster import check_installed  # late: others do not need it

        check_installed()
    if launcher != "local":
        return config.model_copy(update={"endpoints": Endpoints()})
    check_run(config)
    if run is None or not has_checkpoint(config, run):
        config = with_checkpoint(config)
    show_errors(config)
    return fill_endpoints(config, move_busy)


async def launch_here(
    config: RunConfig, run: RunContext, store: Store, on_start: Callable[[Processes], None]
) -> Run | None:
    """`commands.launch.launch.launch` of the processes that the configuration names, wherever the
    run's launcher has them started."""

    async def set_goal(address: str, goal: Goal) -> None:
        if not address:
            raise UnavailableError("the controller has not said yet where it listens")
        async with ControllerClient(address, run.run_id, run.trust) as client:
            await client.set_goal(goal)

    # An address for one process; of those that we start the manager knows.
    os.environ.pop(ADDRESS_VARIABLE, None)
    site = SITES[run.launcher](config, run, store)
    # The reward service and the controller have theirs; what else is started gets none.
    own = [name for name in os.environ if is_of_bucket(name) or is_of_sink(name)]
    for name in [*plugin_variables(config), *own]:
        os.environ.pop(name, None)
    return await launch(config, run, site, store, set_goal, on_start)


def _local_site(config: RunConfig, run: RunContext, store: Store) -> Site:
    """Children of this process, on this machine."""

    placement = place(config, read_machine(os.environ))
    services = run_services(config, run.folder, placement)
    taken = {service.address for service in services}  # also while one of them is dead
    host = find_host(config.network)

    def make_replica(index: int, devices: tuple[str, ...]) -> list[ServiceProcess]:
        address = host.free_address(taken)
        taken.add(address)
        return [added_replica(config, run.folder, index, address, devices)]

    return Site(services, make_replica, LocalChildren(), placement.num_devices)


def _external_site(config: RunConfig, run: RunContext, store: Store) -> Site:
    """Whatever a container engine has started, wherever that is."""

    def make_replica(index: int, devices: tuple[str, ...]) -> list[ServiceProcess]:
        return remote_replica(config, run.folder, index)

    children = ExternalChildren(store, run.run_id, config.start_timeout)
    return Site(remote_services(config, run.folder), make_replica, children)


def _ray_site(config: RunConfig, run: RunContext, store: Store) -> Site:
    """Actors on the nodes of a Ray cluster."""
    from commands.launch.ray.site import ray_site  # late: others do not need it

    return ray_site(config, run, store)


SITES: Mapping[str, Callable[[RunConfig, RunContext, Store], Site]] = {
    "local": _local_site,
    "external": _external_site,
    "ray": _ray_site,
}
"""By `RunContext.launcher`."""


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
