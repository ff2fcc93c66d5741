"""The runs under a folder as their own files tell of them: `KnownRuns` for who has no manager.

    folder ──▶ config.yaml, context.json ──▶ the run's store, read only ──▶ Managed

A run is read again when its files have changed, and while it has processes. Nothing is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.manager.records import Managed
from services.manager.run_data.run_stores import RunStores
from services.manager.viewing.recorded import Recorded, managed, unreadable
from trimaran.config import config_to_tree, load_config
from trimaran.errors import NotFoundError, TrimaranError
from trimaran.run.context import RunContext
from trimaran.run.folder import CONFIG_NAME
from trimaran.run.runs import Run, RunState, config_key, launcher_lease, run_from_tree, run_key
from trimaran.store import store_in, written_at

LOOK_SECONDS = 1.0
READ_SECONDS = 5.0
"""For one run: a store that does not answer holds the others up no longer."""
AT_A_TIME = 16
"""Runs that are read."""


@dataclass(frozen=True, slots=True)
class _Found:
    run: Managed
    mark: tuple[float, ...]
    """When each of its files was written: another mark means that the run has changed."""
    alive_at: float
    """As in `Recorded`."""


class FoundRuns:
    """Example:
    runs = FoundRuns(Path("runs"), RunStores(find=read_store))
    await runs.look()
    runs.get("addition-20261120-120000").state
    """

    def __init__(
        self, path: Path, stores: RunStores, clock: Callable[[], float] = time.time
    ) -> None:
        """`path`: a run's folder, or a folder of several."""
        self._path, self._stores, self._clock = path.resolve(), stores, clock
        self._found: dict[Path, _Found] = {}
        self._runs: dict[str, Managed] = {}
        self._places = asyncio.Semaphore(AT_A_TIME)

    def get(self, run_id: str) -> Managed:
        """Raises NotFoundError."""
        if run_id not in self._runs:
            raise NotFoundError(f"run {run_id!r}: there is none in {self._path}")
        return self._runs[run_id]

    def all(self) -> Sequence[Managed]:
        return tuple(self._runs.values())

    async def follow(self) -> None:
        """For ever. New runs appear, and those that are removed go."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()
            self._stores.close_idle()

    async def look(self) -> None:
        """Once, at every run. One that cannot be read says why."""
        marks = await asyncio.to_thread(lambda: dict(_marks(self._path)))
        found = await asyncio.gather(*(self._look_at(*each) for each in marks.items()))
        self._found = dict(zip(marks, found, strict=True))
        self._runs = {each.run.run_id: each.run for each in found}

    async def _look_at(self, folder: Path, mark: tuple[float, ...]) -> _Found:
        before = self._found.get(folder)
        if before and before.mark == mark and _stays(before.run.state):
            return before
        async with self._places:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    return await self._read(folder, mark, before.alive_at if before else 0.0)
            except TimeoutError:
                problem = f"its store has not answered for {READ_SECONDS:g} s"
            except TrimaranError as error:
                problem = str(error)
        if before and before.run.state is not RunState.UNKNOWN:
            # Perhaps for a moment: what is known of it stays.
            return replace(before, run=replace(before.run, held=problem), mark=())
        return _Found(unreadable(RunContext(folder.name, folder, ""), problem), (), 0.0)

    async def _read(self, folder: Path, mark: tuple[float, ...], alive_at: float) -> _Found:
        context = await asyncio.to_thread(RunContext.in_folder, folder)
        run, config, has_lease = await self._ask(context)
        if config is None:
            read = await asyncio.to_thread(load_config, folder / CONFIG_NAME)
            config = config_to_tree(read)
        now, began_at = self._clock(), mark[0]  # a launcher writes the configuration as it starts
        alive_at = now if has_lease else max(alive_at, began_at)
        recorded = Recorded(context, run, config, began_at, alive_at, max(mark))
        return _Found(managed(recorded, now), mark, alive_at)

    async def _ask(self, context: RunContext) -> tuple[Run | None, Any, bool]:
        """The run's record and its configuration, None where it has none, and whether its launcher has
        renewed its lease in time."""
        run_id = context.run_id
        try:
            async with self._stores.of(context.store_url) as store:
                run = await store.get(run_key(run_id))
                config = await store.get(config_key(run_id))
                lease = await store.holder(launcher_lease(run_id))
        except NotFoundError:
            return None, None, False
        finally:
            self._stores.close_unused(context.store_url)  # there may be a thousand
        return run_from_tree(run.value) if run else None, config and config.value, bool(lease)


def _stays(state: RunState) -> bool:
    """While no file of the run changes."""
    return not state.has_processes and state is not RunState.UNKNOWN


def _marks(path: Path) -> Iterator[tuple[Path, tuple[float, ...]]]:
    """Each run's folder and mark."""
    own = path / CONFIG_NAME
    for config in [own] if own.is_file() else sorted(path.glob(f"*/{CONFIG_NAME}")):
        with suppress(OSError):  # removed meanwhile, or not for our eyes
            folder = config.parent
            yield folder, (config.stat().st_mtime, written_at(store_in(folder)))
