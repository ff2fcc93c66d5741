"""A deadline for each test that awaits, which closes the stores that it has opened."""

import asyncio
import functools
import inspect
from typing import Any

import pytest

from tests.manager.fakes import DEADLINE, opened


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return

    @functools.wraps(test)
    async def bounded(**fixtures: Any) -> None:
        try:
            async with asyncio.timeout(2 * DEADLINE):
                await test(**fixtures)
        finally:
            while opened:
                await opened.pop().close()

    pyfuncitem.obj = bounded
