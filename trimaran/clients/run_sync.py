"""RunService for scripts and notebooks: `AsyncRunClient` on a thread with an event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from trimaran.clients.run import AsyncRunClient

P = ParamSpec("P")
R = TypeVar("R")

CLOSE_SECONDS = 10.0


class _Loop:
    """An event loop on a thread of its own, so that it also works where one runs: in a notebook."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="trimaran client", daemon=True
        )
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        if not self.is_open:
            work.close()
            raise RuntimeError("this client was closed; make a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # where Ctrl-C came while we waited

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        self._loop.close()


class _Blocking(Generic[P, R]):
    """A method that waits for the asynchronous one's result."""

    def __init__(
        self, method: Callable[Concatenate[AsyncRunClient, P], Coroutine[Any, Any, R]]
    ) -> None:
        self._method = method
        functools.update_wrapper(cast(Any, self), method)

    def __get__(self, client: RunClient | None, owner: type[RunClient]) -> Callable[P, R]:
        if client is None:
            return cast(Any, self._method)  # for help(RunClient)

        @functools.wraps(self._method)
        def call(*args: P.args, **options: P.kwargs) -> R:
            return client.loop.run(self._method(client.client, *args, **options))

        return call


class _BlockingIterator(Generic[P, R]):
    """A method whose iterator waits for each item of the asynchronous one's."""

    def __init__(self, method: Callable[Concatenate[AsyncRunClient, P], AsyncIterator[R]]) -> None:
        self._method = method
        functools.update_wrapper(cast(Any, self), method)

    def __get__(self, client: RunClient | None, owner: type[RunClient]) -> Callable[P, Iterator[R]]:
        if client is None:
            return cast(Any, self._method)

        @functools.wraps(self._method)
        def call(*args: P.args, **options: P.kwargs) -> Iterator[R]:
            items = cast(AsyncGenerator[R, None], self._method(client.client, *args, **options))
            try:
                while True:
                    try:
                        item = client.loop.run(_next(items))
                    except StopAsyncIteration:
                        return
                    yield item
            finally:
                if client.loop.is_open:  # not where the process ends
                    client.loop.run(_close(items))

        return call


async def _next(items: AsyncGenerator[R, None]) -> R:
    return await anext(items)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


class RunClient:
    """Submits, watches and steers the runs of a manager. `AsyncRunClient` is the same for asyncio.

    Example:
        with RunClient() as client:
            run = client.create_run("run.yaml", ["run.seed=2"])
            client.wait_run(run.run_id)
            table = pandas.DataFrame(client.metrics(run.run_id))

    What goes wrong raises a class of `trimaran.errors`.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | Path | None = None,
        ca: str | Path | None = None,
        timeout: float = 30.0,
        patience: float | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        """As `AsyncRunClient`'s; `on_wait` is called on another thread."""

        async def make() -> AsyncRunClient:
            return AsyncRunClient(
                address, token=token, ca=ca, timeout=timeout, patience=patience, on_wait=on_wait
            )

        self.loop = _Loop()
        try:
            self.client = self.loop.run(make())
        except BaseException:
            self.loop.close()
            raise
        self.address = self.client.address

    def close(self) -> None:
        """May be said twice."""
        if self.loop.is_open:
            self.loop.run(self.client.close())
            self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    create_run = _Blocking(AsyncRunClient.create_run)
    get_run = _Blocking(AsyncRunClient.get_run)
    get_config = _Blocking(AsyncRunClient.get_config)
    list_runs = _BlockingIterator(AsyncRunClient.list_runs)
    watch_run = _BlockingIterator(AsyncRunClient.watch_run)
    wait_run = _Blocking(AsyncRunClient.wait_run)
    pause_run = _Blocking(AsyncRunClient.pause_run)
    resume_run = _Blocking(AsyncRunClient.resume_run)
    cancel_run = _Blocking(AsyncRunClient.cancel_run)
    delete_run = _Blocking(AsyncRunClient.delete_run)
    scale_run = _Blocking(AsyncRunClient.scale_run)
    metrics = _Blocking(AsyncRunClient.metrics)
    list_checkpoints = _Blocking(AsyncRunClient.list_checkpoints)
    get_samples = _Blocking(AsyncRunClient.get_samples)
    get_logs = _BlockingIterator(AsyncRunClient.get_logs)
    list_logs = _Blocking(AsyncRunClient.list_logs)
    get_ledger = _Blocking(AsyncRunClient.get_ledger)
