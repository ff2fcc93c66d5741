from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.weight_sync.control.members import Members
from tests.weight_sync.fakes import peer_of, version_of
from trimaran.types import Replica


def with_one(now=0.0):
    members = Members()
    return members, members.register(Replica("a", "127.0.0.1:1"), peer_of("a"), now)


def test_a_member_is_proven_by_a_proof_and_not_by_a_commit():
    members, a = with_one()
    members.mark_held(a, version_of(1))
    assert members.proven(version_of(1)) == () and members.behind(version_of(1)) == (
        members.get("a"),
    )
    members.mark_proven(a)
    assert members.proven(version_of(1)) == (members.get("a"),)
    members.mark_held(a, version_of(2))
    assert members.proven(version_of(1)) == () and len(members.proven(version_of(2))) == 1
    members.mark_failed(a, "stream broke")
    assert members.proven(version_of(2)) == () and members.get("a").holds(version_of(2))


def test_what_was_right_of_a_joiner_counts_until_it_has_a_fault_or_is_proven():
    members, a = with_one()

    def right():
        return members.get("a").right

    members.mark_right(a, ((0, 2),))
    members.mark_held(a, version_of(2))
    members.mark_right(a, ((2, 3),))
    assert right() == ((0, 3),)
    members.mark_failed(a, "stream broke")
    assert right() == ()
    members.mark_right(a, ((0, 2),))
    members.mark_wrong(a)
    assert right() == ()
    members.mark_right(a, ((0, 2),))  # it was read under its former name
    assert right() == ()
    members.mark_right(members.get("a"), ((0, 2),))
    members.mark_proven(a)
    members.mark_right(members.get("a"), ((2, 3),))
    assert right() == ()


def test_the_same_step_with_another_root_is_not_held():
    members, a = with_one()
    members.mark_held(a, version_of(1))
    assert not members.get("a").holds(replace(version_of(1), root="other"))


def test_who_registered_again_is_not_marked_by_what_the_former_did():
    members, former = with_one()
    again = members.register(former.replica, peer_of("new"), 1.0)
    members.mark_held(former, version_of(1))
    members.mark_proven(former)
    members.mark_failed(former, "gone")
    assert members.get("a") == again and not members.is_current(former)


def test_silence_is_counted_from_the_last_sign():
    members, a = with_one(now=100.0)
    assert members.silent(129.0, 30) == () and members.silent(131.0, 30) == (a,)
    assert members.note_sign("a", 1, None, 120.0) == (a, False)
    assert members.silent(149.0, 30) == ()
    members.mark_failed(a, "gone")
    assert members.silent(1000.0, 30) == ()  # it has left routing already


def test_who_answers_a_call_is_not_silent_but_a_former_incarnations_answer_does_not_count():
    members, a = with_one()
    members.note_answer(a, 100.0)
    assert members.silent(129.0, 30) == ()
    assert members.silent(131.0, 30) == (a,)
    members.register(a.replica, a.peer, 200.0)
    members.note_answer(a, 300.0)
    assert [member.name for member in members.silent(231.0, 30)] == ["a"]


def test_an_unknown_incarnation_is_unknown():
    members, _ = with_one()
    assert members.note_sign("a", 2, None, 1.0) == (None, False)
    assert members.note_sign("b", 1, None, 1.0) == (None, False)


def test_a_claim_counts_when_it_is_made_twice():
    members, a = with_one()
    members.mark_held(a, version_of(2))

    def sign(step):
        claimed = version_of(step) if step else None
        return members.note_sign("a", 1, claimed, 1.0)[1]

    assert [sign(step) for step in (1, 2, 1, 1, 2, 0, 0)] == [
        *(False, False, False, True, False, False, True)
    ]
    assert not sign(1)
    members.mark_held(a, version_of(3))  # a commit between the two: the first may have been older
    assert not sign(1) and sign(1)


def test_what_a_wrong_one_says_that_it_holds_does_not_count_until_it_has_loaded():
    members, a = with_one()
    members.mark_loaded(a, version_of(2))
    members.mark_wrong(a)
    assert [members.note_sign("a", 1, version_of(2), 1.0)[1] for _ in range(4)] == [False] * 4
    assert (members.get("a").held, members.get("a").maker) == (None, "a~1")
    back = Members.from_json(members.to_json(), now=0.0)
    assert back.note_sign("a", 1, version_of(2), 1.0) == (back.get("a"), False)
    assert members.register(a.replica, a.peer, 2.0).must_load  # it may be the same process
    a = replace(a, incarnation=2)
    members.mark_loaded(a, version_of(3))  # asked for under its former name
    assert members.get("a").must_load
    members.mark_loaded(members.newest(a), version_of(3))
    members.note_sign("a", 2, version_of(2), 1.0)
    assert members.note_sign("a", 2, version_of(2), 1.0)[1]
    again = members.register(a.replica, a.peer, 2.0)
    assert (again.incarnation, again.maker, again.must_load) == (3, "a~1", False)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["held", "proven", "failed"]))))
def test_they_come_back_from_the_store_as_they_were(changes):
    members = Members()
    for name in "abc":
        members.register(Replica(name, f"127.0.0.1:{name}"), peer_of(name, "host"), 0.0)
    for step, (name, change) in enumerate(changes):
        member = members.get(name)
        if change == "held":
            members.mark_held(member, version_of(step))
        elif change == "proven":
            members.mark_proven(member)
        else:
            members.mark_failed(member, "gone")
    back = Members.from_json(members.to_json(), now=50.0)
    assert list(back) == [replace(member, failures=0) for member in members]
    assert all(not member.reason for member in back.silent(81.0, 30))
    assert back.silent(79.0, 30) == ()


def test_who_is_forgotten_is_no_member_until_it_registers_and_what_it_did_wrong_stays():
    members, a = with_one()
    members.mark_held(a, version_of(1))
    members.mark_wrong(a)
    members.forget(members.get("a"))
    for kept in (members, Members.from_json(members.to_json(), 0.0)):
        assert list(kept) == [] and kept.find("a") is None
        assert kept.note_sign("a", 1, None, 1.0) == (None, False)
        again = kept.register(a.replica, peer_of("new"), 1.0)
        assert (again.incarnation, again.num_wrong, again.must_load) == (2, 1, True)
        assert Members.from_json(kept.to_json(), 0.0).get("a") == again
