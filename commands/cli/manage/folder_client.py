"""What a run's folder tells without a manager, asked as `RunClient` asks a manager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from services.manager.reading import RunReader
from services.manager.viewing.serve import reading
from trimaran.errors import InputError
from trimaran.run.answers import Checkpoint, LedgerAnswer, RunSamples
from trimaran.run.runs import Run, RunEvent
from trimaran.trust.access import LOCAL

T = TypeVar("T")


class AsyncFolderClient:
    """What `trimaran watch` asks, as `AsyncRunClient` has it; on the loop of a `FolderClient`."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    async def get_run(self, run_id: str) -> Run:
        return await self._reader.get(LOCAL, run_id)

    def watch_run(self, run_id: str, after: int = 0) -> AsyncGenerator[RunEvent]:
        return self._reader.events(LOCAL, run_id, after)


class FolderClient:
    """Reads the one run of a folder.

    Example:
        with FolderClient(Path("runs/addition-20261120-120000")) as client:
            print(client.get_run(client.run_id).state)
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack = folder, AsyncExitStack()
        self.loop = asyncio.Runner()

    def __enter__(self) -> Self:
        async def enter() -> Any:
            reader, found = await self._stack.enter_async_context(reading(self._folder))
            following = asyncio.create_task(found.follow())
            self._stack.callback(following.cancel)
            return reader, found.all()

        self._reader, runs = self._ask(enter())
        self.client = AsyncFolderClient(self._reader)
        if not runs:
            raise InputError(f"{self._folder}: not a run's folder")
        self.run_id: str = runs[0].run_id
        return self

    def __exit__(self, *error: object) -> None:
        self._ask(self._stack.aclose())
        self.loop.close()

    def get_run(self, run_id: str) -> Run:
        return self._ask(self._reader.get(LOCAL, run_id))

    def get_config(self, run_id: str) -> Mapping[str, Any]:
        return self._ask(self._reader.config(LOCAL, run_id))

    def list_checkpoints(self, run_id: str) -> list[Checkpoint]:
        return self._ask(self._reader.checkpoints(LOCAL, run_id))

    def list_logs(self, run_id: str) -> list[str]:
        return self._ask(self._reader.log_names(LOCAL, run_id))

    def get_logs(self, run_id: str, process: str, lines: int, follow: bool) -> Iterator[str]:
        for part in self._each(self._reader.logs(LOCAL, run_id, process, lines, follow)):
            yield from part.lines

    def get_samples(
        self,
        run_id: str,
        validation_step: int | None = None,
        trained_step: int | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> RunSamples:
        which = validation_step, trained_step
        return self._ask(self._reader.samples(LOCAL, run_id, *which, limit, offset))

    def get_ledger(self, run_id: str, group: int | None = None) -> LedgerAnswer:
        """The life of a group, or whether the whole ledger is sound."""
        if group is None:
            return self._ask(self._reader.ledger_verify(LOCAL, run_id))
        return self._ask(self._reader.ledger_group(LOCAL, run_id, group))

    def _ask(self, work: Awaitable[T]) -> T:
        async def ask() -> T:
            return await work

        return self.loop.run(ask())

    def _each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                try:
                    item = self._ask(anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._ask(items.aclose())
