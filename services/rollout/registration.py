"""A replica makes itself known to weight sync, and stays known."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from trimaran.clients import Registration, WeightSyncClient
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, TrimaranError
from trimaran.run.directory import ProcessPlace
from trimaran.trust.access import NO_TRUST, Trust
from trimaran.types import Caller, Peer, PolicyVersion, Replica
from trimaran.wire import rpc

logger = logging.getLogger(__name__)

ATTEMPT_SECONDS = 5.0
RETRY_SECONDS = 0.5
DEREGISTER_SECONDS = 0.5
"""The deadline of one try."""
DEREGISTER_TRIES = 16


async def stay_registered(
    config: RunConfig,
    weight_sync: ProcessPlace | str,
    caller: Caller,
    replica: Replica,
    peer: Peer,
    live: Callable[[], PolicyVersion | None],
    pause: float = RETRY_SECONDS,
    on_registered: Callable[[Registration], None] = lambda registration: None,
    trust: Trust = NO_TRUST,
) -> None:
    """Registers and then gives signs of life, for ever; at least `pause` seconds between two calls.

    Raises DeadlineError when weight sync does not take the first registration within `start_timeout`. Later
    on an absent weight sync is only waited for: the replica serves what it holds.
    """
    async with WeightSyncClient(weight_sync, caller, trust) as client:
        registration = await _register(client, replica, peer, pause, config.start_timeout)
        logger.info("%s is registered with weight sync", replica.name)
        while True:
            on_registered(registration)
            await _beat(client, replica, registration, live, pause)
            registration = await _register(client, replica, peer, pause)
            logger.info("%s is registered with weight sync again", replica.name)


async def deregister(
    weight_sync: ProcessPlace | str,
    caller: Caller,
    name: str,
    registration: Registration,
    trust: Trust,
) -> None:
    """Before an orderly end. Where weight sync is gone, or ends as well, nothing more is to do.

    Asked again and again, because a call to a server that ends just then may be left unanswered.
    """
    async with WeightSyncClient(weight_sync, caller, trust) as client:
        for _ in range(DEREGISTER_TRIES):
            try:
                await client.deregister_replica(name, registration.incarnation, DEREGISTER_SECONDS)
                logger.info("%s is drained: it takes no more groups", name)
                return
            except DeadlineError:  # a publication under way ends first
                if not await rpc.is_serving(weight_sync, DEREGISTER_SECONDS, trust):
                    break
            except TrimaranError:
                break
    logger.info("%s could not deregister: weight sync is away", name)


async def _register(
    client: WeightSyncClient,
    replica: Replica,
    peer: Peer,
    pause: float,
    timeout: float | None = None,
) -> Registration:
    """Weight sync may start after us: tries again until `timeout`, or for ever."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            return await client.register_replica(replica, peer, ATTEMPT_SECONDS)
        except TrimaranError as error:
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineError(
                    f"{client.address}: weight sync did not take {replica.name} in"
                    f" {timeout:g} s ({error})"
                ) from error
            await asyncio.sleep(pause)


async def _beat(
    client: WeightSyncClient,
    replica: Replica,
    registration: Registration,
    live: Callable[[], PolicyVersion | None],
    pause: float,
) -> None:
    """Returns when weight sync does not know this registration any more."""
    interval = max(registration.heartbeat_seconds, pause)
    away = False
    while True:
        await asyncio.sleep(interval)
        try:
            known = await client.heartbeat(
                replica.name, registration.incarnation, live(), ATTEMPT_SECONDS
            )
        except TrimaranError as error:
            if not away:
                logger.warning("weight sync is away (%s); waiting for it", error)
            away = True
            continue
        if not known:
            return
        if away:
            logger.info("weight sync is back")
        away = False
