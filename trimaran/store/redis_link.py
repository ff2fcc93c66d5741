"""Calls on a Redis server: under a deadline, tried again when the connection is lost, each done once.

A write carries its client's name and a number. The server keeps each client's last number with its
answer (`redis.lua`), so that a try whose answer was lost is answered and not done again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from trimaran.errors import InputError, TrimaranError, UnavailableError
from trimaran.host.call_waits import Wait, waiting_for
from trimaran.store.port import LostWritesError, StoreError, StoreFullError
from trimaran.store.redis_settings import find_weakness
from trimaran.store.redis_url import RedisUrl

TRY_SECONDS = 5.0
"""A connection that does not answer for so long is given up, and another one is tried."""
FIRST_RETRY_SECONDS = 0.05
MAX_RETRY_SECONDS = 1.0
NUM_CONNECTIONS = 8

SCRIPT = files("trimaran.store").joinpath("redis.lua").read_text(encoding="utf-8")
SCRIPT_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

REFUSALS = (
    *(exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError),
)
REFUSAL_WORDS = ("NOAUTH", "unauthenticated")
NO_REPLICAS = "NOREPLICAS"
SEE_IT_RUNS = "see that Redis runs and can be reached"
PASSING = (exceptions.ConnectionError, exceptions.TimeoutError, TimeoutError, OSError)
PASSING_WORDS = (
    *("LOADING", "BUSY", "MASTERDOWN", "READONLY", NO_REPLICAS, "You can't write against"),
)
"""With which a server answers that starts, works on something long, is not the master yet, or lacks the
replicas that its `min-replicas-to-write` asks for."""
FULL_WORDS = ("OOM", "command not allowed when used memory", "No space left")

Argument = str | int | float


class Seen(NamedTuple):
    """How far a client has seen the store."""

    generation: int
    """Count of server processes; 0: nothing was seen."""
    server: str
    writes: int


class Answer(NamedTuple):
    """What the script returned."""

    status: str
    """ok, refused or absent."""
    values: Sequence[Any]


class RedisLink:
    """A client of one store on a server. It belongs to the event loop of its first call.

    Example: await RedisLink(RedisUrl.parse("redis://127.0.0.1:6379/0"), 30.0).read("last", "events")
    """

    def __init__(self, url: RedisUrl, timeout: float, try_timeout: float = TRY_SECONDS) -> None:
        """Seconds: for a call with all its tries, and for one of them."""
        self.name, self.timeout = url.name, timeout
        self._try_timeout = try_timeout
        self.durability = ""
        self._is_weak = url.is_weak
        self._keys = f"{{trimaran:{url.prefix}}}:"
        self._client, self._number = secrets.token_hex(8), 0
        self._writing = asyncio.Lock()
        self._seen = Seen(0, "", 0)
        self._checked = ""
        """The server process whose settings are known."""
        self._lost = ""
        self._is_closed = False
        self._redis: Any = redis.asyncio.Redis(
            **url.connection,
            max_connections=NUM_CONNECTIONS,
            # Each try is under a timeout of ours. For its own one redis-py calls asyncio.wait_for, which
            # in Python 3.11 drops a cancellation that comes as the command has just been sent.
            socket_timeout=None,
            socket_connect_timeout=try_timeout,
            retry=Retry(NoBackoff(), 0),  # we try again ourselves
            protocol=2,
        )

    async def read(self, operation: str, *arguments: Argument) -> Answer:
        deadline = time.monotonic() + self.timeout
        with waiting_for(f"the store {self.name}") as wait:
            return await self._call(operation, 0, arguments, deadline, wait)

    async def write(self, operation: str, *arguments: Argument) -> Answer:
        """One after the other. Who is cancelled does not know whether it was done."""
        deadline = time.monotonic() + self.timeout
        with waiting_for(f"the store {self.name}") as wait:
            wait.why = "earlier writes wait for it"
            try:
                async with asyncio.timeout(self.timeout):
                    await self._writing.acquire()
            except TimeoutError:
                raise self._no_answer(wait.why) from None
            try:
                wait.why = ""
                self._number += 1
                return await self._call(operation, self._number, arguments, deadline, wait)
            finally:
                self._writing.release()

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._redis.aclose()

    async def _call(
        self,
        operation: str,
        number: int,
        arguments: Sequence[Argument],
        deadline: float,
        wait: Wait,
    ) -> Answer:
        pause, num_tries = FIRST_RETRY_SECONDS, 0
        while True:
            if self._is_closed:
                raise StoreError(f"{self.name}: the store is closed")
            if self._lost:
                raise LostWritesError(self._lost)
            try:
                left = max(deadline - time.monotonic(), 0.001)
                async with asyncio.timeout(min(left, self._try_timeout)):
                    return await self._try(operation, number, num_tries, arguments)
            except (exceptions.RedisError, OSError, TimeoutError) as error:
                if not _passes(error):
                    raise self._translate(error) from error
                reason, remedy = _explain(error)
                wait.why = f"{reason}; {remedy}"
                if time.monotonic() + pause > deadline:
                    raise self._no_answer(reason, remedy) from error
            await asyncio.sleep(pause)
            pause, num_tries = min(2 * pause, MAX_RETRY_SECONDS), num_tries + 1

    async def _try(
        self, operation: str, number: int, num_tries: int, arguments: Sequence[Argument]
    ) -> Answer:
        seen = self._seen
        sent = (operation, self._client, number, int(num_tries > 0), *seen, *arguments)
        try:
            reply = await self._redis.execute_command("EVALSHA", SCRIPT_SHA, 1, self._keys, *sent)
        except exceptions.NoScriptError:
            reply = await self._redis.execute_command("EVAL", SCRIPT, 1, self._keys, *sent)
        status, generation, server, writes = (
            reply[0].decode(),
            reply[1],
            reply[2].decode(),
            reply[3],
        )
        if status == "lost":
            self._lost = (
                f"{self.name}: the store has gone back: it had acknowledged {seen.writes} writes and"
                f" holds {writes} of them; bring back a copy that has them all, unless it was deleted"
            )
            raise LostWritesError(self._lost)
        if status == "schema":
            raise StoreError(
                f"{self.name}: has schema {reply[4].decode()}, this Trimaran knows"
                f" {reply[5].decode()}; update Trimaran"
            )
        if status in ("forgotten", "late"):
            raise UnavailableError(
                f"{self.name}: {operation} came too late; it may be done already"
            )
        if status != "absent":
            found = Seen(generation, server, writes)
            # Without a generation: we have deleted it, and may begin again.
            self._seen = max(self._seen, found, key=lambda s: (s[0], s[2])) if generation else found
            await self._check(server)
        return Answer(status, reply[4:])

    async def _check(self, server: str) -> None:
        """Each server process once: after a fail-over it is another one."""
        if server == self._checked:
            return
        weakness = await find_weakness(self._redis)
        if weakness and not self._is_weak:
            raise InputError(
                f"{self.name}: {weakness}; set it in redis.conf, or accept with durability=weak in"
                " the store's URL that a crash loses what was acknowledged last"
            )
        self.durability = weakness and f"weak: {weakness}"
        self._checked = server

    def _no_answer(self, why: str, remedy: str = SEE_IT_RUNS) -> UnavailableError:
        return UnavailableError(
            f"{self.name}: has not answered for {self.timeout:g} s ({why}); {remedy}"
        )

    def _translate(self, error: Exception) -> TrimaranError:
        if _refuses(error):
            return InputError(
                f"{self.name}: refuses us ({error}); see user and password in its URL"
            )
        if any(word in str(error) for word in FULL_WORDS):
            return StoreFullError(f"{self.name}: takes no more ({error}); make room")
        return StoreError(f"{self.name}: {error}")


def _explain(error: Exception) -> tuple[str, str]:
    """Why another try is needed, and what to do about it."""
    if NO_REPLICAS in str(error):  # the server's own words name our script by its hash
        return "it waits for replicas: min-replicas-to-write", "see `INFO replication` there"
    return str(error).rstrip(".") or type(error).__name__, SEE_IT_RUNS


def _refuses(error: Exception) -> bool:
    return isinstance(error, REFUSALS) or any(word in str(error) for word in REFUSAL_WORDS)


def _passes(error: Exception) -> bool:
    """Whether another try may help."""
    if _refuses(error):  # such an error may be a ConnectionError, too
        return False
    return isinstance(error, PASSING) or any(word in str(error) for word in PASSING_WORDS)
