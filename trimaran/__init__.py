"""Trimaran: GRPO post-training as services.

    from trimaran import RunClient

The names below are loaded when they are used first: to import `trimaran` alone is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimaran.clients.run import AsyncRunClient
    from trimaran.clients.run_sync import RunClient
    from trimaran.run.runs import EventKind, Run, RunEvent, RunState

__all__ = ["AsyncRunClient", "EventKind", "Run", "RunClient", "RunEvent", "RunState"]

_MODULES = {"AsyncRunClient": "trimaran.clients.run", "RunClient": "trimaran.clients.run_sync"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "trimaran.run.runs")), name)
