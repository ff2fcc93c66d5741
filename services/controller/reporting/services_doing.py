"""What the run's services say that they do: the controller waits for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from trimaran.errors import UnavailableError
from trimaran.run.context import RunContext
from trimaran.run.runs import service_key
from trimaran.store import Store, records
from trimaran.wire.health_note import read_notes

LOOK_SECONDS = 1.0
NUMBER = re.compile(r"\d+")


@asynccontextmanager
async def followed(
    so_far: Callable[[str], None], store: Store, run: RunContext, kind: str = ""
) -> AsyncGenerator[None]:
    """Inside, what services do is passed on to `so_far`; `kind`: only those of that kind."""

    async def follow() -> None:
        while True:
            with suppress(UnavailableError):  # what needs the store says so
                doing = await _read(store, run)
                known = {name: text for name, text in doing.items() if name.startswith(kind)}
                so_far(describe(known))
            await asyncio.sleep(LOOK_SECONDS)

    following = asyncio.create_task(follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _read(store: Store, run: RunContext) -> dict[str, str]:
    """By name. Services of this host have notes beside their logs, others records in the store."""
    doing = {note.name: note.doing for note in read_notes(run.folder) if note.doing}
    async for _, record in records(store, service_key(run.run_id)):
        service = record.value
        if service["code"] is None and service.get("doing"):
            doing[service["name"]] = service["doing"]
    return doing


def describe(doing: Mapping[str, str]) -> str:
    """One of those that do the same, however far each is, and how many more there are.

    Example: "rollout-0 starts its engine (and 1 more); trainer-0 loads 3 of 9 tensors of the model"
    """
    alike: dict[str, list[str]] = {}
    for name, text in sorted(doing.items()):
        alike.setdefault(NUMBER.sub("", text), []).append(f"{name} {text}")
    more = (f" (and {len(texts) - 1} more)" if texts[1:] else "" for texts in alike.values())
    return "; ".join(texts[0] + rest for texts, rest in zip(alike.values(), more, strict=True))
