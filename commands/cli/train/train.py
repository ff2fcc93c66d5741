"""`trimaran train`: check, start every service, show the progress, say what came of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from rich.console import Console

from commands.cli.files.import_ import refuse_theirs
from commands.cli.manage.find_run import LATEST, find_folder
from commands.cli.serve.launch import Signals, launch_here, prepared
from commands.cli.train.pages import pages
from commands.cli.train.preflight import refuse_password
from commands.cli.train.progress import follow
from commands.cli.train.summary import show_summary
from commands.cli.train.view import View
from commands.launch.service_process import ServiceDiedError
from services.controller.datasets import TrainingPrompts
from trimaran.config import RunConfig, load_config
from trimaran.errors import InputError
from trimaran.run.context import RunContext
from trimaran.run.folder import (
    locked,
    make_run_folder,
    open_run_folder,
    recorded_run,
    write_config,
)
from trimaran.run.network import check_tensors, find_host
from trimaran.run.runs import Run, RunState, events_stream
from trimaran.store import open_store
from trimaran.trust.access import make_token

LAST_EVENTS_SECONDS = 5.0
"""After the processes' end, for the events that are still on their way."""


def run(options: argparse.Namespace) -> int:
    """`trimaran train`, and with --resume the same for an earlier run."""
    if options.resume is None:
        if options.config is None:
            raise InputError("train: give a run's YAML file, or --resume RUN")
        return train(
            *(options.config, options.overrides, options.network, options.launcher),
            *(options.store, options.view),
        )
    words = [options.config] if options.config else []
    if words and "=" not in options.config:
        raise InputError(
            f"{options.config}: a resumed run keeps its configuration; give --resume RUN without a file"
        )
    overrides = [*words, *options.overrides]
    return resume(options.resume, options.network, options.launcher, overrides, options.view)


def train(
    config_path: str,
    overrides: Sequence[str],
    network: str | None = None,
    launcher: str = "local",
    store: str | None = None,
    view: bool = False,
) -> int:
    """`view`: serves the run's pages meanwhile."""
    refuse_password(store)
    refuse_theirs(config_path)
    config = load_config(config_path, overrides)
    config = prepared(config, launcher, move_busy=False)
    folder = make_run_folder(config)
    run = RunContext.in_folder(folder)
    run = replace(run, store_url=store or run.store_url, launcher=launcher)
    return _launch(config, run, network, view)


def resume(
    run: str,
    network: str | None = None,
    launcher: str = "local",
    overrides: Sequence[str] = (),
    view: bool = False,
) -> int:
    """`overrides`: of what `trimaran.run.resumable` names."""
    folder, config = open_run_folder(str(find_folder(run)) if run == LATEST else run, overrides)
    make_token(folder)  # an older run has none
    context = replace(RunContext.in_folder(folder), launcher=launcher)
    if (known := asyncio.run(recorded_run(context))) and not _has_more(config, known):
        console = Console()
        console.print(
            f"this run has finished its {known.step} steps; extend it with --resume {folder} run.steps=N",
            soft_wrap=True,
        )
        show_summary(folder, console)
        return 0
    return _launch(prepared(config, launcher, move_busy=True, run=context), context, network, view)


def _has_more(config: RunConfig, known: Run) -> bool:
    """Whether the configuration, with what is to change, leaves a run anything to do. Raises InputError for less
    steps than it has."""
    is_done = known.state is RunState.SUCCEEDED
    if is_done and config.validation.only:
        return False
    run = config.run
    if run.epochs and is_done:
        run = run.counted(len(TrainingPrompts.open(config)))
    if run.steps is not None and run.steps < known.step:
        raise InputError(
            f"run.steps: {run.steps}, and the run has {known.step}; give as many or more"
        )
    return not is_done or run.steps != known.step


def _launch(config: RunConfig, run: RunContext, network: str | None, with_pages: bool) -> int:
    """`network` None: what the run had before."""
    console, folder = Console(), run.folder
    if network is not None:
        run = replace(run, trust=replace(run.trust, is_network_trusted=network == "trusted"))
    check_tensors(config, run.trust, find_host(config.network))
    with locked(folder):
        run.write()
        write_config(folder, config)
        console.print(f"run folder: {folder}", highlight=False, soft_wrap=True)
        try:
            return asyncio.run(_run(config, run, console, with_pages))
        except ServiceDiedError as error:
            print(f"error: {error}", file=sys.stderr)
            if error.started:
                print(f"go on with: trimaran train --resume {folder}", file=sys.stderr)
            return error.exit_code


async def _run(config: RunConfig, run: RunContext, console: Console, with_pages: bool) -> int:
    store = await open_store(run.store_url)
    signals, view = Signals(), View(console)
    resume = f"go on with: trimaran train --resume {run.folder}"
    try:
        shown = await store.last(events_stream(run.run_id))
        async with AsyncExitStack() as stack:
            if with_pages:
                await stack.enter_async_context(pages(run.folder, partial(_say, console)))
            following = asyncio.create_task(follow(store, run.run_id, view, shown))
            try:
                ended = await launch_here(config, run, store, signals.end)
            finally:
                await _end(following, 0.0 if signals.seen else LAST_EVENTS_SECONDS)
    except asyncio.CancelledError:
        if not signals.seen:
            raise
        console.print(f"stopped; {resume}", soft_wrap=True)
        return 128 + signals.seen[0]
    finally:
        await store.close()
    if ended is not None and ended.state is RunState.PAUSED:
        console.print(f"paused; {resume}", soft_wrap=True)
        return 0
    show_summary(run.folder, console)
    return 1 if ended is not None and ended.state is RunState.FAILED else 0


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


async def _end(following: asyncio.Task[None], timeout: float) -> None:
    await asyncio.wait([following], timeout=timeout)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
