"""Calls a reward function with what it takes, sync or async."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from inspect import Parameter
from typing import Any

from services.reward.functions.returned import FunctionFault
from services.reward.functions.signatures import Parameters


@dataclass(frozen=True, slots=True)
class Callee:
    """A function and how it takes its arguments.

    Example:
        def f(text, /, *, weight=1.0): ...

        callee = Callee.of(f, inspect.signature(f).parameters)
        callee({"text": "7", "unknown": 0})     # f("7")
    """

    function: Callable[..., Any]
    by_position: tuple[str, ...]
    """Those that it takes in no other way."""
    by_keyword: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool
    """It has **kwargs."""

    @classmethod
    def of(cls, function: Callable[..., Any], parameters: Parameters) -> Callee:
        def names(*kinds: Any) -> tuple[str, ...]:
            return tuple(name for name, p in parameters.items() if p.kind in kinds)

        by_position = names(Parameter.POSITIONAL_ONLY)
        by_keyword = names(Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        required = tuple(
            name for name in by_position + by_keyword if parameters[name].default is Parameter.empty
        )
        return cls(
            *(function, by_position, by_keyword, required),
            takes_any=bool(names(Parameter.VAR_KEYWORD)),
        )

    def __call__(self, given: dict[str, Any]) -> Any:
        """With what it takes of `given`. Raises FunctionFault when that is not all it needs."""
        for name in self.required:
            if name not in given:
                raise FunctionFault(
                    f"the function needs {name!r}, which is neither a column of the row nor an"
                    " option"
                )
        if "trainer_state" not in self.required:
            given.pop("trainer_state", None)
        positional = [given.pop(name) for name in self.by_position if name in given]
        if not self.takes_any:
            given = {name: given[name] for name in self.by_keyword if name in given}
        try:
            result = self.function(*positional, **given)
            return _wait_for(result) if inspect.isawaitable(result) else result
        except SystemExit as error:  # it would end the worker
            raise RuntimeError(f"the function called sys.exit({error.code!r})") from error


def _wait_for(awaitable: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        try:
            return await awaitable
        except SystemExit as error:  # it would end the loop, and no answer would come
            raise RuntimeError(f"the function called sys.exit({error.code!r})") from error

    return asyncio.run_coroutine_threadsafe(wait(), _loop()).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all calls: a session or lock that a function keeps is tied to its first loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="async rewards", daemon=True).start()
    return loop
