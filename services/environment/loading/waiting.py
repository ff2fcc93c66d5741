"""Awaits what user code gives, in the one event loop of a worker: a session or lock that the code keeps is
tied to its first loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from inspect import Parameter
from typing import Any


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def settled(value: Any) -> Any:
    """The value; of an awaitable its outcome."""
    return _loop().run_until_complete(_wait(value)) if inspect.isawaitable(value) else value


def settled_each(values: Sequence[Any]) -> list[Any]:
    """Beside each other; an error in the place of a value that could not be had."""

    async def each() -> list[Any]:
        waiting = [
            _caught(value) if inspect.isawaitable(value) else _plain(value) for value in values
        ]
        return await asyncio.gather(*waiting)

    return _loop().run_until_complete(each())


async def _wait(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _plain(value: Any) -> Any:
    return value


async def _caught(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except BaseException as error:  # also SystemExit, which would end the loop
        return error


def taken_by(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the function has arguments for."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values()):
        return dict(given)
    return {name: given[name] for name in given if name in parameters}
