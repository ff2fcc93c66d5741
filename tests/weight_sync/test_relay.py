"""Blocks over TCP from whichever peer has them: faults on the way, keys, bounds, trees."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.certificates import Authority
from tests.weight_sync.ends import (
    ALL,
    CONFIG,
    CPU,
    LONG,
    big_snapshot,
    blocks_of,
    by_relay,
    holds,
    impatient_relay,
    make_snapshot,
    stage,
    started,
    threads_named,
    until,
)
from trimaran.errors import TransferError
from trimaran.trust.tls import SocketTls
from trimaran.types import MAX_BLOCKS, Peer, Transport, VersionId
from weights.receiving.receiver import WeightReceiver
from weights.transports.relay import relay_server, relay_wire
from weights.transports.relay.door import DoorPatience
from weights.transports.relay.relay_carrier import RelayCarrier
from weights.transports.relay.relay_server import RelayServer
from weights.transports.relay.relay_wire import (
    BLOCK,
    END,
    FRAME,
    LENGTH,
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    Connection,
    ProtocolError,
    Reason,
    RelayRequest,
    RelayStatus,
    introduce,
)
from weights.transports.relay.stock import Holding, Stock, contents_of
from weights.version.layout import to_ranges

ROOT = "ab" * 16
NOWHERE = Peer("127.0.0.1:1", "key", "")


class Proxy:
    """Stands before a peer and does something to what the peer sends, byte by byte counted."""

    def __init__(self, peer, change):
        """`change(data, offset)`: what to hand on; None ends the connection."""
        self.peer = replace(peer, relay=self._listen())
        self._target = peer.relay
        self._change = change
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _listen(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self):
        with suppress(OSError):
            while True:
                puller, _ = self._listener.accept()
                host, _, port = self._target.rpartition(":")
                server = socket.create_connection((host, int(port)))
                for pump in (self._forward, self._backward):
                    thread = threading.Thread(target=pump, args=(puller, server), daemon=True)
                    thread.start()

    def _forward(self, puller, server):
        with suppress(OSError):
            while data := puller.recv(1 << 16):
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _backward(self, puller, server):
        offset = 0
        with suppress(OSError):
            while data := server.recv(1 << 16):
                changed = self._change(data, offset)
                offset += len(data)
                if changed is None:
                    break
                puller.sendall(changed)
        for sock in (puller, server):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def flip(place):
    def change(data, offset):
        if offset <= place < offset + len(data):
            data = bytearray(data)
            data[place - offset] ^= 4
        return data

    return change


def cut(place):
    def change(data, offset):
        return None if offset + len(data) > place else data

    return change


HANDSHAKE = len(MAGIC) + NONCE_BYTES + 1 + PROOF_BYTES


@contextmanager
def asked(end):
    """Records the blocks that pullers ask `end` for."""
    requests, give = [], end._relay._give

    def record(connection, request, numbers):
        requests.append(request.blocks)
        return give(connection, request, numbers)

    end._relay._give = record
    yield requests


def test_a_receiver_pulls_every_block():
    snapshot = make_snapshot()
    with started(holding=snapshot) as ([sender], [receiver]):
        with asked(sender) as requests:
            staged = stage(receiver, snapshot, by_relay(snapshot, sender.peer))
        assert (staged.root, staged.num_blocks) == (snapshot.manifest.root, 9)
        assert holds(receiver, snapshot)
        assert requests == [((0, 3), (4, 9))]  # block 3 holds no bytes
    assert not threads_named("relay-")


def test_a_puller_goes_on_elsewhere_with_what_is_missing():
    snapshot = big_snapshot(8 << 20)
    with started(senders=2, holding=snapshot) as ([dying, other], [receiver]):
        with closing(Proxy(dying.peer, cut(5 << 20))) as proxy, asked(other) as requests:
            stage(receiver, snapshot, by_relay(snapshot, NOWHERE, proxy.peer, other.peer))
        assert holds(receiver, snapshot)
        [[(first, end)]] = requests
        assert 0 < first <= 5 and end == 8


def test_a_broken_connection_is_made_again_and_asked_for_the_rest():
    snapshot = big_snapshot(8 << 20)
    with started(holding=snapshot) as ([sender], [receiver]):
        with closing(Proxy(sender.peer, cut(3 << 20))) as proxy, asked(sender) as requests:
            stage(receiver, snapshot, by_relay(snapshot, proxy.peer))
        assert holds(receiver, snapshot)
        firsts = [blocks[0][0] for blocks in requests]
        assert firsts == sorted(set(firsts)) and len(firsts) >= 3


def test_a_flipped_bit_is_found_and_its_peer_not_asked_again():
    snapshot = big_snapshot(1 << 20)
    with started(senders=2, holding=snapshot) as ([one, other], [receiver]):
        with closing(Proxy(one.peer, flip(HANDSHAKE + (300 << 10)))) as proxy:
            with pytest.raises(TransferError, match=r"block 2 \(big .*\) arrived with digest"):
                stage(receiver, snapshot, by_relay(snapshot, proxy.peer))
            assert receiver.staged is None
            with asked(other) as requests:
                stage(receiver, snapshot, by_relay(snapshot, proxy.peer, other.peer))
        assert holds(receiver, snapshot)
        assert requests == [((2, 8),)]


@pytest.mark.parametrize("place", range(0, HANDSHAKE + FRAME.size, 7))
def test_a_fault_in_any_frame_costs_no_more_than_the_connection(place):
    snapshot = make_snapshot()
    with started(senders=2, holding=snapshot) as ([one, other], [receiver]):
        with closing(Proxy(one.peer, flip(place))) as proxy:
            stage(receiver, snapshot, by_relay(snapshot, proxy.peer, other.peer))
        assert holds(receiver, snapshot)


def test_what_no_peer_has_is_an_error_that_names_them_all():
    snapshot, other = make_snapshot(1), make_snapshot(2)
    with started(senders=2, relay=impatient_relay) as ([empty, old], [receiver]):
        old.hold(other)
        peers = (empty.peer, old.peer, NOWHERE, Peer("", "key", ""))
        with pytest.raises(TransferError) as error:
            stage(receiver, snapshot, by_relay(snapshot, *peers))
        text = str(error.value)
        assert "8 blocks are missing" in text
        assert text.count("holds other weights by now") == 2
        assert "refused" in text and "has no relay" in text
        with pytest.raises(TransferError, match="none was named"):
            stage(receiver, snapshot, by_relay(snapshot))


def dial(peer, seconds=LONG):
    host, _, port = peer.relay.rpartition(":")
    sock = socket.create_connection((host, int(port)), seconds)
    return sock, Connection(sock, time.monotonic() + seconds)


def test_nothing_is_given_to_a_puller_with_a_wrong_key():
    snapshot = make_snapshot()
    with started(relay=impatient_relay, holding=snapshot) as ([sender], [receiver]):
        thief = replace(sender.peer, key="guessed")
        with pytest.raises(TransferError, match="the connection ended"):
            stage(receiver, snapshot, by_relay(snapshot, thief))
        sock, _ = dial(sender.peer)
        with sock:
            sock.sendall(bytes(NONCE_BYTES + PROOF_BYTES))
            data = b""
            while chunk := sock.recv(4096):
                data += chunk
        assert len(data) == len(MAGIC) + NONCE_BYTES


def test_a_server_must_prove_itself_too():
    """One that only echoes the puller's own proof back has no key."""
    snapshot = make_snapshot()
    listener = socket.create_server(("127.0.0.1", 0))

    def pretend():
        sock, _ = listener.accept()
        with sock:
            sock.sendall(MAGIC + bytes(NONCE_BYTES))
            claim = sock.recv(NONCE_BYTES + PROOF_BYTES, socket.MSG_WAITALL)
            sock.sendall(bytes([RelayStatus.READY]) + claim[NONCE_BYTES:])
            with suppress(OSError):
                assert sock.recv(1) == b""  # not even a request

    thread = threading.Thread(target=pretend)
    thread.start()
    with started(senders=0) as (_, [receiver]), listener:
        peer = Peer(f"127.0.0.1:{listener.getsockname()[1]}", "key", "")
        with pytest.raises(TransferError, match="could not prove that it knows its key"):
            stage(receiver, snapshot, by_relay(snapshot, peer))
    thread.join(LONG)


def ask(connection, root, blocks=ALL, base_root=""):
    data = RelayRequest(root, base_root, LONG, blocks).encode()
    connection.send(LENGTH.pack(len(data)) + data)


def test_a_peer_serves_no_more_pullers_than_it_may():
    config = CONFIG.model_copy(update={"relay_fan_out": 2})
    snapshot = make_snapshot()
    with started(config=config, holding=snapshot) as ([sender], [receiver]):
        held = [dial(sender.peer) for _ in range(2)]
        for _, connection in held:
            assert introduce(connection, sender.peer.key) is RelayStatus.READY
        sock, connection = dial(sender.peer)
        with sock:
            assert introduce(connection, sender.peer.key) is RelayStatus.BUSY
        with pytest.raises(TransferError, match="the deadline passed.*is busy"):
            stage(receiver, snapshot, by_relay(snapshot, sender.peer), timeout=0.2)
        with ThreadPoolExecutor(1) as pool:
            staged = pool.submit(stage, receiver, snapshot, by_relay(snapshot, sender.peer))
            held[0][0].close()
            staged.result(timeout=LONG)
        held[1][0].close()


@contextmanager
def serving(snapshot, patience=None, tls=None):
    """A relay that serves one puller at a time."""
    stock = Stock()
    contents = contents_of(snapshot.buffer, snapshot.layout)
    stock.show({(snapshot.manifest.root, ""): Holding(contents)})
    config = CONFIG.model_copy(update={"relay_fan_out": 1})
    with closing(RelayServer(config, "key", stock, patience or DoorPatience(), tls=tls)) as server:
        server.start()
        yield Peer(server.address, "key", "")


@pytest.mark.parametrize("asks", [False, True], ids=["silent", "takes nothing"])
def test_a_puller_that_goes_no_further_loses_its_place(asks):
    snapshot = big_snapshot(32 << 20)
    patience = DoorPatience(stall=0.3) if asks else DoorPatience(handshake=0.3)
    with serving(snapshot, patience) as peer, started(senders=0) as (_, [receiver]):
        sock, connection = dial(peer)
        assert introduce(connection, peer.key) is RelayStatus.READY
        if asks:
            ask(connection, snapshot.manifest.root, blocks_of(snapshot))
        stage(receiver, snapshot, by_relay(snapshot, peer))
        sock.close()


def test_blocks_are_passed_on_before_the_last_one_is_there():
    snapshot = big_snapshot(1 << 20)
    arrived = threading.Event()
    with (
        started(receivers=2, holding=snapshot) as ([sender], [first, second]),
        ThreadPoolExecutor(2) as pool,
    ):

        def dam(data, offset):
            if offset > 600 << 10:
                assert arrived.wait(LONG)
            return data

        with closing(Proxy(sender.peer, dam)) as proxy:
            filling = pool.submit(stage, first, snapshot, by_relay(snapshot, proxy.peer))
            following = pool.submit(stage, second, snapshot, by_relay(snapshot, first.peer))
            until(lambda: (h := second._stock.find(snapshot.manifest.root)) and len(h._landed) >= 3)
            assert not filling.done()
            arrived.set()
            filling.result(timeout=LONG)
            following.result(timeout=LONG)
        assert holds(second, snapshot)


def test_weights_that_are_being_replaced_are_had_elsewhere():
    snapshot = big_snapshot(32 << 20, 32)  # more than the kernel keeps on its way
    with started(senders=2, holding=snapshot) as ([going, staying], [receiver]):
        moment = threading.Event()

        def watch(data, offset):
            if offset > 2 << 20 and not moment.is_set():
                going.hold(None)
                snapshot_copy.fill_(0)
                moment.set()
            return data

        # Its memory is another's: the copy turns to zeros while blocks of it are on their way.
        own = big_snapshot(32 << 20, 32)
        snapshot_copy = own.buffer
        going.hold(own)
        with closing(Proxy(going.peer, watch)) as proxy, asked(staying) as requests:
            stage(receiver, snapshot, by_relay(snapshot, proxy.peer, staying.peer))
        assert moment.is_set()
        assert holds(receiver, snapshot)
        assert requests and requests[0][0][0] > 0


def test_a_block_that_changed_while_it_was_sent_does_not_cost_its_peer(monkeypatch):
    """The server says so next, and has the version again a moment later."""
    snapshot, send, torn = make_snapshot(), relay_server._send_block, [True]

    def tear(connection, holding, number):
        if not torn:
            return send(connection, holding, number)
        torn.pop()
        data = bytes(byte ^ 255 for byte in holding.read(number))
        connection.send(FRAME.pack(BLOCK, number, len(data)) + data)
        return False

    monkeypatch.setattr(relay_server, "_send_block", tear)
    with started(holding=snapshot) as ([sender], [receiver]):
        stage(receiver, snapshot, by_relay(snapshot, sender.peer))
        assert not torn and holds(receiver, snapshot)


def test_a_frozen_peer_costs_a_moment_and_not_the_stage():
    snapshot = make_snapshot()
    with (
        started(relay=lambda: RelayCarrier(stall=0.2)) as ([sender], [receiver]),
        socket.create_server(("127.0.0.1", 0)) as mute,
    ):
        sender.hold(snapshot)
        frozen = Peer(f"127.0.0.1:{mute.getsockname()[1]}", "key", "")
        stage(receiver, snapshot, by_relay(snapshot, frozen, sender.peer))
        assert holds(receiver, snapshot)


def test_a_peer_that_was_silent_for_longer_than_the_patience_is_asked_once_more():
    """It is the only one, and the network was away for a moment."""
    snapshot, silences = make_snapshot(), [1.0]

    def wait(data, offset):
        if silences:
            time.sleep(silences.pop())
        return data

    with started(relay=lambda: RelayCarrier(patience=0.1, stall=0.4), holding=snapshot) as (
        [sender],
        [receiver],
    ):
        with closing(Proxy(sender.peer, wait)) as proxy:
            stage(receiver, snapshot, by_relay(snapshot, proxy.peer))
        assert not silences and holds(receiver, snapshot)


def test_a_pull_is_given_up_at_once():
    snapshot = make_snapshot()
    with (
        started(senders=0) as (_, [receiver]),
        socket.create_server(("127.0.0.1", 0)) as mute,
        ThreadPoolExecutor(1) as pool,
    ):
        frozen = Peer(f"127.0.0.1:{mute.getsockname()[1]}", "key", "")
        staged = pool.submit(stage, receiver, snapshot, by_relay(snapshot, frozen))
        sock, _ = mute.accept()
        time.sleep(0.05)
        start = time.monotonic()
        receiver.discard(VersionId(0, 1))
        with pytest.raises(TransferError, match="was discarded"):
            staged.result(timeout=LONG)
        assert time.monotonic() - start < relay_wire.STALL_SECONDS
        sock.close()


@given(
    numbers=st.sets(st.integers(0, 300)),
    base=st.booleans(),
    seconds=st.floats(0.001, 1e6),
)
def test_a_request_is_read_as_it_was_written(numbers, base, seconds):
    request = RelayRequest(ROOT, "cd" * 16 if base else "", seconds, to_ranges(numbers))
    assert RelayRequest.decode(request.encode()) == request
    assert request.numbers(301) == sorted(numbers)


@given(st.binary(max_size=200))
def test_garbage_is_no_request(data):
    with suppress(ProtocolError):
        assert RelayRequest.decode(data).encode() == data


def test_a_request_beyond_every_manifest_is_refused():
    with pytest.raises(ProtocolError, match="block 4294967294"):
        RelayRequest(ROOT, "", 1.0, ((0, 2**32 - 1),)).numbers(MAX_BLOCKS)
    with pytest.raises(ProtocolError, match=f"block {2**26 - 1}"):
        RelayRequest(ROOT, "", 1.0, ((0, 2**26),)).numbers(MAX_BLOCKS)


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
        LENGTH.pack(2**31),
        LENGTH.pack(40) + bytes(40),
        LENGTH.pack(3) + b"abc",
    ],
)
@pytest.mark.parametrize("proven", [False, True])
def test_junk_ends_a_connection_and_nothing_else(junk, proven):
    snapshot = make_snapshot()
    with started(holding=snapshot) as ([sender], [receiver]):
        sock, connection = dial(sender.peer)
        with sock:
            if proven:
                assert introduce(connection, sender.peer.key) is RelayStatus.READY
            with suppress(OSError):  # it may be closed in the middle of the junk
                sock.sendall(junk)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
        stage(receiver, snapshot, by_relay(snapshot, sender.peer))
        assert holds(receiver, snapshot)


def test_a_server_says_why_it_ends():
    snapshot = make_snapshot()
    with started(receivers=0, holding=snapshot) as ([sender], _):
        for root, expected in ((ROOT, Reason.GONE), (snapshot.manifest.root, Reason.LACKS)):
            sock, connection = dial(sender.peer)
            with sock:
                assert introduce(connection, sender.peer.key) is RelayStatus.READY
                ask(connection, root, ((9, 10),))
                assert FRAME.unpack(connection.receive(FRAME.size)) == (END, expected, 0)


def test_blocks_travel_through_tls_and_a_stranger_gets_none(tmp_path):
    """Both ends show certificates; one of another authority, or none, ends the handshake."""
    ours = SocketTls(Authority("ours").write(tmp_path / "ours"))
    theirs = SocketTls(Authority("theirs").write(tmp_path / "theirs"))
    snapshot = make_snapshot()
    with serving(snapshot, tls=ours) as peer:
        source = by_relay(snapshot, peer)
        for shown in (theirs, None, ours):
            carriers = {Transport.RELAY: RelayCarrier(patience=0.2, stall=1.0, tls=shown)}
            with closing(WeightReceiver(CPU, 0, CONFIG, carriers=carriers)) as receiver:
                if shown is ours:
                    stage(receiver, snapshot, source)
                    assert holds(receiver, snapshot)
                else:
                    with pytest.raises(TransferError, match="no peer is left to ask"):
                        stage(receiver, snapshot, source)
        until(lambda: not threads_named("relay-serve"))
    assert not threads_named("relay")


def test_a_silent_puller_is_shut_out_before_the_handshake_of_tls(tmp_path):
    tls = SocketTls(Authority("ours").write(tmp_path / "ours"))
    with serving(make_snapshot(), DoorPatience(handshake=0.3), tls) as peer:
        mute, _ = dial(peer, seconds=5.0)
        with mute:
            assert mute.recv(1) == b""
