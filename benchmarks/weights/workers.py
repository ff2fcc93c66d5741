"""An object in a process of its own, on cores of its own; its methods are called over a pipe."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

CALL_SECONDS = 120.0
END_SECONDS = 10.0


class Worker:
    """Context manager. `begin` and `result` apart let two workers run at the same time."""

    def __init__(self, factory: Callable[..., Any], *arguments: Any, cores: Iterable[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, factory, arguments, set(cores)), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def process_id(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def call(self, method: str, *arguments: Any) -> Any:
        self.begin(method, *arguments)
        return self.result()

    def begin(self, method: str, *arguments: Any) -> None:
        self._pipe.send((method, arguments))

    def result(self) -> Any:
        if not self._pipe.poll(CALL_SECONDS):
            raise TimeoutError(f"worker {self.process_id}: no answer in {CALL_SECONDS:g} s")
        value, error = self._pipe.recv()
        if error:
            raise RuntimeError(f"worker {self.process_id} failed:\n{error}")
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pipe.close()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_SECONDS)


def _serve(
    pipe: Connection, factory: Callable[..., Any], arguments: tuple[Any, ...], cores: set[int]
) -> None:
    os.sched_setaffinity(0, cores)
    served: Any = None
    try:
        while True:
            method, call_arguments = pipe.recv()
            try:
                served = served or factory(*arguments)
                pipe.send((getattr(served, method)(*call_arguments), ""))
            except Exception:
                pipe.send((None, traceback.format_exc()))
    except EOFError:
        if served is not None:
            served.close()
