"""Whether the store keeps what it acknowledges, and how long it takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trimaran.doctor.finding import Check, Fault, Finding, Severity
from trimaran.errors import InputError
from trimaran.store import store_name
from trimaran.store.redis_settings import REQUIRED, find_weakness
from trimaran.store.redis_url import RedisUrl, is_redis

NUM_PINGS = 9
SLOW_SECONDS = 0.02
CONNECT_SECONDS = 10.0

UNREACHABLE = Fault(
    "unreachable",
    Severity.ERROR,
    "{store}: {said}",
    "without the store no run starts, and one that goes on is held after a while",
    "redis-cli -u redis://HOST:PORT ping   # from this host: address, firewall, password_file",
    symptom="Connection refused; NOAUTH Authentication required",
)
WEAK = Fault(
    "not-durable",
    Severity.ERROR,
    "{store}: {weakness}",
    "a crash of the server then loses records that were acknowledged, and a run goes on from a past"
    " that its trainer has left",
    "redis-cli {settings}   # and the same in redis.conf, or they are gone after a restart",
    symptom="LostWritesError",
)
SLOW = Fault(
    "slow",
    Severity.WARNING,
    "{store} answers after {milliseconds:.0f} ms",
    "every record and every heartbeat waits for it",
    "redis-cli --latency   # put it nearer to the manager, or on a faster disk",
)
CHECK = Check(
    "store",
    "a Redis server that `--store` names: does it answer, how fast, and is it set to keep what it"
    " acknowledges (`appendonly`, `appendfsync`, `maxmemory-policy`)",
    (UNREACHABLE, WEAK, SLOW),
)


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Example: StoreFacts("redis://127.0.0.1:6379/0 (trimaran)", "", "", 0.0002)"""

    store: str
    said: str
    """Why it cannot be reached; empty where it can."""
    weakness: str
    seconds: float
    """Of a question and its answer, median of a few."""
    is_accepted: bool = False
    """durability=weak in the URL: the operator's word that it may lose something."""


async def read_store(url: str) -> StoreFacts:
    """Raises InputError for a URL that names no Redis server."""
    if not is_redis(url):
        raise InputError(
            f"--store {store_name(url)}: give redis://HOST:PORT/DB; a file needs no check"
        )
    import redis.asyncio
    from redis import exceptions
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    parsed = RedisUrl.parse(url)
    client: Any = redis.asyncio.Redis(
        **parsed.connection,
        socket_timeout=CONNECT_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        await client.ping()
        taken: list[float] = []
        for _ in range(NUM_PINGS):
            start = time.monotonic()
            await client.ping()
            taken.append(time.monotonic() - start)
        weakness = await find_weakness(client)
        return StoreFacts(
            parsed.name, "", weakness, statistics.median(taken), is_accepted=parsed.is_weak
        )
    except (exceptions.RedisError, OSError) as error:
        return StoreFacts(parsed.name, " ".join(str(error).split()), "", 0.0)
    finally:
        await client.aclose()


def check_store(facts: StoreFacts) -> Iterator[Finding]:
    if facts.said:
        yield CHECK.found(UNREACHABLE, store=facts.store, said=facts.said)
    if facts.weakness:
        severity = Severity.WARNING if facts.is_accepted else Severity.ERROR
        settings = "config set " + " ".join(f"{name} {value}" for name, value in REQUIRED.items())
        places = {"store": facts.store, "weakness": facts.weakness, "settings": settings}
        yield CHECK.found(WEAK.at(severity), **places)
    if facts.seconds > SLOW_SECONDS:
        yield CHECK.found(SLOW, store=facts.store, milliseconds=facts.seconds * 1000)
