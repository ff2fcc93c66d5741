"""Those who belong to an earlier time and try to take part in a sync that is under way."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from services.weight_sync.layout import make_layout
from services.weight_sync.transports.collective import Collective
from services.weight_sync.transports.relay_wire import Connection, introduce
from services.weight_sync.transports.streams import Stream
from services.weight_sync.transports.terms import Terms
from tests.faults.stand import Broken, Stand
from trimaran.clients import RolloutClient, WeightSyncClient
from trimaran.device import pick
from trimaran.errors import StaleEpochError, TransferError, TrimaranError
from trimaran.types import Caller, Peer, Source, TensorInfo, TransferGroup, Transport

SECONDS = 1.0


async def old_epoch(stand: Stand, dice: random.Random) -> None:
    """A controller that was replaced, and a weight sync that speaks for it."""
    assert stand.version
    old = Caller(stand.caller.run_id, stand.caller.epoch - 1)
    name = dice.choice(stand.house.replicas[:-1])
    async with (
        WeightSyncClient(stand.weight_sync_address, old) as weight_sync,
        RolloutClient(stand.house.replica(name).address, old) as replica,
    ):
        refused = (
            weight_sync.publish_version(stand.version, SECONDS),
            weight_sync.report_replica(name, "an old controller says so"),
            replica.commit_weights(stand.version, "leftover", SECONDS),
            replica.abort_weights(stand.version.version, "leftover"),
        )
        for call in refused:
            with suppress(StaleEpochError):
                await call
                raise Broken(
                    f"a call of epoch {old.epoch} was obeyed; {stand.caller.epoch} is known"
                )


async def old_key(stand: Stand, dice: random.Random) -> None:
    """A puller with a key of a peer's former life: not a byte is for it."""
    name = dice.choice([*stand.house.trainers, *stand.house.replicas[:-1]])
    peer = Peer(**json.loads((stand.house.run_folder / f"{name}.relay").read_text()))

    def pull() -> None:
        host, _, port = peer.relay.rpartition(":")
        with socket.create_connection((host, int(port)), SECONDS) as sock:
            status = introduce(Connection(sock, time.monotonic() + SECONDS), secrets.token_hex(32))
        raise Broken(f"{name} answered a puller with a wrong key: {status}")

    with suppress(OSError):  # it closes the connection without a word
        await asyncio.to_thread(pull)


async def old_group(stand: Stand, dice: random.Random) -> None:
    """A replica is told a group that has ended: it fails by the deadline and stages nothing."""
    assert stand.version
    async with stand.trainer() as trainer:
        version, manifest = await trainer.get_policy_version(SECONDS)
    name = dice.choice(stand.house.replicas[:-1])
    group = replace(_group(stand, dice), nonce=secrets.token_hex(16))
    blocks = ((0, manifest.num_blocks),)
    source = Source(Transport.COLLECTIVE, blocks, replace(group, world_size=2), 1)
    started = time.monotonic()
    async with RolloutClient(stand.house.replica(name).address, stand.caller) as replica:
        try:
            await replica.stage_weights(version, manifest, [source], 1 << 20, SECONDS, "leftover")
        except TrimaranError:
            pass
        else:
            raise Broken(f"{name} staged a version from a group that had ended")
    if time.monotonic() - started > SECONDS + 6:
        raise Broken(f"{name} noticed only after {time.monotonic() - started:.1f} s")


async def old_nonce(stand: Stand, dice: random.Random) -> None:
    """A receiver of another time joins at the rendezvous of the group that is open now."""
    group = replace(_group(stand, dice), nonce=secrets.token_hex(16))

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


def _group(stand: Stand, dice: random.Random) -> TransferGroup:
    files = sorted(Path(stand.house.run_folder).glob("trainer-*.group"))
    return TransferGroup(**json.loads(dice.choice(files).read_text()))


def _nothing() -> tuple[Stream, Terms]:
    layout = make_layout([TensorInfo("nothing", "U8", (64,))])
    stream = Stream(layout, torch.zeros(layout.num_bytes, dtype=torch.uint8), layout)
    return stream, Terms.of("", "", layout, 1 << 20)


LEFTOVERS: dict[str, Callable[[Stand, random.Random], Awaitable[None]]] = {
    "epoch": old_epoch,
    "key": old_key,
    "group": old_group,
    "nonce": old_nonce,
}
