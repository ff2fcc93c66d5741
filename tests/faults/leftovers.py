"""Those who belong to an earlier time, or speak without right, while a run goes on.

A refusal counts only with the reason that is meant: an address where nothing
listens, or a version that is too old, refuses nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.faults.house import CONTROLLER, WEIGHT_SYNC
from tests.faults.replaced import CALL_SECONDS, Broken, expect, refuse_replaced
from tests.faults.stand import Stand
from trimaran.clients import RolloutClient
from trimaran.errors import (
    TransferError,
    UnprovenError,
)
from trimaran.host.device import pick
from trimaran.types import (
    Caller,
    CollectiveSource,
    Group,
    Peer,
    Proof,
    TensorInfo,
    TrainingBatch,
    TransferGroup,
    TransferLimits,
    VersionId,
)
from trimaran.wire import rpc
from weights.transports.collective.endpoint import Collective
from weights.transports.collective.terms import Terms
from weights.transports.relay.relay_wire import Connection, ProtocolError, introduce
from weights.transports.streams import Stream
from weights.version.layout import make_layout

SECONDS = 1.0


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


async def old_key(stand: Stand, dice: random.Random) -> None:
    """A puller with a key of a peer's former life is greeted, and gets nothing after its claim."""
    await stand.recover()  # everybody listens where it says
    name = dice.choice([*stand.house.trainers, *stand.house.replicas[:-1]])
    peer = Peer(**json.loads((stand.house.run_folder / f"{name}.relay").read_text()))

    def pull() -> str:
        host, _, port = peer.relay.rpartition(":")
        with socket.create_connection((host, int(port)), SECONDS) as sock:
            greeting = Greeting(sock, time.monotonic() + CALL_SECONDS)
            try:
                status = introduce(greeting, secrets.token_hex(32))
            except ProtocolError as error:
                return str(error)
            except ConnectionError:
                return "" if greeting.claimed else "it was not greeted"
        return f"it was answered: {status}"

    if fault := await asyncio.to_thread(pull):
        raise Broken(f"{name}, asked by a puller with a wrong key: {fault}")


class Greeting(Connection):
    """Knows whether it got as far as the claim."""

    claimed = False

    def send(self, data: bytes | memoryview) -> None:
        super().send(data)
        self.claimed = True


async def old_group(stand: Stand, dice: random.Random) -> None:
    """A replica is sent a group that has ended: it fails by the deadline and stages nothing."""
    await stand.recover()
    async with stand.trainer() as trainer:
        version, manifest = await trainer.get_policy_version(CALL_SECONDS)
    name = dice.choice(stand.house.replicas[:-1])
    group = replace(_group(stand, dice), nonce=secrets.token_hex(16), world_size=2)
    source = CollectiveSource(((0, manifest.num_blocks),), group, rank=1)
    limits = TransferLimits(bucket_bytes=1 << 20, timeout=SECONDS)
    started = time.monotonic()
    async with RolloutClient(stand.house.replica(name).address, stand.caller) as replica:
        await expect(
            TransferError,
            replica.stage_weights(version, manifest, [source], limits, "leftover"),
            f"{name} was asked to stage from a group that had ended",
        )
    if time.monotonic() - started > SECONDS + 6:
        raise Broken(f"{name} noticed only after {time.monotonic() - started:.1f} s")


async def old_nonce(stand: Stand, dice: random.Random) -> None:
    """A receiver of another time joins at the rendezvous of the newest group."""
    group = replace(await _open_group(stand, dice), nonce=secrets.token_hex(16))

    def intrude() -> None:
        end = Collective(pick("cpu"), 0, "127.0.0.1", group, 1)
        try:
            end.broadcast(*_nothing(), SECONDS)
        except TransferError:
            return
        finally:
            end.close()
        raise Broken("a receiver with an old nonce joined a group")

    await asyncio.to_thread(intrude)


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


def _group(stand: Stand, dice: random.Random) -> TransferGroup:
    files = sorted(Path(stand.house.run_folder).glob("trainer-*.group"))
    return TransferGroup(**json.loads(dice.choice(files).read_text()))


async def _open_group(stand: Stand, dice: random.Random) -> TransferGroup:
    """One whose rendezvous answers: else nothing would be refused there."""
    for _ in range(3):
        await stand.recover()
        group = _group(stand, dice)
        host, _, port = group.rendezvous.rpartition(":")
        with suppress(OSError), closing(socket.create_connection((host, int(port)), SECONDS)):
            return group
        await stand.open_step()  # the last version went by relay
    raise Broken("three versions in a row left no open transfer group")


def _nothing() -> tuple[Stream, Terms]:
    layout = make_layout([TensorInfo("nothing", "U8", (64,))])
    stream = Stream(layout, torch.zeros(layout.num_bytes, dtype=torch.uint8), layout)
    return stream, Terms.of("", "", layout, 1 << 20)


LEFTOVERS: dict[str, Callable[[Stand, random.Random], Awaitable[None]]] = {
    "epoch": old_epoch,
    "key": old_key,
    "group": old_group,
    "nonce": old_nonce,
    "tokens": unproven_tokens,
}
