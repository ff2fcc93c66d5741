"""Recorded replicas that are gone when weight sync starts: those of the run's former life.

A replica's relay listens on a port of its own for as long as its process lives. So a
replica that still takes connections there is the recorded one, even if it is frozen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from services.weight_sync.members.member import Member
from trimaran.run.network import split

CONNECT_SECONDS = 2.0
"""To one relay; all are asked at the same time."""


async def find_gone(members: Iterable[Member], timeout: float = CONNECT_SECONDS) -> list[Member]:
    """Those whose relay takes no connection within `timeout` seconds."""
    asked = list(members)
    answers = await asyncio.gather(*(_listens(member.peer.relay, timeout) for member in asked))
    return [member for member, listens in zip(asked, answers, strict=True) if not listens]


async def _listens(address: str, timeout: float) -> bool:
    try:
        host, port = split(address)
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError):  # TimeoutError is an OSError
        return False
    writer.close()
    return True
