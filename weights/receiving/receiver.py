"""A replica's end: gathers a version in a host shadow, proves every block, and keeps it for others."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trimaran.config import WeightSyncSection
from trimaran.errors import InputError, TransferError
from trimaran.host.device import Device
from trimaran.run.network import LOOPBACK, Host
from trimaran.trust.tls import SocketTls
from trimaran.types import (
    Manifest,
    Peer,
    PolicyVersion,
    Ranges,
    Source,
    Staged,
    TransferLimits,
    Transport,
    VersionId,
)
from weights.delta.changed_elements import undo
from weights.delta.delta_changes import changes_of
from weights.delta.delta_stage import (
    apply_verified,
    check_base,
    fetch_pieces,
    streams_of,
)
from weights.memory.borrowed import Borrower
from weights.memory.changes import Changes
from weights.memory.free_memory import find_free_memory
from weights.memory.host_memory import HostMemory
from weights.memory.shadow import Shadow
from weights.receiving.contents import Contents, Overlaid, StagedWeights, give_all
from weights.transports import make_carriers
from weights.transports.arrival import Intake, Verifier, check_sources
from weights.transports.calls import Stop, hold
from weights.transports.carrier import Carrier
from weights.transports.memory_carrier import host_name
from weights.transports.relay.relay_server import RelayServer
from weights.transports.relay.stock import Holding, Stock
from weights.version.layout import BlockLayout, count, make_layout
from weights.version.manifest import check_manifest

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""What a stage that was given up may take to end."""


class WeightReceiver:
    """Takes versions into a shadow, verifies every block, and gives them to other replicas.

    A version is *staged* when all of its blocks have arrived, and *held* once the
    engine has loaded it (`keep`). There is at most one of each. They share one
    shadow's memory, unless a stage is asked to keep the held version and the host
    has room for a second shadow; the two then take turns.

    Safe in several threads. `start` it, `close` it in the end.

    Example:

        receiver = WeightReceiver(pick("cpu"), 0, WeightSyncSection())
        receiver.start()
        source = MemorySource(offer.blocks, offer.memory)
        receiver.stage(version, manifest, [source], limits)
        await engine.load_weights(receiver.staged.shadow, version.version)
        receiver.keep(version.version)
    """

    def __init__(
        self,
        device: Device,
        index: int,
        config: WeightSyncSection,
        wanted: Ranges | None = None,
        carriers: Mapping[Transport, Carrier[Any]] | None = None,
        host: Host = LOOPBACK,
        tls: SocketTls | None = None,
    ) -> None:
        """`wanted`: the blocks that this process needs; None means all.

        `carriers`: the transports' receiving sides; None means those of `make_carriers`.
        `tls`: of the relay; transfer groups do without it.
        """
        self._device = device
        self._wanted = wanted
        self._turn = threading.Lock()
        """Held through a stage."""
        self._state = threading.RLock()
        """Held for moments, around what follows."""
        self._under_way: tuple[str | None, Stop] = None, Stop()
        """Which attempt, and what ends it."""
        self._contents = Contents()
        self._borrower = Borrower()
        self._carriers = carriers or make_carriers(device, index, host.address, tls)
        self._stock = Stock()
        self._key = secrets.token_hex(32)
        self._relay = RelayServer(config, self._key, self._stock, host=host, tls=tls)

    def start(self) -> None:
        """Raises TransferError when the host's address cannot be listened on."""
        self._relay.start()

    @property
    def peer(self) -> Peer:
        """Known once started."""
        return Peer(self._relay.address, self._key, host_name(), self._device.backend)

    @property
    def staged(self) -> StagedWeights | None:
        return self._contents.staged

    @property
    def held(self) -> StagedWeights | None:
        """What was kept; None from the moment in which a stage begins to write over it."""
        return self._contents.held

    def stage(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str = "",
        keep_held: bool = False,
    ) -> Staged:
        """Returns once every wanted block lies in the shadow and is verified. Generation goes on.

        Blocks are written over the held version's memory; a delta is applied to
        it. With `keep_held` the blocks go into a second shadow, if the host has
        room for it, and the relay gives out the held version until `keep`.

        A version that is still staged is forgotten; its memory stays as it is
        while its shadow is held. Another stage that is under way raises at
        once, because the caller has given it up.

        Raises TransferError when the manifest is not the version's, a wanted
        block has no source or two, a source fails or sends wrong bytes, or the
        limits' timeout passes; OutOfOrderError when a delta is against another
        version than the held one. Nothing of it is staged then, and a held version
        that was to be changed by a delta is as it was. A request that is refused
        for what it says changes nothing at all.
        """
        deadline = time.monotonic() + limits.timeout
        stop = self._begin(attempt)
        try:
            with hold(self._turn, limits.timeout):
                stop.check()
                parts, wanted = self._plan(version, manifest, sources)
                self._relay.num_parts = max(len(parts), 1)  # others pull from the same senders
                intake = Intake(
                    *(version, manifest, wanted, parts, self._carriers),
                    *(limits.bucket_bytes, deadline, stop),
                )
                if shadow := self._share(intake, attempt):
                    path = shadow.path if shadow.own else ""
                    return Staged(manifest.root, count(wanted), {}, path)
                if any(source.delta for source in sources):
                    layout, path = self._stage_delta(intake, attempt)
                else:
                    layout, path = self._stage_full(intake, attempt, keep_held)
        finally:
            self._end(stop)
        return Staged(manifest.root, count(wanted), intake.count_bytes(layout), path)

    def keep(self, version: VersionId) -> None:
        """The engine has loaded the staged version: its shadow is the held copy from here on.

        Nothing reads the shadow any more but the relay, and its memory serves
        the next stage. Does nothing when another stage has begun since.
        """
        with self._state:
            staged = self._contents.staged
            if staged is not None and staged.version.version == version:
                staged.shadow.changes = None
                self._become(self._contents.keep())
                staged.shadow.memory.release()

    def discard(self, version: VersionId, attempt: str = "") -> None:
        """Forget what the stage of this attempt brought; a delta is undone, and its base is held
        again. What another attempt staged, or is staging, stays.

        Call it when nothing reads the shadow any more. The attempt's own stage,
        if it is under way, raises at once.
        """
        under_way, stop = self._under_way
        if under_way not in (None, attempt):
            return  # it takes the place of whatever this attempt brought
        if under_way == attempt:
            stop.set(f"version {version} was discarded while it was staged")
        with hold(self._turn, CLOSE_SECONDS), self._state:
            staged, overlaid = self._contents.staged, self._contents.overlaid
            if staged is None or (staged.version.version, staged.attempt) != (version, attempt):
                return
            if overlaid is None:
                self._become(self._contents.discard())
                staged.shadow.memory.release()
            else:
                self._become(Contents())
                base = _to_write(overlaid.base)
                undo(base.shadow, overlaid.undo)
                self._hold_again(base)

    def close(self) -> None:
        """A stage under way raises at once."""
        self._begin(None).set("this receiver is closed")
        try:
            with hold(self._turn, CLOSE_SECONDS), self._state:
                for carrier in self._carriers.values():
                    carrier.close()
                self._become(Contents())
        finally:
            self._relay.close()
            self._stock.show({})

    def _begin(self, attempt: str | None) -> Stop:
        """The new stage takes the place of one that is under way."""
        with self._state:
            _, former = self._under_way
            self._under_way = attempt, (stop := Stop())
        asked = "the end" if attempt is None else "another stage"
        former.set(f"given up by its caller, who asked for {asked}")
        return stop

    def _end(self, stop: Stop) -> None:
        with self._state:
            if self._under_way[1] is stop:
                self._under_way = None, stop

    def _plan(
        self, version: PolicyVersion, manifest: Manifest, sources: Sequence[Source]
    ) -> tuple[list[tuple[Source, BlockLayout]], Ranges]:
        """Everything that can be refused before anything changes."""
        check_manifest(manifest, version.root)
        wanted = self._wanted
        if wanted is None:
            wanted = ((0, manifest.num_blocks),) if manifest.num_blocks else ()
        check_sources(manifest, wanted, sources)
        try:
            streams = streams_of(manifest.tensors, sources)
        except InputError as error:
            raise TransferError(str(error)) from None
        return list(zip(sources, streams, strict=True)), wanted

    def _become(self, contents: Contents) -> None:
        """Whatever this receiver has, or has no more, passes here. The relay gives out what is in it,
        and nothing else from this moment on: the other memory may be written to."""
        with self._state:
            self._contents = contents
            self._stock.show(contents.given)

    def _hold_again(self, base: StagedWeights) -> None:
        """After its memory is as it was."""
        base.shadow.memory.release()
        self._become(Contents(held=replace(base, given=give_all(base.shadow))))

    def _share(self, intake: Intake, attempt: str) -> Shadow | None:
        """Where a source says that the version lies on this host already. None without such a source,
        and where it cannot be read there."""
        path = next((path for source, _ in intake.parts if (path := source.shared)), "")
        if not path:
            self._borrower.forget_gone()
            return None
        try:
            shadow = self._map_verified(path, intake)
        except TransferError as error:
            intake.check()
            logger.warning(
                "version %s is not shared with its host's other replicas: %s",
                *(intake.version.version, error),
            )
            return None
        staged = StagedWeights(intake.version, shadow, attempt, give_all(shadow))
        self._become(Contents(staged=staged))  # this host needs no other copy
        return shadow

    def _fetch_changes(self, shadow: Shadow, intake: Intake) -> Changes | None:
        """What a delta changed that the shadow's owner has applied."""
        stop = Stop()  # a failure ends no more than this
        try:
            with intake.stop.interrupting(lambda: stop.set("given up by its caller")):
                return changes_of(shadow, fetch_pieces(replace(intake, stop=stop))[1])
        except TransferError as error:
            intake.check()
            logger.warning("version %s is loaded whole: %s", intake.version.version, error)
            return None

    def _map_verified(self, path: str, intake: Intake) -> Shadow:
        """Another's is leased before its blocks are digested: so they stay what they were found to be.
        Raises TransferError."""
        size = make_layout(intake.manifest.tensors, intake.wanted).num_bytes
        memory = self._find_own(path, size) or self._borrower.borrow(path, size)
        shadow = Shadow(intake.manifest, intake.wanted, memory=memory)
        try:
            Verifier(intake.manifest, shadow.buffer, shadow.layout).check_all(intake.check)
            if any(source.delta for source, _ in intake.parts):
                shadow.changes = self._fetch_changes(shadow, intake)
        except BaseException:
            memory.release()
            raise
        return shadow

    def _find_own(self, path: str, size: int) -> HostMemory | None:
        """Where it is this receiver's own memory, whose engine is to load it again."""
        weights = (self.staged, self.held)
        shadows = (*(one.shadow for one in weights if one), self._contents.spare)
        memories = [shadow.own for shadow in shadows if shadow]
        return next((one for one in memories if one and (one.path, one.size) == (path, size)), None)

    def _stage_full(self, intake: Intake, attempt: str, keep_held: bool) -> tuple[BlockLayout, str]:
        contents = self._contents.make_way(beside=keep_held and self._can_keep())
        memory, contents = contents.spare, replace(contents, spare=None)
        self._become(contents)
        shadow = Shadow(intake.manifest, intake.wanted, memory, intake.check)
        del memory  # what a neighbour still reads goes with it
        given = give_all(shadow, filling=True)
        self._become(
            replace(contents, coming=StagedWeights(intake.version, shadow, attempt, given))
        )
        (holding,) = given.values()
        verifier = Verifier(intake.manifest, shadow.buffer, shadow.layout)

        def landed(number: int) -> None:
            verifier.check(number)
            holding.land(number)

        try:
            intake.fill(shadow.buffer, shadow.layout, landed, shadow.own)
        except BaseException:
            self._become(replace(contents, spare=shadow if intake.settled else None))
            raise
        holding.complete()
        shadow.memory.release()
        self._become(self._contents.arrive())
        return shadow.layout, shadow.path

    def _stage_delta(self, intake: Intake, attempt: str) -> tuple[BlockLayout, str]:
        base = self.held
        check_base(intake, base.version.root if base else "", base and base.shadow.manifest)
        assert base is not None, "check_base refuses a delta against nothing"
        layout, pieces = fetch_pieces(intake)
        base = _to_write(base, intake.check)
        # Until here the base was as it is. It needs no second memory beside it, unless it is borrowed.
        self._become(Contents())
        shadow = Shadow(intake.manifest, intake.wanted, reuse=base.shadow)
        try:
            overwritten = apply_verified(shadow, pieces, intake.check)
        except BaseException:
            self._hold_again(base)
            raise
        views = {number: memoryview(piece) for number, piece in pieces.pieces.items()}
        delta = {(intake.version.root, pieces.base_root): Holding(views)}
        staged = StagedWeights(intake.version, shadow, attempt, give_all(shadow) | delta)
        shadow.memory.release()
        self._become(Contents(staged=staged, overlaid=Overlaid(base, overwritten)))
        return layout, shadow.path

    def _can_keep(self) -> bool:
        """Whether the host bears a second shadow and would still have room for a third."""
        held = self.held
        if held is None:
            return False
        size = held.shadow.layout.num_bytes
        room = find_free_memory()
        spare = self._contents.spare
        if not (spare and spare.claim()) and room.num_bytes < 2 * size:
            logger.warning(
                "version %s is written over while the next one is staged: a second copy of %.0f MiB"
                " would leave too little in %s, where %.0f MiB are free",
                *(held.version.version, size / 2**20, room.where, room.num_bytes / 2**20),
            )
            return False
        return True


def _to_write(base: StagedWeights, check: Callable[[], None] = lambda: None) -> StagedWeights:
    """Claimed: in a copy while its own memory is borrowed. Raises TransferError when memory is short,
    and what `check` raises."""
    former = base.shadow
    shadow = Shadow(former.manifest, former.layout.ranges, former, check)
    if shadow.memory is not former.memory:
        shadow.buffer.copy_(former.buffer)
    return replace(base, shadow=shadow)
