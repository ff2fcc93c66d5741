"""What a process reports to a Prometheus that scrapes it by itself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority
from trimaran.errors import InputError
from trimaran.telemetry import scope
from trimaran.telemetry.series import REWARD_WORKERS, ROLLOUT_TOKENS
from trimaran.trust.access import NO_TRUST, TlsFiles, Trust, make_token
from trimaran.wire import rpc
from trimaran.wire.scrape import ADDRESS_VARIABLE, TOKEN_VARIABLE, Scrape

TOKEN = "a-token-of-the-test"
TRUSTED = Trust(TOKEN, is_network_trusted=True)


@asynccontextmanager
async def served(trust: Trust = NO_TRUST) -> AsyncGenerator[rpc.Server]:
    server = rpc.Server("127.0.0.1:0", [], trust=trust)
    server.metrics.show(ROLLOUT_TOKENS, lambda: 10.0)
    await server.start()
    try:
        async with asyncio.timeout(60):
            yield server
    finally:
        await server.stop()


def address_of(server: rpc.Server) -> str:
    assert server.scrape
    return server.scrape.address


@pytest.fixture
def somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names an address."""
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1:0")


async def test_a_server_is_scraped_where_the_environment_names_an_address(
    somewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as server, httpx.AsyncClient() as client:
        place = f"http://{address_of(server)}"
        answer = await client.get(f"{place}/metrics")
        assert "trimaran_rollout_tokens_total 10.0" in answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert (await client.get(f"{place}/")).status_code == 404
        # A process of a run says which it is.
        monkeypatch.setattr(scope.process, "name", "rollout-3")
        monkeypatch.setattr(scope.process, "run_id", "addition-1")
        server.metrics.show(REWARD_WORKERS, lambda: {"busy": 2.0})
        reported = (await client.get(f"{place}/metrics")).text
    labels = 'index="3",kind="rollout",process="rollout-3",run="addition-1"'
    assert f"trimaran_rollout_tokens_total{{{labels}}} 10.0" in reported
    assert f'trimaran_reward_workers{{{labels},state="busy"}} 2.0' in reported
    assert reported.count("# TYPE trimaran_reward_workers gauge") == 1


async def test_nothing_listens_by_default() -> None:
    async with served() as server:
        assert server.scrape is None


async def test_a_token_of_its_own_and_the_tls_of_the_run(
    somewhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = make_token(tmp_path)
    monkeypatch.setenv(TOKEN_VARIABLE, str(tmp_path / "token"))
    files = Authority("test").write(tmp_path / "tls")
    trusted = ssl.create_default_context(cafile=str(files.authorities))
    assert files.certificate and files.key
    trusted.load_cert_chain(files.certificate, files.key)
    async with (
        served(Trust(TOKEN, tls=files)) as server,
        httpx.AsyncClient(verify=trusted) as client,
    ):
        url = f"https://{address_of(server)}/metrics"
        for token, status in ((own, 200), (TOKEN, 401), ("", 401)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            assert (await client.get(url, headers=headers)).status_code == status


@pytest.mark.parametrize("trust", [NO_TRUST, Trust(TOKEN)], ids=["none", "token"])
def test_beyond_loopback_a_token_and_tls_or_a_trusted_network_are_needed(
    trust: Trust, tmp_path: Path
) -> None:
    make_token(tmp_path)
    address = {ADDRESS_VARIABLE: "0.0.0.0:9100"}
    token = {TOKEN_VARIABLE: str(tmp_path / "token")}
    for environment in (address, address | token):
        with pytest.raises(InputError, match="beyond loopback"):
            Scrape.from_environment(environment, trust, bytes)
        assert Scrape.from_environment(environment, TRUSTED, bytes)
    encrypted = replace(trust, tls=TlsFiles(Path("certificate"), Path("key")))
    with pytest.raises(InputError, match="beyond loopback"):
        Scrape.from_environment(address, encrypted, bytes)
    assert Scrape.from_environment(address | token, encrypted, bytes)


async def test_an_address_that_cannot_be_bound_is_named(
    somewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as server:
        monkeypatch.setenv(ADDRESS_VARIABLE, address_of(server))
        with pytest.raises(InputError, match="TRIMARAN_METRICS: 127.0.0.1:.*name another"):
            await rpc.Server("127.0.0.1:0", []).start()
