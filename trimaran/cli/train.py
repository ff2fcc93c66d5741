"""`trimaran train`: check, start every service, show the progress, say what came of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from trimaran.cli.preflight import check_run
from trimaran.cli.progress import follow
from trimaran.cli.summary import show_summary
from trimaran.cli.view import View, choose_view
from trimaran.clients import RunClient
from trimaran.config import RunConfig, load_config
from trimaran.errors import UnavailableError
from trimaran.launch.devices import place
from trimaran.launch.endpoints import fill_endpoints
from trimaran.launch.local import Processes, ServiceDiedError, run_services
from trimaran.launch.run_folder import (
    has_succeeded,
    locked,
    make_run_folder,
    open_run_folder,
    write_config,
)
from trimaran.machine import read_machine
from trimaran.run_context import RunContext
from trimaran.runs import Run, RunState

LAST_EVENTS_SECONDS = 5.0
"""After the controller's end, for the events that are still on their way."""


def train(config_path: str, overrides: Sequence[str]) -> int:
    config = load_config(config_path, overrides)
    check_run(config)
    config = fill_endpoints(config)
    return _launch(config, make_run_folder(config))


def resume(run: str) -> int:
    folder, config = open_run_folder(run)
    if asyncio.run(has_succeeded(RunContext.in_folder(folder))):
        console = Console()
        console.print("this run has finished; there is nothing to resume")
        show_summary(folder, console)
        return 0
    check_run(config)
    return _launch(fill_endpoints(config, move_busy=True), folder)


def cancel(address: str) -> int:
    async def ask() -> Run:
        async with RunClient(address) as client:
            try:
                return await client.cancel_run()
            except UnavailableError:
                raise UnavailableError(
                    f"{address}: no controller answers there; the config.yaml of its run folder"
                    " names it (endpoints.controller)"
                ) from None

    run = asyncio.run(ask())
    print(f"{run.run_id}: ends after step {run.step}")
    return 0


def _launch(config: RunConfig, folder: Path) -> int:
    console = Console()
    with locked(folder):
        config_path = write_config(folder, config)
        console.print(f"run folder: {folder}", highlight=False, soft_wrap=True)
        try:
            return asyncio.run(_run(config, config_path, folder, console))
        except ServiceDiedError as error:
            print(f"error: {error}", file=sys.stderr)
            if error.started:
                print(f"go on with: trimaran train --resume {folder}", file=sys.stderr)
            return error.exit_code


async def _run(config: RunConfig, config_path: Path, folder: Path, console: Console) -> int:
    placement = place(config, read_machine(os.environ))
    processes = Processes(run_services(config, config_path, folder, placement))
    stopped_by = _cancel_on_signals(processes)
    view = choose_view(console, config)
    try:
        async with processes:
            with view:
                await _until_ended(config, processes, view)
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        console.print(f"stopped; go on with: trimaran train --resume {folder}", soft_wrap=True)
        return 128 + stopped_by[0]
    show_summary(folder, console)
    return 1 if view.run is not None and view.run.state is RunState.FAILED else 0


async def _until_ended(config: RunConfig, processes: Processes, view: View) -> None:
    def started() -> None:
        processes.running = True

    assert config.endpoints.controller
    watching = asyncio.create_task(follow(config.endpoints.controller, view, started))
    try:
        await processes.wait(view.note)
        await asyncio.wait([watching], timeout=LAST_EVENTS_SECONDS)
        if watching.done():
            watching.result()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _cancel_on_signals(processes: Processes) -> list[int]:
    """The first signal ends the run in order, a second one at once. Holds the signals that came."""
    seen: list[int] = []
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task

    def stop(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            task.cancel()
        else:
            processes.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, int(number))
    return seen
