"""Folders of runs as `trimaran train` leaves them, filled by a test."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.manager.fakes import FakeProcesses, processes_of, specification
from trimaran.config import RunConfig, config_to_tree, parse_config
from trimaran.run.context import RunContext
from trimaran.run.folder import write_config
from trimaran.run.runs import config_key
from trimaran.store import store_in
from trimaran.trust.access import make_token

Contents = dict[str, tuple[int, bytes]]


def config_of(files: Path, **sections: Any) -> RunConfig:
    """`files`: where what the configuration names may lie."""
    return parse_config(yaml.safe_load(specification(files, **sections)))


def make_run(folder: Path, config: RunConfig, age: float = 0.0) -> RunContext:
    """`age`: seconds since its launcher was started."""
    (folder / "logs").mkdir(parents=True)
    make_token(folder)
    run = RunContext(folder.name, folder, store_in(folder))
    run.write()
    path = write_config(folder, config)
    began = path.stat().st_mtime - age
    os.utime(path, (began, began))
    return run


@asynccontextmanager
async def launched(run: RunContext, config: RunConfig) -> AsyncGenerator[FakeProcesses]:
    """Its processes, with what a launcher records first."""
    async with processes_of(run) as processes:
        await processes.store.put(config_key(run.run_id), config_to_tree(config))
        yield processes


def contents(folder: Path) -> Contents:
    """Of every file below: when it was written, and what it holds."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
