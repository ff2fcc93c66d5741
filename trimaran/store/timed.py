"""A store that reports how long its calls take, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any, cast

from trimaran.store.port import Store

RARE = ("close", "delete_all")
"""At the end of a store; all other calls of the port are timed."""


def timed(store: Store, observe: Callable[[str, float], None]) -> Store:
    """The same store; `observe(call, seconds)` is called for each call, also of one that fails.

    Example: store = timed(await open_store(url), StoreSeconds())
    """
    return cast(Store, _Timed(store, observe))


class _Timed:
    def __init__(self, store: Store, observe: Callable[[str, float], None]) -> None:
        self._store, self._observe = store, observe
        for name, call in vars(Store).items():
            if iscoroutinefunction(call) and name not in RARE:
                setattr(self, name, self._timed(name, getattr(store, name)))

    def _timed(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def measured(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return await call(*arguments, **options)
            finally:
                self._observe(name, time.perf_counter() - began)

        return measured

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
