"""Imports of large libraries without the collector of cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def large_imports() -> Generator[None]:
    """Inside, the collector rests; it never looks again at what there is afterwards.

    It would look through hundreds of thousands of objects, which stay, many times: a sixth of the time
    that vLLM's imports take. In a forked process each look would copy the pages on which they lie.

    Example:
        with large_imports():
            import vllm
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
