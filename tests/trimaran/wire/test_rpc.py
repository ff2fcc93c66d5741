"""The boundary of every service: errors, fencing, deadlines, health, reflection."""

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from trimaran import errors
from trimaran.clients import RewardClient
from trimaran.store import LostWritesError
from trimaran.store.sqlite import SqliteStore
from trimaran.trust.access import Trust
from trimaran.types import Caller, Faulted, Group, Message, Prompt
from trimaran.v1 import reward_pb2, reward_pb2_grpc, run_pb2, run_pb2_grpc, types_pb2
from trimaran.wire import rpc
from trimaran.wire.fence import EpochFence, no_epochs
from trimaran.wire.status import CODES

GROUP = Group(1, 1, Prompt("p", (Message("user", "?"),), "t", "a"), (1, 2), ())


class FakeReward(reward_pb2_grpc.RewardServiceServicer):
    """Raises `error`, or answers with one faulted verdict."""

    def __init__(self, error=None):
        self.error = error
        self.requests = []

    async def ScoreGroup(self, request, context):
        self.requests.append(request)
        if self.error:
            raise self.error
        verdict = types_pb2.Verdict(faulted=types_pb2.Faulted(fault="busy"))
        return reward_pb2.ScoreGroupResponse(verdicts=[verdict])


class FakeRun(run_pb2_grpc.RunServiceServicer):
    """Streams one event, then falls silent or fails."""

    def __init__(self, error=None):
        self.error = error

    async def WatchRun(self, request, context):
        run = run_pb2.Run(state=run_pb2.Run.STATE_RUNNING)
        yield run_pb2.WatchRunResponse(
            event=run_pb2.RunEvent(kind=run_pb2.RunEvent.KIND_STATE, run=run)
        )
        if self.error:
            raise self.error
        await asyncio.sleep(60)


def reward_service(servicer):
    add = reward_pb2_grpc.add_RewardServiceServicer_to_server
    return rpc.service(reward_pb2.DESCRIPTOR, add, servicer)


def run_service(servicer):
    return rpc.service(run_pb2.DESCRIPTOR, run_pb2_grpc.add_RunServiceServicer_to_server, servicer)


@asynccontextmanager
async def serving(*services, issued=no_epochs):
    server = rpc.Server("127.0.0.1:0", services, issued)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


@pytest.mark.parametrize("error", CODES)
async def test_an_error_arrives_as_itself(error):
    async with (
        serving(reward_service(FakeReward(error("the thing; the remedy")))) as address,
        RewardClient(address, Caller("run", 1)) as client,
    ):
        with pytest.raises(errors.TrimaranError, match="the thing; the remedy") as raised:
            await client.score_group(GROUP, timeout=10)
    assert type(raised.value) is error


@pytest.mark.parametrize("error", CODES)
async def test_a_foreign_client_sees_a_standard_code_and_the_name(error):
    async with (
        serving(reward_service(FakeReward(error("why")))) as address,
        rpc.connect(address) as channel,
    ):
        request = reward_pb2.ScoreGroupRequest(caller=types_pb2.Caller(run_id="run", epoch=1))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await reward_pb2_grpc.RewardServiceStub(channel).ScoreGroup(request, timeout=10)
    status = raised.value
    assert (status.code(), status.details()) == (CODES[error], "why")
    assert ("trimaran-error", error.name) in list(status.trailing_metadata())


class Foreign(FakeReward):
    """Ends each call with a status of its own, with these trailers."""

    def __init__(self, code, *trailers):
        super().__init__()
        self.code, self.trailers = code, trailers

    async def ScoreGroup(self, request, context) -> Any:
        await context.abort(self.code, "foreign words", self.trailers)


def error_from(servicer):
    async def run():
        async with (
            serving(reward_service(servicer)) as address,
            RewardClient(address, Caller("run", 1)) as client,
        ):
            with pytest.raises(errors.TrimaranError) as raised:
                await client.score_group(GROUP, timeout=10)
            return raised.value

    return asyncio.run(run())


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
def test_without_a_name_that_we_know_the_code_decides(code, trailers):
    error = error_from(Foreign(code, *trailers))
    silent = not trailers and code is grpc.StatusCode.UNAVAILABLE
    assert type(error) is (errors.UnreachableError if silent else WITHOUT_TRAILER[code])
    if type(error) is errors.InternalError:
        assert str(error) == f"{code.name}: foreign words"


def test_the_name_decides_whatever_the_code():
    error = error_from(Foreign(grpc.StatusCode.UNKNOWN, ("trimaran-error", "stale-epoch")))
    assert (type(error), str(error)) == (errors.StaleEpochError, "foreign words")


@pytest.mark.parametrize("letter", ["x", "¿"])
def test_a_text_longer_than_grpc_carries_is_cut_and_keeps_its_class(letter):
    error = error_from(FakeReward(errors.TransferError("block 7: " + letter * 20_000)))
    assert type(error) is errors.TransferError
    assert str(error).startswith("block 7: " + letter * 900)
    assert str(error).endswith("…")


def test_a_text_that_is_no_unicode_arrives_all_the_same():
    error = error_from(FakeReward(errors.TransferError("block 7: \ud800")))
    assert type(error) is errors.TransferError
    assert str(error) == "block 7: \\ud800"


async def test_a_call_that_is_not_answered_is_named():
    class Frozen(FakeReward):
        async def ScoreGroup(self, request, context) -> Any:
            await asyncio.sleep(3600)

    async with (
        serving(reward_service(Frozen())) as address,
        RewardClient(address, Caller("run", 1)) as client,
    ):
        with pytest.raises(errors.DeadlineError, match=r"ScoreGroup: no answer within 0.2 s"):
            await client.score_group(GROUP, timeout=0.2)


async def test_bytes_that_are_no_message_are_bad_input():
    async with (
        serving(reward_service(FakeReward())) as address,
        rpc.connect(address) as channel,
    ):
        call = channel.unary_unary("/trimaran.v1.RewardService/ScoreGroup")
        with pytest.raises(grpc.aio.AioRpcError, match="request: its bytes are no") as raised:
            await call(b"\xff", timeout=10)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_unforeseen_error_is_internal_and_names_its_class():
    error = error_from(FakeReward(KeyError("lost")))
    assert type(error) is errors.InternalError and "KeyError" in str(error)


async def test_an_older_epoch_is_refused_and_other_runs_are_not_touched():
    fake = FakeReward()
    async with (
        serving(reward_service(fake)) as address,
        RewardClient(address, Caller("run", 1)) as old,
        RewardClient(address, Caller("run", 2)) as new,
        RewardClient(address, Caller("another", 1)) as other,
    ):
        assert await old.score_group(GROUP, timeout=10) == (Faulted("busy"),)
        await new.score_group(GROUP, timeout=10)
        await other.score_group(GROUP, timeout=10)
        with pytest.raises(errors.StaleEpochError, match="epoch 1 was replaced by 2"):
            await old.score_group(GROUP, timeout=10)
        assert len(fake.requests) == 3


@pytest.mark.parametrize("epoch", [0, 3, 2**62, 2**63, 2**64 - 1])
async def test_an_epoch_that_was_never_drawn_locks_nothing_out(tmp_path, epoch):
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
        for unknown in (stranger, other):
            with pytest.raises(errors.InputError, match="never drawn|no epoch is larger"):
                await unknown.score_group(GROUP, timeout=10)
        with pytest.raises(errors.StaleEpochError, match="epoch 1 was replaced by 2"):
            await former.score_group(GROUP, timeout=10)  # after a restart, and before ours
        await ours.score_group(GROUP, timeout=10)
        assert await store.next_epoch("run") == 3
        await successor.score_group(GROUP, timeout=10)
        with pytest.raises(errors.StaleEpochError, match="epoch 2 was replaced by 3"):
            await ours.score_group(GROUP, timeout=10)
    await store.close()
    assert len(fake.requests) == 2


def test_a_store_that_knows_less_than_was_met_is_named():
    """It lost an epoch: two controllers may have drawn the same one."""
    newest = 7

    async def issued(run_id):
        return newest

    async def body():
        nonlocal newest
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

    asyncio.run(body())


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


def test_what_may_be_asked_twice_is_asked_again_while_the_connection_breaks(monkeypatch):
    monkeypatch.setattr(rpc, "REACH_PAUSE_SECONDS", 0.01)
    twice = Broken(2)
    request = run_pb2.WatchRunRequest()
    assert asyncio.run(rpc.call_again(twice, request, 60.0)) == "answer"
    assert len(twice.timeouts) == 3 and sorted(twice.timeouts, reverse=True) == twice.timeouts
    # An answer of the service, such as that it refuses, is one.
    with pytest.raises(errors.InputError):
        asyncio.run(rpc.call_again(Broken(1, grpc.StatusCode.INVALID_ARGUMENT), request, 60.0))


class StartedAgain(Broken):
    async def __call__(self, request, timeout):
        await super().__call__(request, timeout)
        raise errors.OutOfOrderError("step 7: the trainer holds step 3")


def test_who_was_started_again_meanwhile_is_not_to_blame_for_what_it_does_not_know(monkeypatch):
    """So that the caller begins again, as it does when a service has died."""
    monkeypatch.setattr(rpc, "REACH_PAUSE_SECONDS", 0.01)
    request = run_pb2.WatchRunRequest()
    with pytest.raises(errors.UnreachableError, match="started again meanwhile: step 7"):
        asyncio.run(rpc.call_again(StartedAgain(1), request, 60.0))
    with pytest.raises(errors.OutOfOrderError):
        asyncio.run(rpc.call_again(StartedAgain(0), request, 60.0))


def test_who_is_not_reached_for_long_is_unreachable(monkeypatch):
    monkeypatch.setattr(rpc, "REACH_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(rpc, "REACH_SECONDS", 0.1)
    request = run_pb2.WatchRunRequest()
    with pytest.raises(errors.UnreachableError, match="timed out"):
        asyncio.run(rpc.call_again(Broken(10**9), request, 60.0))
    monkeypatch.undo()
    with pytest.raises(errors.UnreachableError):  # the deadline comes first
        asyncio.run(rpc.call_again(Broken(10**9), request, 0.01))


async def test_a_port_in_use_is_named():
    async with serving(reward_service(FakeReward())) as address:
        with pytest.raises(errors.InputError, match=f"{address}: port in use"):
            rpc.Server(address, [])


async def test_health_and_reflection():
    async with (
        serving(reward_service(FakeReward())) as address,
        rpc.connect(address) as channel,
    ):
        await rpc.wait_until_serving(address, timeout=10)
        name = "trimaran.v1.RewardService"
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection: Any = reflection_pb2_grpc
        stub = reflection.ServerReflectionStub(channel)
        responses = stub.ServerReflectionInfo(iter([request]), timeout=10)
        async for response in responses:
            assert name in {s.name for s in response.list_services_response.service}


def test_waiting_for_a_service_ends():
    with pytest.raises(errors.DeadlineError, match="127.0.0.1:1: not serving"):
        asyncio.run(rpc.wait_until_serving("127.0.0.1:1", timeout=0.3))


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
    server = rpc.Server("127.0.0.1:0", [])
    await server.start()
    host, _, port = server.address.rpartition(":")
    strangers = [await asyncio.open_connection(host, port) for _ in range(5)]
    for reader, writer in strangers:
        writer.write(words)
        with suppress(ConnectionError):  # the last ones are turned away at once
            await reader.read()
    assert await rpc.is_serving(server.address, 5.0)
    await server.stop()


async def test_a_stranger_may_ask_for_health_and_not_watch_it():
    server = rpc.Server("127.0.0.1:0", [], trust=Trust("a-token-of-this-test"))
    await server.start()
    request = health_pb2.HealthCheckRequest()
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        await stub.Check(request, timeout=5.0)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stub.Watch(request, timeout=5.0).read()
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await server.stop()
