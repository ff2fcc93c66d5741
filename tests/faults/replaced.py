"""A controller that was replaced is refused by everybody that it asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from trimaran.clients import RolloutClient, TrainerClient, WeightSyncClient
from trimaran.config import Endpoints
from trimaran.errors import StaleEpochError, TrimaranError
from trimaran.trust.access import NO_TRUST, Trust
from trimaran.types import Caller

CALL_SECONDS = 20.0


class Broken(AssertionError):
    """An invariant does not hold."""


async def expect(error: type[TrimaranError], call: Awaitable[Any], what: str) -> TrimaranError:
    """Raises Broken when the call is obeyed, or refused for any other reason."""
    try:
        answer = await call
    except error as refusal:
        return refusal
    except TrimaranError as other:
        raise Broken(f"{what}: refused with {other!r} instead of {error.__name__}") from None
    raise Broken(f"{what}: obeyed, with {answer!r}")


async def refuse_replaced(
    endpoints: Endpoints, old: Caller, index: int, trust: Trust = NO_TRUST
) -> None:
    """`old` asks weight sync, replica `index` and the trainer. Raises Broken when one obeys."""
    assert endpoints.weight_sync
    async with (
        WeightSyncClient(endpoints.weight_sync, old, trust) as weight_sync,
        RolloutClient(endpoints.rollout[index], old, trust) as replica,
        TrainerClient(endpoints.trainer[0], old, trust) as trainer,
    ):
        live = (await weight_sync.list_versions(1))[0].policy
        name = f"rollout-{index}"
        asked: dict[str, Callable[[], Awaitable[Any]]] = {
            "publish": lambda: weight_sync.publish_version(live, CALL_SECONDS),
            "report": lambda: weight_sync.report_replica(name, "an old controller says so"),
            "commit": lambda: replica.commit_weights(live, "leftover", CALL_SECONDS),
            "abort": lambda: replica.abort_weights(live.version, "leftover"),
            "checkpoint": lambda: trainer.save_checkpoint(live.version.step, CALL_SECONDS),
        }
        for what, ask in asked.items():
            await expect(StaleEpochError, ask(), f"{what} of epoch {old.epoch}")
