"""Who may call a run's services, and what of it stands where."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.rollout import server as rollout
from services.trainer import server as trainer
from tests.configs import LEAST
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
from trimaran.config import parse_config
from trimaran.run.context import RunContext
from trimaran.run.network import LOOPBACK, Host, Interface, check_tensors
from trimaran.trust.access import (
    LOCAL,
    ClientIdentity,
    Role,
    TlsFiles,
    Trust,
    is_loopback,
    make_token,
    new_token,
)
from trimaran.v1 import reward_pb2_grpc, run_pb2, run_pb2_grpc
from trimaran.wire import rpc


async def score(address, trust):
    async with RewardClient(address, CALLER, trust) as client:
        return await client.score_group(GROUP, timeout=10)


@pytest.mark.parametrize("token", ["", "short", "0123456789abcdef" * 4, "x" * 5000])
async def test_a_service_refuses_a_caller_that_does_not_show_the_token_of_its_run(token):
    ours, servicer = Trust(new_token()), FakeReward()
    async with serving(reward_service(servicer), trust=ours) as address:
        with pytest.raises(errors.UnauthenticatedError, match="ScoreGroup: .* token") as raised:
            await score(address, Trust(token))
        assert ours.token not in str(raised.value)
        assert not servicer.clients
        await score(address, ours)
        assert servicer.clients == [LOCAL]


async def test_a_stranger_may_ask_for_health_and_neither_watch_it_nor_list_services():
    trust = Trust(new_token())
    health: Any = health_pb2_grpc
    reflection: Any = reflection_pb2_grpc
    name = "trimaran.v1.RewardService"
    request = health_pb2.HealthCheckRequest(service=name)

    async def ask():
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    async def say_nothing():  # grpc calls a refusal INTERNAL where it comes amid a message to it
        await asyncio.Event().wait()
        yield

    def listed(channel, requests):
        return reflection.ServerReflectionStub(channel).ServerReflectionInfo(requests, timeout=9)

    async with (
        serving(reward_service(FakeReward()), trust=trust) as address,
        rpc.connect(address, trust) as ours,
        rpc.connect(address) as strangers,
    ):
        await rpc.wait_until_serving(address, timeout=10)
        [answer] = [answer async for answer in listed(ours, ask())]
        assert name in {service.name for service in answer.list_services_response.service}
        stub = health.HealthStub(strangers)
        answer = await stub.Check(request, timeout=9)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for call in (stub.Watch(request, timeout=9), listed(strangers, say_nothing())):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call.read()
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_foreign_client_shows_its_token_as_others_do():
    """As grpcurl -H 'authorization: Bearer TOKEN'."""
    trust = Trust(new_token())
    async with (
        serving(reward_service(FakeReward()), trust=trust) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = reward_pb2_grpc.RewardServiceStub(channel).ScoreGroup
        for value, code in (
            (f"bearer {trust.token}", grpc.StatusCode.OK),
            (f"Basic {trust.token}", grpc.StatusCode.UNAUTHENTICATED),
            (trust.token, grpc.StatusCode.UNAUTHENTICATED),
        ):
            sent = call(REQUEST, metadata=(("authorization", value),), timeout=10)
            assert await sent.code() is code


async def test_a_token_that_is_withdrawn_ends_the_streams_that_it_opened(monkeypatch):
    known = {"t": ClientIdentity("anna", "team-a", Role.VIEWER)}

    def identify(method, token):
        if token not in known:
            raise errors.UnauthenticatedError("not known here")
        return known[token]

    async with (
        serving(run_service(FakeRun(0.05)), identify=identify, identify_seconds=0.1) as address,
        rpc.connect(address, Trust("t")) as channel,
    ):
        num_events = 0
        with pytest.raises(errors.UnauthenticatedError):
            watch = run_pb2_grpc.RunServiceStub(channel).WatchRun
            async for _ in rpc.stream(watch, run_pb2.WatchRunRequest(), idle_timeout=10):
                num_events += 1
                assert num_events < 500
                known.clear() if num_events == 5 else None
        assert num_events >= 5


def test_a_token_is_made_once_and_only_its_owner_reads_it(tmp_path):
    token = make_token(tmp_path)
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert make_token(tmp_path) == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["token"]
    assert new_token() != token


@pytest.mark.parametrize(
    ("mode", "text", "complaint"),
    [
        (0o640, "a" * 64, "others can read"),
        (0o600, "", "not a token"),
        (0o600, "two words and more", "not a token"),
        (0o600, "ä" * 20, "cannot be read"),
    ],
)
def test_a_token_file_that_is_no_secret_or_no_token_is_refused(tmp_path, mode, text, complaint):
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    with pytest.raises(errors.InputError, match=complaint):
        RunContext.in_folder(tmp_path)


def test_a_run_context_brings_its_trust_and_never_writes_the_token(tmp_path):
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem", connection_seconds=7.0)
    trust = Trust(make_token(tmp_path), files, is_network_trusted=True)
    context = RunContext("run-1", tmp_path, "sqlite:x", trust)
    context.write()
    assert RunContext.in_folder(tmp_path) == context
    assert trust.token not in (tmp_path / "context.json").read_text(encoding="utf-8")
    assert trust.token not in repr(context)
    (tmp_path / "token").unlink()
    with pytest.raises(errors.InputError, match="token: is gone"):
        RunContext.in_folder(tmp_path)


def test_a_folder_without_a_token_is_a_service_started_by_hand(tmp_path):
    assert RunContext.in_folder(tmp_path).trust == Trust()
    tree = {"run_id": "r", "store_url": "sqlite:x"}  # as it was written before there were tokens
    (tmp_path / "context.json").write_text(json.dumps(tree), encoding="utf-8")
    assert RunContext.in_folder(tmp_path).trust == Trust()


@pytest.mark.parametrize(
    "address", ["10.0.0.1:7000", "0.0.0.0:0", "[::]:0", "example.org:1", "x:1"]
)
def test_beyond_loopback_a_service_needs_token_and_tls(address):
    refused = f"{re.escape(address)}: is beyond loopback"
    for trust in (Trust(), Trust("t" * 64), Trust(is_network_trusted=True)):
        with pytest.raises(errors.InputError, match=refused):
            rpc.Server(address, [], trust=trust)
    Trust("t" * 64, is_network_trusted=True).check_address(address)


@pytest.mark.parametrize("module", [rollout, trainer])
def test_weights_travel_beyond_loopback_only_on_a_trusted_network(module, tmp_path, monkeypatch):
    """Or by the relay, through TLS."""
    tree = {
        **LEAST,
        "network": {"subnet": "198.51.100.0/24"},
        "endpoints": {"trainer": ["127.0.0.1:1"]},
    }
    run = RunContext("r", tmp_path, "sqlite:x", Trust(new_token()))
    there = Interface("eth7", "198.51.100.1")
    monkeypatch.setattr("trimaran.run.network.read_interfaces", lambda: [there])
    with pytest.raises(errors.InputError, match=r"network\.subnet: 198\.51\.100\.1 is beyond"):
        asyncio.run(module.serve(parse_config(tree), run))
    host, files = Host(there.address, there.name), TlsFiles(tmp_path / "c", tmp_path / "k")
    relay = {**tree, "weight_sync": {"transport": "relay"}}
    ranks = {**relay, "trainer": {"data_parallel": 2}, "endpoints": {}}
    check_tensors(parse_config(tree), Trust(is_network_trusted=True), host)
    check_tensors(parse_config(relay), Trust(tls=files), host)
    check_tensors(parse_config(tree), Trust(), LOOPBACK)
    for refused, reported in ((tree, "weight_sync.transport: auto"), (ranks, "trainer: 2 ranks")):
        with pytest.raises(errors.InputError, match=reported):
            check_tensors(parse_config(refused), Trust(tls=files), host)


async def test_a_token_does_not_leave_this_machine_in_plain_text():
    with pytest.raises(errors.InputError, match="beyond loopback"):
        rpc.connect("10.0.0.1:7000", Trust("t" * 64))
    async with rpc.connect("10.0.0.1:7000", Trust("t" * 64, is_network_trusted=True)):
        pass


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_loopback(host):
    assert is_loopback(f"{host}:7000")
    assert not is_loopback(f"{host}.example.org:7000")


def test_roles_cover_those_before_them():
    assert [[a.covers(b) for b in Role] for a in Role] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_an_owner_is_kept_from_the_runs_of_others():
    anna = ClientIdentity("anna", "team-a", Role.SUBMITTER)
    anna.check_owner("team-a", "run x")
    with pytest.raises(errors.ForbiddenError, match="run x: belongs to another owner than team-a"):
        anna.check_owner("team-b", "run x")
    replace(anna, role=Role.OPERATOR).check_owner("team-b", "run x")
