"""The place of one run below `run.checkpoints`, where what outlives a host's disk lies.

PLACE/RUN_ID/checkpoints/step-00010/…    by the trainer's ranks
PLACE/RUN_ID/model/…                     by its rank 0, at the end
PLACE/RUN_ID/samples/step-00010.jsonl    by the controller; so are summary.json and the pictures
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trimaran.config import RunConfig
from trimaran.errors import InputError, NotFoundError
from trimaran.host.places import FolderPlace, Place, is_bucket, open_place
from trimaran.run.context import RunContext
from trimaran.store import ConflictError, Store

KEY = "run.checkpoints"
OWNER = "owner"
"""Says whose the place is: two managers may have a run of one id."""
STATE = re.compile(r"(checkpoints/step-\d+)/state\.json")


def place_url(config: RunConfig, run_id: str) -> str:
    """Where `run.checkpoints` is named."""
    assert config.run.checkpoints
    return f"{config.run.checkpoints.removeprefix('file://').rstrip('/')}/{run_id}"


def run_place(config: RunConfig, run_id: str) -> Place | None:
    """None where all lies in the run folder. Raises InputError."""
    return open_place(place_url(config, run_id), KEY) if config.run.checkpoints else None


def bucket_of(config: RunConfig, run_id: str) -> Place | None:
    """The same; None for a folder as well, which is used as it stands."""
    return run_place(config, run_id) if is_bucket(config.run.checkpoints) else None


class SavedState(NamedTuple):
    """A checkpoint that lies there. Example: SavedState("runs/demo/checkpoints/step-00010", {"step": 10}, 812)"""

    path: str
    tree: Mapping[str, Any]
    """What its state.json says."""
    num_bytes: int
    """Of all its files."""


def saved_states(folder: Path, place: Place | None) -> Iterator[SavedState]:
    """Each checkpoint. `place`: the run's own; without it they lie in the run folder."""
    found = place or FolderPlace(folder, KEY)
    sizes = found.sizes("checkpoints")
    for name in sizes:
        if match := STATE.fullmatch(name):
            size = sum(sizes[each] for each in sizes if each.startswith(f"{match[1]}/"))
            with suppress(NotFoundError):  # removed since
                yield SavedState(f"{found.url}/{match[1]}", json.loads(found.read(name)), size)


def has_checkpoint(config: RunConfig, run: RunContext) -> bool:
    """The run, of its own; then `trainer.load` has done its part."""
    if config.trainer.load is None:
        return False  # no other process asks
    return next(saved_states(run.folder, run_place(config, run.run_id)), None) is not None


async def claim_place(store: Store, run_id: str, who: str, place: Place) -> None:
    """Every process that uses the place sees the same one, and it is this run's.

    A mark lies there, and the run's store says which. Raises InputError where it is missing (a folder
    that is not mounted on this host looks like an empty one), and where the place is another run's.
    """
    mark = await _agree_on_mark(store, run_id, who, place)
    if (owner := await asyncio.to_thread(_owner_of, place)) is None:
        await asyncio.to_thread(place.create, mark.encode(), OWNER)
        owner = await asyncio.to_thread(_owner_of, place)
    if owner != mark:
        raise InputError(
            f"{KEY}: {place.url} is of another run called {run_id}, which has another store; start this"
            " run again, under another run.name or with a run.checkpoints of its own"
        )


def _owner_of(place: Place) -> str | None:
    try:
        return place.read(OWNER).decode()
    except NotFoundError:
        return None


async def _agree_on_mark(store: Store, run_id: str, who: str, place: Place) -> str:
    """The record of the process that came first; it lies at the place."""
    key = f"place/{run_id}"
    if (record := await store.get(key)) is None:
        mark = f".trimaran-{secrets.token_hex(8)}"
        await asyncio.to_thread(place.write, run_id.encode(), mark)
        own = {"mark": mark, "who": who, "host": socket.gethostname(), "url": place.url}
        try:
            await store.put(key, own, expected=0)
            return mark
        except ConflictError:
            await asyncio.to_thread(place.delete, [mark])
        record = await store.get(key)
    assert record, "it is never deleted"
    first = record.value
    try:
        await asyncio.to_thread(place.read, first["mark"])
    except NotFoundError:
        raise InputError(
            f"{KEY}: {place.url} is not what {first['who']} on {first['host']} sees as {first['url']}:"
            " mount the same folder on every host of the trainer and the controller, or name a bucket"
        ) from None
    return str(first["mark"])
