"""Those who belong to an earlier time, or speak without right, while a run goes on.

A refusal counts only with the reason that is meant. What a stranger's key or nonce gets is tested at the
transports.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tests.faults.house import CONTROLLER, WEIGHT_SYNC
from tests.faults.replaced import CALL_SECONDS, expect, refuse_replaced
from tests.faults.stand import Stand
from trimaran.errors import UnprovenError
from trimaran.types import Caller, Group, Proof, TrainingBatch, VersionId
from trimaran.wire import rpc


async def old_epoch(stand: Stand, dice: random.Random) -> None:
    """A controller that was replaced speaks first after weight sync has died and come back."""
    await stand.recover()
    folder, child = stand.house.run_folder, stand.house.children[CONTROLLER]
    old = Caller(folder.name, stand.audit.epoch - 1)
    name = dice.choice(stand.house.replicas[:-1])
    child.freeze()
    try:
        stand.house.children[WEIGHT_SYNC].kill()
        stand.house.start(WEIGHT_SYNC)
        await rpc.wait_until_serving(stand.weight_sync_address, CALL_SECONDS)
        index = int(name.rpartition("-")[2])
        await refuse_replaced(stand.house.config.endpoints, old, index)
    finally:
        child.thaw()


async def unproven_tokens(stand: Stand, dice: random.Random) -> None:
    """Whatever forgets to look at proofs gets nothing trained."""
    await stand.recover()
    await stand.until(
        lambda: stand.audit.consumed > stand.step, CALL_SECONDS, "a batch to train without right"
    )
    groups, step = stand.audit.batch, stand.audit.consumed
    makers = {maker for scored in groups for maker in scored.group.makers}
    async with stand.weight_sync() as client:
        proofs = await client.list_proofs(sorted({version for version, _ in makers}))
    proofs = tuple(proof for proof in proofs if (proof.version, proof.replica) in makers)
    one = dice.choice(proofs)
    others = [proof for proof in proofs if proof != one]
    foreign = VersionId(one.version.lineage + 1, one.version.step)
    alien = tuple(replace(s, group=_restamped(s.group, foreign)) for s in groups)
    tries: dict[str, tuple[tuple[Any, ...], list[Proof]]] = {
        "a proof is missing": (tuple(groups), others),
        "a proof has a fault": (tuple(groups), [*others, replace(one, fault="a wrong block")]),
        "a proof is of other weights": (tuple(groups), [*others, replace(one, root="0" * 32)]),
        "nobody made the version": (alien, [replace(p, version=foreign) for p in proofs]),
    }
    async with stand.trainer() as trainer:
        for what, (batch, given) in tries.items():
            call = trainer.train_batch(TrainingBatch(step, batch), CALL_SECONDS, 0, given)
            await expect(UnprovenError, call, what)


def _restamped(group: Group, version: VersionId) -> Group:
    completions = (
        replace(c, segments=tuple(replace(part, version=version) for part in c.segments))
        for c in group.completions_G
    )
    return replace(group, completions_G=tuple(completions))


LEFTOVERS: dict[str, Callable[[Stand, random.Random], Awaitable[None]]] = {
    "epoch": old_epoch,
    "tokens": unproven_tokens,
}
