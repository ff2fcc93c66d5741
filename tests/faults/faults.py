"""The faults: what is done to whom, and where in a sync.

Each is a coroutine that breaks something while a version is being published and
leaves the rest to `Stand.recover`. `Case`s name the combinations; the seed
chooses their order, their victims and their moments.
"""

from __future__ import annotations

import asyncio
import random
import resource
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.faults import leftovers, orders
from tests.faults.house import WEIGHT_SYNC, Setting
from tests.faults.processes import Child
from tests.faults.proxy import Harm
from tests.faults.stand import Broken, Stand
from trimaran.errors import TrimaranError

REACH_SECONDS = 20.0
"""In which a process must get to the place it was ordered to stop at."""
FROZEN_SECONDS = (0.2, 2.5)
"""From shorter than every deadline to longer than a commit's."""
NO_ROOM_BYTES = 1 << 20

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


async def freeze_replica(stand: Stand, case: Case, dice: random.Random) -> bool:
    name = dice.choice(stand.house.replicas[:-1])
    child = stand.house.children[name]
    async with syncing(stand, name, case.place, dice) as moment:
        moment.freeze(child, dice.uniform(*FROZEN_SECONDS))
    return moment.reached


async def kill_trainer(stand: Stand, case: Case, dice: random.Random) -> bool:
    victim = stand.house.children[dice.choice(stand.house.trainers)]
    holder = victim.name if case.place == "send" else dice.choice(stand.house.replicas[:-1])
    async with syncing(stand, holder, case.place, dice) as moment:
        victim.kill()
    return moment.reached


async def freeze_trainer(stand: Stand, case: Case, dice: random.Random) -> bool:
    victim = stand.house.children[dice.choice(stand.house.trainers)]
    holder = victim.name if case.place == "send" else dice.choice(stand.house.replicas[:-1])
    async with syncing(stand, holder, case.place, dice) as moment:
        moment.freeze(victim, dice.uniform(*FROZEN_SECONDS))
    return moment.reached


async def kill_weight_sync(stand: Stand, case: Case, dice: random.Random) -> bool:
    victim = stand.house.children[WEIGHT_SYNC]
    async with syncing(stand, _marker(stand, case, dice), case.place, dice) as moment:
        victim.kill()
    return moment.reached


async def freeze_weight_sync(stand: Stand, case: Case, dice: random.Random) -> bool:
    victim = stand.house.children[WEIGHT_SYNC]
    async with syncing(stand, _marker(stand, case, dice), case.place, dice) as moment:
        moment.freeze(victim, dice.uniform(*FROZEN_SECONDS))
    return moment.reached


def _marker(stand: Stand, case: Case, dice: random.Random) -> str:
    """Who shows that the sync is at the place."""
    if case.place in ("record", "recorded"):
        return WEIGHT_SYNC
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
    """A replica that comes back finds no room for a shadow, until there is some again."""
    name = dice.choice(stand.house.replicas[:-1])
    stand.house.children[name].kill()
    orders.give(stand.house.run_folder, name, "stage")
    child = stand.house.start(name)
    publishing = asyncio.ensure_future(_train_and_publish(stand))
    if not await stand.until_stopped(name, None, REACH_SECONDS):
        raise Broken(f"{name} came back and was not given a version within {REACH_SECONDS:g} s")
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (NO_ROOM_BYTES, resource.RLIM_INFINITY))
    child.thaw()
    await publishing
    await _until_unroutable(stand, name)
    resource.prlimit(
        child.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    return True


async def fill_disk(stand: Stand, case: Case, dice: random.Random) -> bool:
    """Weight sync cannot write to its store for a while."""
    child = stand.house.children[WEIGHT_SYNC]
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    try:
        async with syncing(stand, _marker(stand, case, dice), case.place, dice) as moment:
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    finally:
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, endless)
    if moment.reached and moment.error is None and case.place != "recorded":
        raise Broken("a version was committed without a record on the disk")
    return moment.reached


async def corrupt_engine(stand: Stand, case: Case, dice: random.Random) -> bool:
    """A bit flips in what the engine has loaded: reading back finds it, its tokens never train."""
    name = dice.choice(stand.house.replicas[:-1])
    assert stand.version
    generation = stand.generation
    suspect = await stand.maker(name), stand.version.version
    generation.suspects.add(suspect)
    orders.give(stand.house.run_folder, name, "token", "corrupt")
    spoilt = await generation.next_spoilt(suspect, REACH_SECONDS)
    async with stand.weight_sync() as client:
        proofs, unroutable = await client.verify_replicas([name], REACH_SECONDS)
    if not any(proof.fault for proof in proofs) and name not in unroutable:
        raise Broken(f"{name} has a flipped bit in its engine and was read back as good: {proofs}")
    await stand.recover()  # it is mended at the same version, of which it has made wrong tokens
    generation.groups.append(spoilt)
    before = stand.num_refused
    await _train_and_publish(stand)
    if stand.num_refused == before:
        raise Broken(f"a group of {name} with wrong tokens was not refused")
    return True


async def flip_in_memory(stand: Stand, case: Case, dice: random.Random) -> bool:
    """A sender's memory goes bad after it was digested: nobody may take what it sends."""
    name = dice.choice(stand.house.trainers)
    orders.give(stand.house.run_folder, name, "snapshot", "flip")
    error = await _train_and_publish(stand)
    if orders.is_open(stand.house.run_folder, name):
        return False
    if error is None:
        if stand.house.setting.delta:  # what changed is all that travels, and that was right
            return True
        raise Broken("a version with a flipped bit was published")
    routing = await stand.routing()
    blamed = [name for name in stand.house.alive if "digest" in routing.unroutable.get(name, "")]
    if blamed or not routing.routable:
        raise Broken(
            "a version could not be staged anywhere, and the one before it is not served by"
            f" everybody who answered: {routing.describe_unroutable()}"
        )
    await stand.train()  # the version cannot be had any more, so the next one must be published
    return True


async def flip_in_send(stand: Stand, case: Case, dice: random.Random) -> bool:
    """One broadcast carries a flipped bit."""
    name = dice.choice(stand.house.trainers)
    orders.give(stand.house.run_folder, name, "send", "flip")
    await _train_and_publish(stand)
    return not orders.is_open(stand.house.run_folder, name)


async def harm_relay(stand: Stand, case: Case, dice: random.Random) -> bool:
    """On the wire of one relay; where others are the main transport, of one who comes back."""
    harm = Harm(case.place)
    doors = [stand.house.doors[name] for name in stand.house.trainers]
    if stand.house.setting.transport != "relay":
        name = dice.choice(stand.house.replicas[:-1])
        stand.house.children[name].kill()
        doors = [*doors, *(stand.house.doors[other] for other in stand.house.alive)]
    for door in doors:
        door.order(harm, int(10 ** dice.uniform(1.5, 4)))
    await _train_and_publish(stand)
    if stand.house.setting.transport != "relay":
        await stand.recover()
    done = any(door.done.is_set() for door in doors)
    for door in doors:
        door.withdraw()
    return done


async def stale_group(stand: Stand, case: Case, dice: random.Random) -> bool:
    """Somebody left over from before tries to take part: with an old nonce, group or epoch."""
    publishing = asyncio.ensure_future(_train_and_publish(stand))
    try:
        await leftovers.LEFTOVERS[case.place](stand, dice)
    finally:
        await publishing
    return True


@dataclass(slots=True)
class Moment:
    reached: bool = True
    error: TrimaranError | None = None
    """With which the publication ended."""
    frozen: dict[Child, asyncio.Task[None]] = field(default_factory=dict)

    def freeze(self, child: Child, seconds: float) -> None:
        async def thaw() -> None:
            await asyncio.sleep(seconds)
            child.thaw()

        child.freeze()
        self.frozen[child] = asyncio.create_task(thaw())


@asynccontextmanager
async def syncing(
    stand: Stand, holder: str, place: str, dice: random.Random
) -> AsyncIterator[Moment]:
    """Trains a version and publishes it; the body runs while `holder` stands at `place`."""
    await stand.train()
    moment = Moment()
    if place == "idle":
        yield moment
        moment.error = await stand.publish()
    else:
        child, folder = stand.house.children[holder], stand.house.run_folder
        orders.give(folder, holder, place, passes=dice.randrange(12) if place == "landed" else 0)
        publishing = asyncio.create_task(stand.publish())
        try:
            moment.reached = await stand.until_stopped(holder, publishing, REACH_SECONDS)
            orders.withdraw(folder, holder)
            yield moment
            if child not in moment.frozen:
                child.thaw()
            moment.error = await publishing
        finally:
            publishing.cancel()
    await asyncio.gather(*moment.frozen.values())


async def _train_and_publish(stand: Stand) -> TrimaranError | None:
    await stand.train()
    return await stand.publish()


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


def _cases(
    kind: str, act: Act, places: str, fits: Callable[[Setting], bool] = lambda setting: True
) -> list[Case]:
    return [Case(kind, place, act, fits) for place in places.split()]


CASES = [
    *_cases("kill a replica", kill_replica, "idle stage landed staged"),
    *_cases("kill a replica", kill_replica, "load half loaded", _stand_in),
    *_cases("freeze a replica", freeze_replica, "idle stage landed staged"),
    *_cases("freeze a replica", freeze_replica, "load half loaded", _stand_in),
    *_cases("kill a trainer rank", kill_trainer, "idle landed staged"),
    *_cases("kill a trainer rank", kill_trainer, "send", _collective),
    *_cases("freeze a trainer rank", freeze_trainer, "idle landed"),
    *_cases("freeze a trainer rank", freeze_trainer, "send", _collective),
    *_cases("kill weight sync", kill_weight_sync, "idle stage landed staged record recorded"),
    *_cases("kill weight sync", kill_weight_sync, "half loaded", _stand_in),
    *_cases("freeze weight sync", freeze_weight_sync, "idle landed record recorded"),
    *_cases("a replica joins or comes back", join, "idle stage landed staged"),
    *_cases("a replica leaves", leave, "idle stage landed"),
    *_cases("no memory for a shadow", fill_memory, "stage"),
    *_cases("disk of weight sync full", fill_disk, "landed record"),
    *_cases("flipped bit in the engine", corrupt_engine, "token", _stand_in),
    *_cases("flipped bit in a sender's memory", flip_in_memory, "snapshot"),
    *_cases("flipped bit in a broadcast", flip_in_send, "send", _collective),
    *_cases("harm on a relay's wire", harm_relay, "flip cut stall", _wired),
    *_cases("leftovers", stale_group, "epoch key"),
    *_cases("leftovers", stale_group, "group nonce", _collective),
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
