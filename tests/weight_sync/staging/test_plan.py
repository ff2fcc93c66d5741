from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.weight_sync.members.member import Member
from services.weight_sync.members.offers import check_offers
from services.weight_sync.staging.transfer_plan import (
    ask_order,
    delta_share,
    plan_catch_up,
    plan_relay,
    plan_stage,
)
from tests.weight_sync.fakes import NUM_BLOCKS, manifest_of, peer_of, version_of
from trimaran.errors import InputError
from trimaran.types import Delta, MemorySource, Offer, Peer, RelaySource, Replica
from weights.version.layout import to_ranges

MANIFEST = manifest_of(2)
ALL = ((0, NUM_BLOCKS),)


def member(name: str, host: str = "", step: int = 0) -> Member:
    held = version_of(step) if step else None
    return Member(Replica(name, f"127.0.0.1:{name}"), peer_of(name, host), 1, held)


def offer(blocks=ALL, host="", delta_bytes=None, base=1, rank=0) -> Offer:
    sizes = (delta_bytes,) + (0,) * (sum(e - f for f, e in blocks) - 1) if delta_bytes else ()
    delta = Delta(version_of(base).root, sizes) if delta_bytes else None
    return Offer(peer_of(f"trainer{rank}", host), blocks, f"/memory/{rank}", delta)


def relayed(*names: str, blocks=ALL, delta=None) -> RelaySource:
    peers = tuple(peer_of(name) for name in names)
    return RelaySource(blocks, peers, delta)


def test_offers_must_hold_every_block_once():
    check_offers(MANIFEST, [offer(((0, 2), (4, 5))), offer(((2, 4),))])
    with pytest.raises(InputError, match=r"more than one sender offers blocks 1\.\.1 \(w and on\)"):
        check_offers(MANIFEST, [offer(((0, 2),)), offer(((1, 5),))])
    with pytest.raises(InputError, match="block 5 is offered; the manifest has 5"):
        check_offers(MANIFEST, [offer(((0, 6),))])


@given(st.lists(st.sets(st.integers(0, NUM_BLOCKS - 1)), max_size=3))
def test_offers_are_taken_exactly_when_each_block_stands_in_one(shares):
    counts = [sum(number in share for share in shares) for number in range(NUM_BLOCKS)]
    offers = [offer(to_ranges(share)) for share in shares]
    if counts == [1] * NUM_BLOCKS:
        check_offers(MANIFEST, offers)
    else:
        with pytest.raises(InputError):
            check_offers(MANIFEST, offers)


def test_one_group_a_sender_with_all_that_are_not_on_its_host():
    near, far, unknown = member("a", "here"), member("b", "there"), member("c")
    offers = [offer(((0, 3),), "here"), offer(((3, 5),), "there", rank=1)]
    plan = plan_stage(MANIFEST, offers, [near, far, unknown], "auto", 2)
    assert [(group.sender, group.seats, group.blocks) for group in plan.groups] == [
        (0, (far, unknown), ((0, 3),)),
        (1, (near, unknown), ((3, 5),)),
    ]
    assert plan.sources == {
        "a": (MemorySource(((0, 3),), "/memory/0"),),
        "b": (MemorySource(((3, 5),), "/memory/1"),),
        "c": (),
    }


@pytest.mark.parametrize("transport", ["auto", "collective"])
def test_a_group_has_one_kind_of_device_and_the_others_pull(transport):
    sender = replace(offer(), peer=peer_of("trainer0", backend="hccl"))
    beside = replace(member("a"), peer=peer_of("a", backend="hccl"))
    on_hosts = [member("b"), member("c")]
    plan = plan_stage(MANIFEST, [sender], [beside, *on_hosts], transport, 2)
    assert [group.seats for group in plan.groups] == [(beside,)]
    pulled = (RelaySource(ALL, (sender.peer,)),)
    assert plan.sources == {"a": (), "b": pulled, "c": pulled}
    assert not plan_stage(MANIFEST, [sender], on_hosts, transport, 2).groups


def test_a_delta_travels_in_a_group_also_where_those_of_another_kind_pull_it():
    sender = replace(offer(delta_bytes=10), peer=peer_of("trainer0", backend="hccl"))
    beside = replace(member("a", step=1), peer=peer_of("a", backend="hccl"))
    plan = plan_stage(MANIFEST, [sender], [beside, member("b", step=1)], "auto", 2)
    assert [(group.seats, group.delta) for group in plan.groups] == [((beside,), sender.delta)]
    assert plan.sources["b"] == (RelaySource(ALL, (sender.peer,), sender.delta),)


def test_a_delta_is_for_those_that_hold_its_base_and_the_rest_pulls():
    has, has_not, older = member("a", step=1), member("b"), member("c", step=3)
    [delta_offer] = offers = [offer(delta_bytes=10)]
    plan = plan_stage(MANIFEST, offers, [has, has_not, older], "auto", 2)
    [group] = plan.groups
    assert (group.seats, group.delta) == ((has,), delta_offer.delta)
    assert plan.sources == {"a": (), "b": (relayed("trainer0"),), "c": (relayed("trainer0"),)}
    assert delta_share(MANIFEST, plan) == 10 / 40


def test_a_delta_that_is_not_smaller_or_whose_base_nothing_holds_is_not_sent():
    for offered, held in ((offer(delta_bytes=40), 1), (offer(delta_bytes=10), 7)):
        plan = plan_stage(MANIFEST, [offered], [member("a", step=held)], "auto", 2)
        assert plan.groups[0].delta is None
        assert delta_share(MANIFEST, plan) is None


def test_a_delta_needs_a_piece_from_every_sender_against_one_base():
    holder = [member("a", step=1)]
    for second in (offer(((3, 5),), rank=1), offer(((3, 5),), delta_bytes=1, base=7, rank=1)):
        plan = plan_stage(MANIFEST, [offer(((0, 3),), delta_bytes=1), second], holder, "auto", 2)
        assert all(group.delta is None for group in plan.groups)


def test_shared_memory_is_better_than_a_delta():
    offers = [offer(host="here", delta_bytes=10)]
    plan = plan_stage(MANIFEST, offers, [member("a", "here", step=1)], "auto", 2)
    assert plan.sources == {"a": (MemorySource(ALL, "/memory/0"),)} and not plan.groups


def test_survivors_ask_those_that_hold_the_version_first():
    pullers, holders = [member(name) for name in "cd"], [member(name) for name in "ab"]
    plan = plan_relay(MANIFEST, [offer()], pullers, holders, 1)
    assert plan.sources == {
        "c": (relayed("a", "b", "trainer0"),),
        "d": (relayed("b", "a", "trainer0"),),
    }


def test_a_joiner_needs_no_offers():
    a, b = member("a"), member("b")
    plan = plan_catch_up(MANIFEST, [], b, [b], [a], "auto", 2)
    assert plan.sources == {"b": (relayed("a"),)}
    on_host = replace(b, peer=peer_of("b", "here"))
    plan = plan_catch_up(MANIFEST, [offer(host="here")], on_host, [on_host], [a], "auto", 2)
    assert plan.sources == {"b": (MemorySource(ALL, "/memory/0"),)}


@given(st.integers(0, 6), st.integers(0, 60), st.integers(1, 4))
def test_no_replica_is_parent_of_more_than_the_fan_out_and_all_hang_on_a_root(
    num_roots, num_pullers, fan_out
):
    nodes = [peer_of(str(n)) for n in range(num_roots + num_pullers)]
    roots = nodes[:num_roots]
    children: dict[Peer, int] = {}
    for puller in range(num_pullers):
        order = ask_order(puller, roots, nodes, fan_out)
        assert nodes[num_roots + puller] not in order
        if order:
            assert set(order) & set(roots)
            children[order[0]] = children.get(order[0], 0) + 1
        else:
            assert not roots
    assert max(children.values(), default=0) <= fan_out


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 4))
def test_no_replica_is_first_asked_over_more_connections_than_it_serves(num_senders, num, fan_out):
    """It serves `fan_out` pullers, each over one connection a sender."""
    shares = [((n, n + 1),) for n in range(min(num_senders, NUM_BLOCKS - 1))]
    shares.append(((len(shares), NUM_BLOCKS),))
    offers = [offer(share, rank=rank) for rank, share in enumerate(shares)]
    plan = plan_stage(MANIFEST, offers, [member(str(n)) for n in range(num)], "relay", fan_out)
    sources = [source for sources in plan.sources.values() for source in sources]
    first = Counter(source.peers[0] for source in sources if isinstance(source, RelaySource))
    for asked, connections in first.items():
        parts = 1 if asked in {each.peer for each in offers} else len(offers)
        assert connections <= fan_out * parts
