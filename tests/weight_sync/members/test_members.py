"""A member's states, worked by hand; then all that may happen, in any order."""

import asyncio
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.weight_sync.members.former_life import find_gone
from services.weight_sync.members.member import Member, State
from services.weight_sync.members.members import Members
from tests.weight_sync.fakes import NUM_BLOCKS, peer_of, version_of
from trimaran.types import Peer, PolicyVersion, Replica
from weights.version.layout import numbers_of, to_ranges

ALL = ((0, NUM_BLOCKS),)
REPLICA = Replica("a", "127.0.0.1:1")


def joining(step: int = 1) -> Member:
    return Member(REPLICA, peer_of("a"), 1).load(version_of(step), "a")


def proven(step: int = 1) -> Member:
    return joining(step).read(ALL, "a").prove(version_of(step), NUM_BLOCKS, 0.0)


def with_one(now=0.0):
    members = Members()
    return members, members.register(REPLICA, peer_of("a"), now)


def test_what_was_right_of_a_joiner_counts_until_it_has_a_fault_or_is_proven():
    one = joining(1).read(((0, 2),), "a").load(version_of(2), "a").read(((2, 3),), "a")
    assert one.right == ((0, 3),)
    assert one.fail("stream broke", 0.0).right == ()
    wrong = one.condemn("wrong", "a", 0.0)
    assert wrong.right == ()
    assert wrong.read(((0, 2),), "a").right == ()  # it was read under its former name
    assert wrong.read(((0, 2),), "a~1").right == ((0, 2),)
    assert proven().read(((2, 3),), "a").right == ()


def test_silence_is_counted_from_the_last_sign():
    members, a = with_one(now=100.0)
    assert members.silent(129.0, 30) == () and members.silent(131.0, 30) == (a,)
    assert not members.tell(a, lambda m: m.hear(None, 120.0))
    assert members.silent(149.0, 30) == () and members.silent(151.0, 30) == (a,)
    members.see_all(140.0)
    assert members.silent(169.0, 30) == ()
    members.tell(a, lambda m: m.fail("gone", 0.0))
    assert members.silent(1000.0, 30) == ()  # it has left routing already
    members.tell(a, Member.overtake)
    assert members.silent(1000.0, 30) == (members.get("a"),)  # a publication would wait for it


def test_with_a_fault_it_takes_part_once_1_2_4_versions_came_before_it_was_brought_up():
    one, found = proven().overtake(), []
    assert one == proven()
    for _ in range(3):
        one, overtaken = one.fail("broken", 0.0), 0
        while not one.takes_part:
            one, overtaken = one.overtake(), overtaken + 1
        found.append(overtaken)
    assert found == [1, 2, 4]
    one = one.load(version_of(1), "a").read(ALL, "a").prove(version_of(1), NUM_BLOCKS, 0.0)
    assert one.takes_part and one.overtaken == 0


def test_who_answers_a_read_back_is_not_silent():
    assert proven().prove(version_of(1), NUM_BLOCKS, 100.0).seen == 100.0
    assert joining().read(ALL, "a").prove(version_of(1), NUM_BLOCKS, 100.0).seen == 100.0


def test_a_claim_counts_when_it_is_made_twice():
    one = proven(2)

    def hear(*steps: int) -> list[int]:
        """What it is believed to hold after each claim."""
        nonlocal one
        believed = []
        for step in steps:
            one = one.hear(version_of(step) if step else None, 1.0)
            believed.append(one.held.version.step if one.held else 0)
        return believed

    assert hear(1, 2, 1) == [2, 2, 2] and one.state is State.PROVEN
    assert hear(1) == [1]
    assert (one.state, one.reason) == (State.FAILED, "holds 0.1 instead of 0.2")
    assert hear(0, 1, 0, 0) == [1, 1, 1, 0] and one.reason == "holds nothing instead of 0.1"
    assert (hear(1, 1), one.failures) == ([0, 1], 2)  # more than was known of it is no fault
    assert hear(2) == [1]
    one = one.load(version_of(3), "a")  # a commit between the two: the first may have been older
    assert hear(2, 2) == [3, 2]


def test_what_a_wrong_one_says_that_it_holds_does_not_count_until_it_has_loaded():
    members, a = with_one()
    members.tell(a, lambda m: proven(2).condemn("wrong", "a", 0.0))

    def claim_twice() -> bool:
        a = members.get("a")
        reported = [members.tell(a, lambda m: m.hear(version_of(2), 1.0)) for _ in range(2)]
        return any(reported)

    assert not claim_twice()
    members = Members.from_json(members.to_json(), now=0.0)
    assert not claim_twice()
    a = members.register(a.replica, a.peer, 2.0)
    assert not claim_twice()  # it may be the same process
    members.tell(a, lambda m: m.load(version_of(3), "a~1"))
    assert claim_twice()
    again = members.register(a.replica, a.peer, 2.0)
    assert (again.incarnation, again.maker, again.must_load) == (3, "a~1", False)


def test_who_has_gone_is_no_member_until_it_registers_and_what_it_did_wrong_stays():
    members, a = with_one()
    members.tell(a, lambda m: m.condemn("wrong", "a", 0.0))
    members.tell(a, Member.drain)
    assert members.drained == {"a"} and len(list(members)) == 1
    members.tell(a, Member.leave)
    assert members.drained == {"a"}
    for kept in (members, Members.from_json(members.to_json(), 0.0)):
        assert list(kept) == [] and kept.find("a") is None and kept.silent(1e9, 30) == ()
        again = kept.register(a.replica, peer_of("new"), 1.0)
        assert (again.incarnation, again.num_wrong, again.must_load) == (2, 1, True)
        assert not kept.drained
        assert Members.from_json(kept.to_json(), 0.0).get("a") == again


def test_a_host_that_does_not_answer_is_not_waited_for_at_the_start(monkeypatch):
    async def hang(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", hang)
    members = Members()
    for name in "ab":
        members.register(Replica(name, "127.0.0.1:1"), Peer("127.0.0.1:1", "key", ""), 0.0)
    assert len(asyncio.run(find_gone(members, timeout=0.05))) == 2


@dataclass
class Engine:
    """What is true of a replica, and what weight sync has seen of that."""

    loaded: PolicyVersion | None = None
    wrong: bool = False
    """Of block 2."""
    makers: set[str] = field(default_factory=set)
    """Under which a wrong block was found."""
    mended: bool = True
    """It has loaded since, under the name that it got then."""
    shown: set[int] = field(default_factory=set)
    """Blocks that were right in answers since it registered or had a fault."""


@dataclass
class Call:
    """Asked of `member`, as it stood then; its answer may come whenever, or never."""

    member: Member
    version: PolicyVersion
    left: list[int] = field(default_factory=list)


class Interleaved:
    """Publications, catch-ups, read-backs, heartbeats and operators, each with its own late news. In all
    that happens `n`, from 0 to 9, says which of the ways in which it may go."""

    def __init__(self) -> None:
        self.members = Members()
        self.engines = {name: Engine() for name in "ab"}
        self.live = version_of(1)
        self.commits: list[Call] = []
        self.reads: list[Call] = []
        for name in self.engines:
            self.register(name, 0)
            self.commit(name, 0)

    def register(self, name: str, n: int) -> None:
        self.members.register(Replica(name, ""), peer_of(name), 0.0)
        self.engines[name].shown.clear()
        self.commits.append(Call(self.members.get(name), self.live))

    def leave(self, name: str, n: int) -> None:
        self.tell(self.members.find(name), Member.leave if n < 5 else Member.drain)

    def fault(self, name: str, n: int) -> None:
        self.tell(self.members.find(name), lambda m: m.fail("reported", 0.0))

    def overtake(self, name: str, n: int) -> None:
        self.tell(self.members.find(name), Member.overtake)

    def heartbeat(self, name: str, n: int) -> None:
        held = version_of(n) if n in (1, 2) else self.engines[name].loaded
        self.tell(self.members.find(name), lambda m: m.hear(held, 0.0))

    def publish(self, name: str, n: int) -> None:
        self.live = version_of(self.live.version.step + 1)
        self.commits += [Call(member, self.live) for member in self.members.taking_part()]

    def commit(self, name: str, n: int) -> None:
        """One that was asked for is answered, or fails."""
        if not (call := _pick(self.commits, name, n)):
            return
        self.commits.remove(call)
        maker = call.member.maker
        if n == 9:
            self.members.tell(call.member, Member.doubt)
            self.tell(call.member, lambda m: m.fail("no answer", 0.0))
        elif self.members.is_current(call.member):
            self.engines[name].loaded, self.engines[name].wrong = call.version, n == 8
            self.members.tell(call.member, lambda m: m.load(call.version, maker))
            self.engines[name].mended |= self.members.get(name).maker == maker

    def begin(self, name: str, n: int) -> None:
        """A read-back of all, or of what is left."""
        member = self.members.find(name)
        if member and member.held:
            left = set(range(NUM_BLOCKS)) - (set(numbers_of(member.right)) if n < 5 else set())
            self.reads.append(Call(member, member.held, sorted(left)))
        else:
            self.commits += [Call(member, self.live)] if member else []

    def read(self, name: str, n: int) -> None:
        """A portion; after the last one the proof is on record."""
        if not (call := _pick(self.reads, name, n)):
            return
        member, engine, maker = call.member, self.engines[name], call.member.maker
        if not call.left:
            self.reads.remove(call)
            self.tell(member, lambda m: m.prove(call.version, NUM_BLOCKS, 0.0))
            return
        portion, call.left = call.left[: 1 + n % 5], call.left[1 + n % 5 :]
        is_news = self.members.is_current(member) and self.members.get(name).maker == maker
        if engine.wrong and 2 in portion:
            self.reads.remove(call)
            self.tell(member, lambda m: m.condemn("wrong", maker, 0.0))
            if is_news:
                engine.makers.add(maker)
                engine.mended = False
            return
        engine.shown |= set(portion) if is_news else set()
        self.members.tell(member, lambda m: m.read(to_ranges(portion), maker))

    def damage(self, name: str, n: int) -> None:
        """Nothing sees it yet."""
        self.engines[name].wrong = True

    def restart(self, name: str, n: int) -> None:
        self.check_the_store()
        self.members = Members.from_json(self.members.to_json(), 0.0)
        self.commits, self.reads = [], []
        for member in self.members:
            if member.state is State.JOINING:
                self.engines[member.name].shown.clear()

    def tell(self, member: Member | None, happened) -> None:
        if member is None:
            return
        before = self.members.newest(member)
        self.members.tell(member, happened)
        if self.members.newest(member).failures > before.failures:
            self.engines[member.name].shown.clear()

    def check(self) -> None:
        part, here = self.members.taking_part(), tuple(self.members)
        assert bool(part) == bool(here)
        assert part == here or all(m.takes_part for m in part)
        for member in here:
            engine = self.engines[member.name]
            assert member.state is not State.GONE
            assert member.maker not in engine.makers, "a name is used again after a wrong block"
            assert member.must_load != engine.mended
            assert set(numbers_of(member.right)) <= engine.shown
            if member.state is State.PROVEN:
                assert len(engine.shown) == NUM_BLOCKS and not member.reason
            # Wherever it stands, it can be proven.
            loaded = member.load(self.live, member.maker).read(ALL, member.maker)
            assert loaded.prove(self.live, NUM_BLOCKS, 0.0).is_proven_at(self.live)

    def check_the_store(self) -> None:
        back = Members.from_json(self.members.to_json(), 50.0)
        for member, kept in zip(self.members, back, strict=True):
            state = State.PROVEN if member.state is State.PROVEN else State.JOINING
            assert kept == replace(member, state=state, failures=0, overtaken=0, drained=False)
        assert not back.silent(79.0, 30) and back.silent(81.0, 30) == tuple(back)


def _pick(calls: list[Call], name: str, n: int) -> Call | None:
    asked = [call for call in calls if call.member.name == name]
    return asked[n % len(asked)] if asked else None


EVENTS = {
    "read": 12,
    "begin": 4,
    "commit": 3,
    "damage": 2,
    "publish": 1,
    "heartbeat": 1,
} | dict.fromkeys(("fault", "overtake", "register", "leave", "restart"), 0.5)
"""How often each happens."""


@settings(max_examples=300)
@given(st.randoms(use_true_random=True))
def test_in_whatever_order_only_who_has_shown_every_block_is_proven(random):
    world = Interleaved()
    for what in random.choices(list(EVENTS), list(EVENTS.values()), k=60):
        getattr(world, what)(random.choice("ab"), random.randrange(10))
        world.check()
