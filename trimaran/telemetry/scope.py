"""What the work at hand is about, for log lines and spans: its run, step, group and attempt.

The facts live in a context variable, so that tasks and threads that the work starts know them, too.
They travel to other services as W3C baggage in the metadata of a call, and only in a process that
writes JSON lines or traces: no other process reads them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

HEADER = "baggage"
PREFIX = "trimaran."
KEYS = ("step", "group", "attempt")
"""What travels; a service knows its run by itself."""
NUMBER = re.compile("[0-9]{1,19}")

Facts = Mapping[str, int | str]


@dataclass(slots=True)
class Process:
    """This one. Example: Process("rollout-0", "addition-1", travels=True)"""

    name: str = ""
    run_id: str = ""
    travels: bool = False
    """Whether facts are sent along with calls, and read."""


process = Process()
"""Set once, at the start of a process."""

_facts: ContextVar[Facts] = ContextVar("facts", default={})  # noqa: B039 - it is never changed


def facts() -> Facts:
    """What the work at hand is about."""
    return _facts.get()


def learn(**more: int | str) -> None:
    """To the end of this task."""
    _facts.set({**_facts.get(), **more})


@contextmanager
def about(**more: int | str) -> Generator[None]:
    """Inside, the work is about these, too.

    Example:
        with about(group=17):
            logger.warning("reissued")  # as a JSON line: {..., "message": "reissued", "group": 17}
    """
    token = _facts.set({**_facts.get(), **more})
    try:
        yield
    finally:
        _facts.reset(token)


def headers() -> tuple[tuple[str, str], ...]:
    """Metadata for a call."""
    if not process.travels:
        return ()
    known = _facts.get()
    sent = ",".join(f"{PREFIX}{key}={known[key]}" for key in KEYS if key in known)
    return ((HEADER, sent),) if sent else ()


def read(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, int | str]:
    """What `headers` sent; whatever else stands there is left out."""
    for name, value in metadata or ():
        if name == HEADER and isinstance(value, str):
            pairs = (part.partition("=")[::2] for part in value.split(","))
            found = {key.strip().removeprefix(PREFIX): number for key, number in pairs}
            return {key: int(found[key]) for key in KEYS if NUMBER.fullmatch(found.get(key, ""))}
    return {}
