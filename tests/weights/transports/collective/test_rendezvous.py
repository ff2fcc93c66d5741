"""Who finds whom in a transfer group: members only, and no more of them than there are."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.weight_sync.ends import LONG, group_of, started, threads_named, until
from trimaran.run.network import LOOPBACK
from weights.transports.collective import rendezvous
from weights.transports.collective.rendezvous import GroupStore, Rendezvous, max_value_bytes


@pytest.fixture
def group():
    listener = LOOPBACK.listen()
    host, port = listener.getsockname()
    group = replace(group_of(1, 3), rendezvous=f"{host}:{port}")
    with closing(Rendezvous(listener, group)) as server:
        yield group, server
    until(lambda: not threads_named("rendezvous-"))


def member(group, seconds=LONG):
    return GroupStore(group, time.monotonic() + seconds)


def test_a_member_waits_for_what_another_puts(group):
    group, _ = group
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(member(group).get, "0/2")
        assert not member(group).check(["0/2"])
        member(group).set("0/2", b"an address")
        assert found.result(timeout=LONG) == b"an address"
    member(group).wait(["0/2"])
    assert member(group).check(["0/2"]) and not member(group).check(["0/2", "0/1"])


def test_the_wait_ends_with_the_deadline_or_the_group(group):
    group, server = group
    with pytest.raises(TimeoutError):
        member(group, 0.2).get("0/1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(member(group).get, "0/1")
        until(lambda: threads_named("rendezvous-serve"))
        started = time.monotonic()
        server.close()
        with pytest.raises(OSError):
            waiting.result(timeout=LONG)
        assert time.monotonic() - started < rendezvous.STALL_SECONDS
    with pytest.raises(ConnectionRefusedError):
        member(group).get("0/1")


def test_who_does_not_know_the_nonce_reads_and_writes_nothing(group):
    group, server = group
    member(group).set("0/0", b"an address")
    stranger = member(replace(group, nonce="guessed"))
    with pytest.raises(ConnectionError):
        stranger.get("0/0")
    with pytest.raises(ConnectionError):
        stranger.set("0/1", b"my address")
    assert server._values == {"0/0": b"an address"}


@pytest.mark.e2e
def test_no_store_of_torch_answers_at_an_open_group():
    """It listed its keys, with the nonce in them, to any process that asked, and kept what was sent."""
    with started(receivers=0) as ([sender], _):
        group = sender.open(group_of(1), LONG)
        host, _, port = group.rendezvous.rpartition(":")
        with pytest.raises(RuntimeError):
            stranger = TCPStore(
                host,
                int(port),
                is_master=False,
                timeout=timedelta(seconds=2),
                wait_for_workers=False,
            )
            stranger.list_keys()


@pytest.mark.parametrize("key", ["0/3", "0/00000000001", "1/0", "nonce", "0/0/0", ""])
def test_only_ranks_of_the_group_have_a_place(group, key):
    group, server = group
    with pytest.raises(ConnectionError):
        member(group).set(key, b"x")
    assert server._values == {}


def test_a_member_puts_no_more_than_addresses(group):
    group, server = group
    with pytest.raises(ConnectionError):
        member(group).set("0/1", bytes(max_value_bytes(3) + 1))
    member(group).set("0/1", bytes(max_value_bytes(3)))
    with pytest.raises(ConnectionError, match="another member"):
        member(group).set("0/1", b"in its place")
    assert len(server._values["0/1"]) == max_value_bytes(3)
