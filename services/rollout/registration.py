"""A replica makes itself known to weight sync."""

from __future__ import annotations

import asyncio
import logging
import time

from trimaran.clients import WeightSyncClient
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, InputError, TrimaranError
from trimaran.types import Caller, Replica

logger = logging.getLogger(__name__)

ATTEMPT_SECONDS = 5.0
RETRY_SECONDS = 0.5


async def register(config: RunConfig, caller: Caller, replica: Replica) -> None:
    """Weight sync may start after us: try again until `start_timeout`."""
    address = config.endpoints.weight_sync
    if address is None:
        raise InputError("endpoints.weight_sync: missing; a replica registers there")
    deadline = time.monotonic() + config.start_timeout
    async with WeightSyncClient(address, caller) as client:
        while True:
            try:
                await client.register_replica(replica, ATTEMPT_SECONDS)
            except TrimaranError as error:
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"{address}: weight sync did not take {replica.name} in"
                        f" {config.start_timeout:g} s ({error})"
                    ) from error
                await asyncio.sleep(RETRY_SECONDS)
            else:
                logger.info("%s is registered with weight sync", replica.name)
                return
