"""What a run's folder tells without a manager: show, logs and samples of `trimaran train`."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commands.cli.manage import runs_view as view
from commands.cli.manage import samples_view
from services.manager.run_data.results import validation_samples, validation_steps
from trimaran.config import config_to_tree, load_config
from trimaran.errors import InputError
from trimaran.run.answers import RunSamples
from trimaran.run.context import RunContext
from trimaran.run.folder import CONFIG_NAME
from trimaran.run.runs import Run, run_from_tree, run_key, run_to_tree
from trimaran.store import read_store

POLL_SECONDS = 0.3


def show(folder: Path, options: argparse.Namespace) -> int:
    if options.config:
        config = load_config(folder / CONFIG_NAME)
        return view.print_config(config_to_tree(config), options.json)
    run = _read_run(folder)
    if options.json:
        print(json.dumps(run_to_tree(run), indent=2))
        return 0
    for line in view.describe_run(run, ()):
        print(line)
    return 0


def logs(folder: Path, options: argparse.Namespace) -> int:
    known = sorted(path.stem for path in (folder / "logs").glob("*.log"))
    if options.process not in known:
        problem = f"{options.process}: no log of {folder}" if options.process else "give a PROCESS"
        raise InputError(f"{problem}; there are: {', '.join(known) or 'none'}")
    for line in _read_log(folder / "logs" / f"{options.process}.log", options):
        print(line, end="", flush=options.follow)
    return 0


def samples(folder: Path, options: argparse.Namespace) -> int:
    """Shows samples of validations; those of trained steps lie in the ledger's payloads."""
    steps = validation_steps(folder)
    step = options.number if options.step is None else options.step
    step = (steps or (None,))[-1] if step is None else step
    if options.trained or step not in steps:
        known = ", ".join(map(str, steps)) or "none"
        raise InputError(f"{folder}: without a manager there are samples of validations: {known}")

    def ask(offset: int, limit: int) -> RunSamples:
        found, number = validation_samples(folder, step, limit, offset)
        return RunSamples(steps, (), tuple(found), number, step)

    return samples_view.show(ask, options)


def _read_run(folder: Path) -> Run:
    context = RunContext.in_folder(folder.resolve())

    async def read() -> Any:
        store = await read_store(context.store_url)
        if store is None:
            return None
        try:
            return await store.get(run_key(context.run_id))
        finally:
            await store.close()

    record = asyncio.run(read())
    if record is None:
        raise InputError(f"{folder}: nothing is recorded of this run yet")
    return run_from_tree(record.value)


def _read_log(path: Path, options: argparse.Namespace) -> Iterator[str]:
    """Its last lines, and what follows until Ctrl-C."""
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from deque(file, maxlen=options.lines)
        while options.follow:
            if line := file.readline():
                yield line
            else:
                time.sleep(POLL_SECONDS)
