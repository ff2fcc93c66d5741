"""The boundary of every service: errors, fencing, deadlines, health, reflection."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import pytest

from tests.trimaran.wire.fakes import (
    CALLER,
    GROUP,
    REQUEST,
    FakeReward,
    FakeRun,
    reward_service,
    run_service,
    serving,
)
from trimaran import errors
from trimaran.clients import RewardClient
from trimaran.store import LostWritesError
from trimaran.store.sqlite import SqliteStore
from trimaran.types import Caller, Faulted
from trimaran.v1 import reward_pb2_grpc, run_pb2, run_pb2_grpc
from trimaran.wire import rpc
from trimaran.wire.fence import EpochFence
from trimaran.wire.status import CODES


@pytest.mark.parametrize("error", CODES)
async def test_an_error_arrives_as_itself_and_at_a_foreign_client_as_a_standard_code(error):
    async with (
        serving(reward_service(FakeReward(error("the thing; the remedy")))) as address,
        RewardClient(address, CALLER) as client,
        rpc.connect(address) as channel,
    ):
        with pytest.raises(errors.TrimaranError, match="the thing; the remedy") as raised:
            await client.score_group(GROUP, timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as foreign:
            await reward_pb2_grpc.RewardServiceStub(channel).ScoreGroup(REQUEST, timeout=10)
    assert type(raised.value) is error
    status = foreign.value
    assert (status.code(), status.details()) == (CODES[error], "the thing; the remedy")
    assert ("trimaran-error", error.name) in list(status.trailing_metadata())


class Foreign(FakeReward):
    """Ends each call with a status of its own, with these trailers."""

    def __init__(self, code, *trailers):
        super().__init__()
        self.code, self.trailers = code, trailers

    async def ScoreGroup(self, request, context) -> Any:
        await context.abort(self.code, "foreign words", self.trailers)


async def error_from(servicer, timeout=10.0):
    async with (
        serving(reward_service(servicer)) as address,
        RewardClient(address, CALLER) as client,
    ):
        with pytest.raises(errors.TrimaranError) as raised:
            await client.score_group(GROUP, timeout)
        return raised.value


WITHOUT_TRAILER = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InputError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.ForbiddenError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.InternalError,
    grpc.StatusCode.UNIMPLEMENTED: errors.InternalError,
}


@pytest.mark.parametrize("code", WITHOUT_TRAILER)
@pytest.mark.parametrize("trailers", [(), [("trimaran-error", "of-tomorrow")]])
async def test_without_a_name_that_we_know_the_code_decides(code, trailers):
    error = await error_from(Foreign(code, *trailers))
    silent = not trailers and code is grpc.StatusCode.UNAVAILABLE
    assert type(error) is (errors.UnreachableError if silent else WITHOUT_TRAILER[code])
    if type(error) is errors.InternalError:
        assert str(error) == f"{code.name}: foreign words"


async def test_the_name_decides_whatever_the_code():
    error = await error_from(Foreign(grpc.StatusCode.UNKNOWN, ("trimaran-error", "stale-epoch")))
    assert (type(error), str(error)) == (errors.StaleEpochError, "foreign words")


@pytest.mark.parametrize("letter", ["x", "¿"])
async def test_a_text_longer_than_grpc_carries_is_cut_and_keeps_its_class(letter):
    error = await error_from(FakeReward(errors.TransferError("block 7: " + letter * 20_000)))
    assert type(error) is errors.TransferError
    assert str(error).startswith("block 7: " + letter * 900)
    assert str(error).endswith("…")


async def test_a_text_that_is_no_unicode_arrives_all_the_same():
    error = await error_from(FakeReward(errors.TransferError("block 7: \ud800")))
    assert type(error) is errors.TransferError
    assert str(error) == "block 7: \\ud800"


async def test_an_unforeseen_error_is_internal_and_names_its_class():
    error = await error_from(FakeReward(KeyError("lost")))
    assert type(error) is errors.InternalError and "KeyError" in str(error)


async def test_a_call_that_is_not_answered_is_named():
    class Frozen(FakeReward):
        async def ScoreGroup(self, request, context) -> Any:
            await asyncio.sleep(3600)

    error = await error_from(Frozen(), timeout=0.2)
    assert type(error) is errors.DeadlineError
    assert "ScoreGroup: no answer within 0.2 s" in str(error)


async def test_bytes_that_are_no_message_are_bad_input():
    async with (
        serving(reward_service(FakeReward())) as address,
        rpc.connect(address) as channel,
    ):
        call = channel.unary_unary("/trimaran.v1.RewardService/ScoreGroup")
        with pytest.raises(grpc.aio.AioRpcError, match="request: its bytes are no") as raised:
            await call(b"\xff", timeout=10)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_older_epoch_is_refused_and_other_runs_are_not_touched():
    fake = FakeReward()
    async with (
        serving(reward_service(fake)) as address,
        RewardClient(address, CALLER) as old,
        RewardClient(address, Caller("run", 2)) as new,
        RewardClient(address, Caller("another", 1)) as other,
    ):
        assert await old.score_group(GROUP, timeout=10) == (Faulted("busy"),)
        await new.score_group(GROUP, timeout=10)
        await other.score_group(GROUP, timeout=10)
        with pytest.raises(errors.StaleEpochError, match="epoch 1 was replaced by 2"):
            await old.score_group(GROUP, timeout=10)
        assert len(fake.clients) == 3


@pytest.mark.parametrize(
    ("epoch", "refusal"),
    [(0, "never drawn"), (3, "never drawn"), (2**62 + 1, "no epoch is larger")],
)
async def test_an_epoch_that_was_never_drawn_locks_nothing_out(tmp_path, epoch, refusal):
    store = SqliteStore(tmp_path / "store.sqlite")
    fake = FakeReward()
    for _ in range(2):
        await store.next_epoch("run")
    async with (
        serving(reward_service(fake), issued=store.newest_epoch) as address,
        RewardClient(address, Caller("run", epoch)) as stranger,
        RewardClient(address, Caller("another", 1)) as other,
        RewardClient(address, Caller("run", 2)) as ours,
        RewardClient(address, Caller("run", 1)) as former,
        RewardClient(address, Caller("run", 3)) as successor,
    ):
        for unknown, why in ((stranger, refusal), (other, "never drawn")):
            with pytest.raises(errors.InputError, match=why):
                await unknown.score_group(GROUP, timeout=10)
        with pytest.raises(errors.StaleEpochError, match="epoch 1 was replaced by 2"):
            await former.score_group(GROUP, timeout=10)  # after a restart, and before ours
        await ours.score_group(GROUP, timeout=10)
        assert await store.next_epoch("run") == 3
        await successor.score_group(GROUP, timeout=10)
        with pytest.raises(errors.StaleEpochError, match="epoch 2 was replaced by 3"):
            await ours.score_group(GROUP, timeout=10)
    await store.close()
    assert len(fake.clients) == 2


async def test_a_store_that_knows_less_than_was_met_is_named():
    """It lost an epoch: two controllers may have drawn the same one."""
    newest = 7

    async def issued(run_id):
        return newest

    fence = EpochFence(issued)
    await fence.check(Caller("run-1", 7))
    newest = 6
    await fence.check(Caller("run-1", 7))  # whom it knows it need not ask about
    for epoch in (6, 8):
        with pytest.raises(LostWritesError, match="has met epoch 7, .* store knows is 6"):
            await fence.check(Caller("run-1", epoch))
    newest = 9
    await fence.check(Caller("run-1", 9))
    with pytest.raises(errors.StaleEpochError, match="epoch 7 was replaced by 9"):
        await fence.check(Caller("run-1", 7))


async def test_a_silent_stream_ends_at_its_idle_deadline():
    async with (
        serving(run_service(FakeRun())) as address,
        rpc.connect(address) as channel,
    ):
        method = run_pb2_grpc.RunServiceStub(channel).WatchRun
        kinds = []
        with pytest.raises(errors.DeadlineError):
            async for response in rpc.stream(method, run_pb2.WatchRunRequest(), 2.0):
                kinds.append(response.event.kind)
        assert kinds == [run_pb2.RunEvent.KIND_STATE]


class Broken:
    """A method whose connection breaks so many times before there is an answer."""

    def __init__(self, times, code=grpc.StatusCode.UNAVAILABLE):
        self.times, self.code, self.timeouts = times, code, []

    async def __call__(self, request, timeout):
        self.timeouts.append(timeout)
        if len(self.timeouts) > self.times:
            return "answer"
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(self.code, nothing, nothing, "recvmsg: timed out")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(rpc, "REACH_PAUSE_SECONDS", 0.01)


def call_again(method, timeout=60.0):
    return rpc.call_again(method, run_pb2.WatchRunRequest(), timeout)


async def test_what_may_be_asked_twice_is_asked_again_while_the_connection_breaks(quick):
    twice = Broken(2)
    assert await call_again(twice) == "answer"
    assert len(twice.timeouts) == 3 and sorted(twice.timeouts, reverse=True) == twice.timeouts
    # An answer of the service, such as that it refuses, is one.
    with pytest.raises(errors.InputError):
        await call_again(Broken(1, grpc.StatusCode.INVALID_ARGUMENT))


class StartedAgain(Broken):
    async def __call__(self, request, timeout):
        await super().__call__(request, timeout)
        raise errors.OutOfOrderError("step 7: the trainer holds step 3")


async def test_who_was_started_again_meanwhile_is_not_to_blame_for_what_it_does_not_know(quick):
    """So that the caller begins again, as it does when a service has died."""
    with pytest.raises(errors.UnreachableError, match="started again meanwhile: step 7"):
        await call_again(StartedAgain(1))
    with pytest.raises(errors.OutOfOrderError):
        await call_again(StartedAgain(0))


async def test_who_is_not_reached_for_long_is_unreachable(quick, monkeypatch):
    async with asyncio.timeout(10):
        with pytest.raises(errors.UnreachableError):  # the deadline comes first
            await call_again(Broken(10**9), 0.01)
    monkeypatch.setattr(rpc, "REACH_SECONDS", 0.1)
    with pytest.raises(errors.UnreachableError, match="timed out"):
        await call_again(Broken(10**9))


async def test_a_port_in_use_is_named():
    async with serving(reward_service(FakeReward())) as address:
        with pytest.raises(errors.InputError, match=f"{address}: port in use"):
            rpc.Server(address, [])


async def test_waiting_for_a_service_ends():
    with pytest.raises(errors.DeadlineError, match="127.0.0.1:1: not serving"):
        await rpc.wait_until_serving("127.0.0.1:1", timeout=0.3)


def test_every_error_has_a_name_of_its_own_and_a_code_that_means_nothing_else():
    ours = errors.TrimaranError.__subclasses__()
    assert set(CODES) == {error for error in ours if error.__module__ == errors.__name__}
    assert len({error.name for error in CODES}) == len(CODES)
    by_code = {code: [error for error in CODES if CODES[error] is code] for code in CODES.values()}
    assert by_code[grpc.StatusCode.UNAUTHENTICATED] == [errors.UnauthenticatedError]
    assert by_code[grpc.StatusCode.PERMISSION_DENIED] == [errors.ForbiddenError]


SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client of HTTP/2 sends first; it asks for nothing."""


@pytest.mark.parametrize("words", [b"", SETTINGS], ids=["silent", "idle"])
async def test_connections_that_ask_for_nothing_are_few_and_end(words, monkeypatch):
    monkeypatch.setattr(rpc, "most_connections", lambda: 3)
    monkeypatch.setattr(rpc, "HANDSHAKE_SECONDS", 0.3)
    monkeypatch.setattr(rpc, "IDLE_SECONDS", 0.3)
    async with serving() as address:
        host, _, port = address.rpartition(":")
        strangers = [await asyncio.open_connection(host, port) for _ in range(5)]
        for reader, writer in strangers:
            writer.write(words)
            with suppress(ConnectionError):  # the last ones are turned away at once
                await reader.read()
        assert await rpc.is_serving(address, 5.0)
