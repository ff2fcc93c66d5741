"""The faults: what is done to whom, and where in a sync.

Each is a coroutine that breaks something while the controller publishes a version
and leaves the rest to `Stand.recover`. `Case`s name the combinations; the seed
chooses their order, their victims and their moments.
"""

from __future__ import annotations

import asyncio
import random
import resource
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from tests.faults import leftovers, orders
from tests.faults.house import CONTROLLER, GROUPS_PER_STEP, WEIGHT_SYNC, House, Setting
from tests.faults.processes import Child
from tests.faults.proxy import Harm
from tests.faults.replaced import CALL_SECONDS, Broken, expect
from tests.faults.stand import Stand
from trimaran.clients import WeightSyncClient
from trimaran.errors import StaleEpochError
from trimaran.types import Caller, VersionId

REACH_SECONDS = 20.0
"""In which a process must get to the place it was ordered to stop at."""
FROZEN_SECONDS = (0.2, 2.5)
"""From shorter than every deadline to longer than a commit's."""
NO_ROOM_BYTES = 1 << 20
BEFORE_RECORD = ("stage", "landed", "staged", "record")
"""Places of a sync at which the version before it is the one that is committed."""

Act = Callable[[Stand, "Case", random.Random], Awaitable[bool]]
"""False when the moment for the fault never came, so that it was not made."""


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    place: str
    act: Act
    fits: Callable[[Setting], bool] = lambda setting: True

    def __str__(self) -> str:
        return f"{self.kind}, {self.place}"


async def kill_replica(stand: Stand, case: Case, dice: random.Random) -> bool:
    """It is started again after the publication, or at once, in the middle of it."""
    name = dice.choice(stand.house.replicas[:-1])
    child = stand.house.children[name]
    async with syncing(stand, name, case.place, dice) as moment:
        child.kill()
        if dice.random() < 0.5:
            stand.house.start(name)
    return moment.reached


async def kill_core(stand: Stand, case: Case, dice: random.Random) -> bool:
    """Only vLLM's core, in the middle of its load: the replica has to notice, and to end."""
    name = dice.choice(stand.house.replicas[:-1])
    child = stand.house.children[name]
    async with syncing(stand, name, case.place, dice) as moment:
        for core in child.stopped():
            core.kill()
    if moment.reached:
        await stand.until(lambda: not child.alive, CALL_SECONDS, f"{name} to end with its core")
    return moment.reached


async def kill_trainer(stand: Stand, case: Case, dice: random.Random) -> bool:
    """The launcher ends the run then, and it is resumed."""
    victim = dice.choice(stand.house.trainers)
    stand.may_end = True
    async with syncing(stand, _holder(stand, case, victim, dice), case.place, dice) as moment:
        stand.house.children[victim].kill()
    return moment.reached


async def kill_controller(stand: Stand, case: Case, dice: random.Random) -> bool:
    """The run is resumed from its ledger, with the trainer where it stands."""
    stand.may_end = True
    async with syncing(stand, _holder(stand, case, CONTROLLER, dice), case.place, dice) as moment:
        stand.house.children[CONTROLLER].kill()
        await stand.start_controller()
    return moment.reached


async def replace_controller(stand: Stand, case: Case, dice: random.Random) -> bool:
    """It is frozen, taken for dead and replaced. Then it comes back and must end, and what it had
    asked for before must not be done: each because it was replaced."""
    former = stand.house.children[CONTROLLER]
    run_id, epoch, step = stand.house.run_folder.name, stand.audit.epoch, stand.step + 1
    stand.may_end = True
    async with syncing(stand, _holder(stand, case, CONTROLLER, dice), case.place, dice) as moment:
        former.freeze()
        if moment.reached and case.place != "idle":
            await _queue_behind(stand, Caller(run_id, epoch), step, moment)
        await stand.start_controller(beside=True)
        log = stand.house.folder / f"{CONTROLLER}.log"
        begin = log.stat().st_size
        former.thaw()
    try:
        await stand.until(lambda: not former.alive, CALL_SECONDS, "the former controller to end")
    finally:
        former.kill()
    # It may record nothing any more; its log has its last words.
    words = log.read_bytes()[begin:].decode(errors="replace")
    if "was replaced by" not in words and "another controller" not in words:
        raise Broken(f"a controller that was replaced ended with another error: {words[-1000:]!r}")
    return moment.reached


async def _queue_behind(stand: Stand, old: Caller, step: int, moment: Moment) -> None:
    """A publication waits for its turn behind the one under way, and its epoch ends meanwhile."""
    async with WeightSyncClient(stand.weight_sync_address, old) as client:
        live = (await client.get_routing()).live
        assert live
        version = replace(live, version=VersionId(live.version.lineage, step + 1), root="0" * 32)
        queued = asyncio.ensure_future(client.publish_version(version, 3 * CALL_SECONDS))
        await asyncio.sleep(0.1)  # its epoch is looked at before it waits
        new = Caller(old.run_id, await stand.audit.store.next_epoch(old.run_id))
        async with WeightSyncClient(stand.weight_sync_address, new) as successor:
            await successor.get_routing()
        moment.go_on()
        await expect(StaleEpochError, queued, "a publication whose controller was replaced")


async def kill_weight_sync(stand: Stand, case: Case, dice: random.Random) -> bool:
    """It comes back with what it had committed, before any controller says a word."""
    victim, controller = (stand.house.children[name] for name in (WEIGHT_SYNC, CONTROLLER))
    async with syncing(stand, _holder(stand, case, WEIGHT_SYNC, dice), case.place, dice) as moment:
        if moment.reached:
            controller.freeze()
            victim.kill()
            moment.go_on()
            stand.house.start(WEIGHT_SYNC)
            await stand.check_left(stand.step - (case.place in BEFORE_RECORD))
            controller.thaw()
    return moment.reached


def freezing(victims: Callable[[House], Sequence[str]]) -> Act:
    """One of these; it goes on by itself later."""

    async def freeze(stand: Stand, case: Case, dice: random.Random) -> bool:
        victim = dice.choice(victims(stand.house))
        commit = stand.house.config.weight_sync.commit_timeout
        # In the middle of a load it outlasts the deadline, which cuts the load off.
        seconds = (commit, 1.5 * commit) if case.place == "half" else FROZEN_SECONDS
        child = stand.house.children[victim]
        async with syncing(stand, _holder(stand, case, victim, dice), case.place, dice) as moment:
            moment.freeze(child, dice.uniform(*seconds))
        return moment.reached

    return freeze


def _holder(stand: Stand, case: Case, victim: str, dice: random.Random) -> str:
    """Who shows that the sync is at the place."""
    if case.place in ("record", "recorded"):
        return WEIGHT_SYNC
    if case.place == "send" or victim in stand.house.replicas:
        return victim
    return dice.choice(stand.house.replicas[:-1])


async def join(stand: Stand, case: Case, dice: random.Random) -> bool:
    """The last replica comes for the first time, or comes back."""
    extra = stand.house.replicas[-1]
    if stand.house.is_alive(extra):
        stand.house.children[extra].kill()
    holder = dice.choice(stand.house.replicas[:-1])
    async with syncing(stand, holder, case.place, dice) as moment:
        stand.house.start(extra)
        await asyncio.sleep(dice.uniform(0.0, 1.0))
    return moment.reached


async def leave(stand: Stand, case: Case, dice: random.Random) -> bool:
    """SIGTERM; it does not come back."""
    extra = stand.house.replicas[-1]
    if not stand.house.is_alive(extra):
        stand.house.start(extra)
        await stand.recover()
    async with syncing(stand, extra, case.place, dice) as moment:
        pass
    await stand.house.children[extra].end()
    return moment.reached


async def fill_memory(stand: Stand, case: Case, dice: random.Random) -> bool:
    """A replica that comes back finds no room for a shadow, until there is some again. Where it may
    read a neighbour's it needs none."""
    name = dice.choice(stand.house.replicas[:-1])
    stand.house.children[name].kill()
    orders.give(stand.house.run_folder, name, "stage")
    child = stand.house.start(name)
    await stand.open_step()
    if not await stand.until_stopped(name, REACH_SECONDS, until_over=False):
        raise Broken(f"{name} came back and was not given a version within {REACH_SECONDS:g} s")
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (NO_ROOM_BYTES, resource.RLIM_INFINITY))
    child.thaw()
    await _until_unroutable(stand, name)
    resource.prlimit(
        child.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    return True


async def fill_disk(stand: Stand, case: Case, dice: random.Random) -> bool:
    """Weight sync cannot write to its store for a while: nothing is live without its record."""
    child = stand.house.children[WEIGHT_SYNC]
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    try:
        async with syncing(
            stand, _holder(stand, case, WEIGHT_SYNC, dice), case.place, dice
        ) as moment:
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            moment.go_on()
            await asyncio.sleep(dice.uniform(0.5, 2.0))
            async with stand.weight_sync() as client:
                live = (await client.get_routing()).live
            if moment.reached and live and live.version.step >= stand.step:
                raise Broken("a version was committed without a record on the disk")
    finally:
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, endless)
    return moment.reached


async def corrupt_engine(stand: Stand, case: Case, dice: random.Random) -> bool:
    """A bit flips as the engine takes a version: its tokens wait, scored, when reading back finds
    it, and must not train."""
    # A resumed controller makes no groups before its pending batch has trained. The version that is
    # spoilt is an odd one, of which no sample is taken: its tokens come before anybody knows.
    for _ in range(2 - stand.step % 2):
        await stand.open_step()
        await stand.recover()
    name = stand.house.replicas[0]  # of equals it is asked first
    suspect = await stand.maker(name), VersionId(0, stand.step + 1)
    stand.judge.suspects.add(suspect)
    orders.give(stand.house.run_folder, name, "loaded", "corrupt")
    before, audit = set(stand.audit.spoilt), stand.audit

    def is_full() -> bool:
        return audit.consumed > stand.step and audit.num_waiting == GROUPS_PER_STEP

    # What waits is right then, and what is wrong has to wait for a batch that is not due yet.
    await stand.until(is_full, REACH_SECONDS, "the next batch but one")
    await stand.open_step()
    await stand.until(is_full, REACH_SECONDS, f"wrong tokens of {name}")
    async with stand.weight_sync() as client:
        proofs, _ = await client.verify_replicas([name], REACH_SECONDS)
    if any(proof.replica == suspect[0] and not proof.fault for proof in proofs):
        raise Broken(f"{name} has a flipped bit in its engine and was read back as good: {proofs}")
    await stand.recover()  # it is fixed at the same version, of which it has made wrong tokens
    spoilt = audit.spoilt - before
    for _ in range(2):  # until their batch is due
        await stand.open_step()
        await stand.recover()
    if left := spoilt - audit.reissued:
        raise Broken(f"groups with wrong tokens of {name} were not reissued: {left}")
    return bool(spoilt)


async def flip_in_memory(stand: Stand, case: Case, dice: random.Random) -> bool:
    """A sender's memory goes bad after it was digested: no replica may take what it sends."""
    name = dice.choice(stand.house.trainers)
    orders.give(stand.house.run_folder, name, "snapshot", "flip")
    await stand.open_step()
    section = stand.house.config.weight_sync
    deadline = asyncio.get_running_loop().time() + section.join_timeout + section.stage_timeout
    while asyncio.get_running_loop().time() < deadline:
        live = (await stand.routing()).live
        assert live
        if live.version.step == stand.step:
            if stand.house.setting.delta:  # what changed is all that travels, and that was right
                return True
            raise Broken("a version with a flipped bit was published")
        await asyncio.sleep(0.2)
    if orders.is_open(stand.house.run_folder, name):
        return False
    await stand.until_served(stand.step - 1)
    await stand.resume()  # the version cannot be had any more: its trainers make it again
    return True


async def flip_in_send(stand: Stand, case: Case, dice: random.Random) -> bool:
    """One broadcast carries a flipped bit."""
    name = dice.choice(stand.house.trainers)
    orders.give(stand.house.run_folder, name, "send", "flip")
    await stand.open_step()
    await stand.recover()
    return not orders.is_open(stand.house.run_folder, name)


async def harm_relay(stand: Stand, case: Case, dice: random.Random) -> bool:
    """On the wire of one relay; where others are the main transport, of one who comes back."""
    doors = [stand.house.doors[name] for name in stand.house.trainers]
    if stand.house.setting.transport != "relay":
        name = dice.choice(stand.house.replicas[:-1])
        stand.house.children[name].kill()
        doors = [*doors, *(stand.house.doors[other] for other in stand.house.alive)]
    for door in doors:
        door.order(Harm(case.place), int(10 ** dice.uniform(1.5, 4)))
    await stand.open_step()
    await stand.recover()
    done = any(door.done.is_set() for door in doors)
    for door in doors:
        door.withdraw()
    return done


async def leave_over(stand: Stand, case: Case, dice: random.Random) -> bool:
    """Somebody left over from before tries to take part: with an old epoch, or with tokens that have
    no proof."""
    await stand.open_step()
    await leftovers.LEFTOVERS[case.place](stand, dice)
    return True


@dataclass(slots=True)
class Moment:
    holder: Child
    reached: bool = True
    frozen: dict[Child, asyncio.Task[None]] = field(default_factory=dict)

    def freeze(self, child: Child, seconds: float) -> None:
        async def thaw() -> None:
            await asyncio.sleep(seconds)
            child.thaw()

        if not child.stopped():
            child.freeze()
        self.frozen[child] = asyncio.create_task(thaw())

    def go_on(self) -> None:
        """Whatever shows that the sync is at the place stands there no longer."""
        if self.holder not in self.frozen:
            self.holder.thaw()


@asynccontextmanager
async def syncing(
    stand: Stand, holder: str, place: str, dice: random.Random
) -> AsyncIterator[Moment]:
    """The next version is trained and published; the body runs while `holder` stands at `place`."""
    moment = Moment(stand.house.children[holder])
    if place == "idle":
        yield moment
        if not stand.may_end:
            await stand.open_step()
    else:
        folder = stand.house.run_folder
        orders.give(folder, holder, place, passes=dice.randrange(12) if place == "landed" else 0)
        await stand.open_step()
        moment.reached = await stand.until_stopped(holder, REACH_SECONDS)
        orders.withdraw(folder, holder)
        try:
            yield moment
        finally:
            moment.go_on()
    await asyncio.gather(*moment.frozen.values())


async def _until_unroutable(stand: Stand, name: str) -> None:
    async with asyncio.timeout(REACH_SECONDS):
        while name not in (await stand.routing()).faults:
            await asyncio.sleep(0.05)


def _collective(setting: Setting) -> bool:
    return setting.transport == "collective"


def _wired(setting: Setting) -> bool:
    return setting.transport != "auto"


def _stand_in(setting: Setting) -> bool:
    return setting.engine == "stand-in"


def _vllm(setting: Setting) -> bool:
    return setting.engine == "vllm"


def _cases(
    kind: str, act: Act, places: str, fits: Callable[[Setting], bool] = lambda setting: True
) -> list[Case]:
    return [Case(kind, place, act, fits) for place in places.split()]


CASES = [
    *_cases("kill a replica", kill_replica, "idle stage landed staged half"),
    *_cases("kill a replica", kill_replica, "load loaded", _stand_in),
    *_cases("kill a replica's core", kill_core, "half", _vllm),
    *_cases(
        "freeze a replica",
        freezing(lambda house: house.replicas[:-1]),
        "idle stage landed staged half",
    ),
    *_cases(
        "freeze a replica", freezing(lambda house: house.replicas[:-1]), "load loaded", _stand_in
    ),
    *_cases("kill a trainer rank", kill_trainer, "idle landed staged"),
    *_cases("kill a trainer rank", kill_trainer, "send", _collective),
    *_cases("freeze a trainer rank", freezing(lambda house: house.trainers), "idle landed"),
    *_cases("freeze a trainer rank", freezing(lambda house: house.trainers), "send", _collective),
    *_cases("kill the controller", kill_controller, "idle stage staged record recorded half"),
    *_cases("freeze the controller", freezing(lambda house: [CONTROLLER]), "idle staged recorded"),
    *_cases("replace the controller", replace_controller, "idle stage staged"),
    *_cases("kill weight sync", kill_weight_sync, "record recorded idle stage landed staged half"),
    *_cases("kill weight sync", kill_weight_sync, "loaded", _stand_in),
    *_cases(
        "freeze weight sync", freezing(lambda house: [WEIGHT_SYNC]), "idle landed record recorded"
    ),
    *_cases("a replica joins or comes back", join, "idle stage landed staged"),
    *_cases("a replica leaves", leave, "idle stage landed"),
    *_cases("no memory for a shadow", fill_memory, "stage", _wired),
    *_cases("disk of weight sync full", fill_disk, "landed record"),
    *_cases("flipped bit in the engine", corrupt_engine, "loaded", _stand_in),
    *_cases("flipped bit in a sender's memory", flip_in_memory, "snapshot"),
    *_cases("flipped bit in a broadcast", flip_in_send, "send", _collective),
    *_cases("harm on a relay's wire", harm_relay, "flip cut stall", _wired),
    *_cases("leftovers", leave_over, "epoch tokens"),
]


def choose(
    setting: Setting, later: Sequence[Setting], only: str, seen: Counter[Case], dice: random.Random
) -> Case:
    """One that fits, of the kinds that were made least often; first of those that fit no `later`
    setting, in which there would be time for them."""
    kinds: Counter[str] = Counter()
    for case, number in seen.items():
        kinds[case.kind] += number
    can_wait = {case.kind for case in CASES if any(case.fits(one) for one in later)}
    return min(
        (case for case in CASES if case.fits(setting) and only in str(case)),
        key=lambda case: (kinds[case.kind], case.kind in can_wait, seen[case], dice.random()),
    )
