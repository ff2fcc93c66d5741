"""pyarrow, imported when it is needed: it takes a moment, and has no types."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def pyarrow() -> Any:
    return import_module("pyarrow")


def parquet() -> Any:
    return import_module("pyarrow.parquet")


def ipc() -> Any:
    return import_module("pyarrow.ipc")
