"""What a server of stores is like, asked from this host: for who looks before a run starts."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from trimaran.errors import InputError
from trimaran.store.open import store_name
from trimaran.store.redis_url import RedisUrl, is_redis

NUM_PINGS = 9
CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Example: ServerFacts("redis://127.0.0.1:6379/0 (trimaran)", "", "", "appendonly yes", 0.0002)"""

    store: str
    said: str
    """Why it cannot be reached; empty where it can."""
    weakness: str
    """Settings under which a crash loses what was acknowledged; empty where there are none."""
    wanted: str
    """The settings under which nothing is lost, as `redis-cli config set` takes them."""
    seconds: float
    """Seconds of a question and its answer, median of a few."""
    is_accepted: bool = False
    """durability=weak in the URL: the operator's word that it may lose something."""


async def probe_server(url: str) -> ServerFacts:
    """Makes no store. Raises InputError for a URL that names no Redis server.

    Example: (await probe_server("redis://127.0.0.1:6379/0")).said
    """
    if not is_redis(url):
        raise InputError(
            f"--store {store_name(url)}: give redis://HOST:PORT/DB; a file needs no check"
        )
    import redis.asyncio  # late: it takes a tenth of a second
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError

    from trimaran.store.redis_settings import REQUIRED, find_weakness

    parsed = RedisUrl.parse(url)
    wanted = " ".join(f"{name} {value}" for name, value in REQUIRED.items())
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
        weakness, seconds = await find_weakness(client), statistics.median(taken)
        return ServerFacts(parsed.name, "", weakness, wanted, seconds, parsed.is_weak)
    except (RedisError, OSError) as error:
        return ServerFacts(parsed.name, " ".join(str(error).split()), "", wanted, 0.0)
    finally:
        await client.aclose()
