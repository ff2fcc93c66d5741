"""TLS from files that change while servers and clients run."""

import asyncio
import logging
import ssl
from dataclasses import replace

import pytest

from tests.certificates import Authority
from tests.trimaran.wire.fakes import CALLER, GROUP, FakeReward, reward_service, serving
from trimaran import errors
from trimaran.clients import RewardClient
from trimaran.trust.access import TlsFiles, Trust, new_token
from trimaran.trust.tls import http_context, read_pem, server_credentials
from trimaran.wire import rpc

TOKEN = new_token()


def trust_of(files):
    return Trust(TOKEN, files)


def serving_tls(files):
    return serving(reward_service(FakeReward()), trust=trust_of(files))


async def score(client, timeout=10.0):
    return await client.score_group(GROUP, timeout=timeout)


async def is_refused(address, trust):
    """By the handshake: the server is then as good as away."""
    async with RewardClient(address, CALLER, trust) as client:
        try:
            await score(client, 3.0)
        except errors.UnavailableError:
            return True
    return False


async def test_both_ends_prove_themselves(tmp_path):
    ours, others = Authority("ours"), Authority("others")
    server = ours.write(tmp_path / "server")
    client = ours.write(tmp_path / "client")
    stranger = replace(others.write(tmp_path / "stranger"), authorities=server.authorities)
    no_certificate = TlsFiles(authorities=server.authorities)
    wrong_server = replace(client, authorities=tmp_path / "stranger" / "ca.pem")
    async with serving_tls(server) as address:
        assert not await is_refused(address, trust_of(client))
        for files in (stranger, no_certificate, wrong_server, None):
            assert await is_refused(address, trust_of(files)), files
        await rpc.wait_until_serving(address, 10, trust_of(client))


async def test_without_authorities_a_server_asks_clients_for_a_token_alone(tmp_path):
    files = Authority("ours").write(tmp_path)
    async with serving_tls(replace(files, authorities=None)) as address:
        client = TlsFiles(authorities=files.authorities)
        assert not await is_refused(address, trust_of(client))
        async with RewardClient(address, CALLER, Trust(tls=client)) as stranger:
            with pytest.raises(errors.UnauthenticatedError):
                await score(stranger)


async def test_a_new_authority_counts_at_once_and_the_old_one_no_more(tmp_path):
    """Server and client change to certificates of another authority; nothing is started again.

    Connections outlive their certificates, so the server ends each after half a second.
    """
    old, new = Authority("old"), Authority("new")
    server = replace(old.write(tmp_path / "server"), connection_seconds=0.5)
    client = old.write(tmp_path / "client")
    left_behind = old.write(tmp_path / "left_behind")
    async with (
        serving_tls(server) as address,
        RewardClient(address, CALLER, trust_of(client)) as renewed,
        RewardClient(address, CALLER, trust_of(left_behind)) as late,
    ):
        await asyncio.gather(score(renewed), score(late))
        new.write(tmp_path / "server")
        new.write(tmp_path / "client")
        for _ in range(30):
            await score(renewed)
            await asyncio.sleep(0.05)
        with pytest.raises(errors.UnavailableError):
            for _ in range(100):
                await score(late)
                await asyncio.sleep(0.1)


async def test_broken_files_leave_the_old_ones_in_use_and_are_logged(tmp_path, caplog):
    authority = Authority("ours")
    files = authority.write(tmp_path)
    async with serving_tls(files) as address:
        (tmp_path / "key.pem").write_text("-----BEGIN", encoding="utf-8")
        with caplog.at_level(logging.WARNING):
            kept = replace(files, certificate=None, key=None)  # a client without its own
            assert await is_refused(address, trust_of(kept))
        assert "cannot be used, so the old one counts" in caplog.text


def test_a_key_that_does_not_fit_is_refused(tmp_path):
    authority = Authority("ours")
    files = authority.write(tmp_path / "a")
    other = authority.write(tmp_path / "b")
    with pytest.raises(errors.InputError, match="cannot be used for TLS"):
        read_pem(replace(files, key=other.key))
    with pytest.raises(errors.InputError, match=r"no\.pem: no such file"):
        read_pem(replace(files, key=tmp_path / "no.pem"))
    with pytest.raises(errors.InputError, match="belong together"):
        read_pem(replace(files, key=None))
    with pytest.raises(errors.InputError, match="a server needs certificate and key"):
        server_credentials(TlsFiles(authorities=files.authorities))


async def test_http_takes_new_certificates_and_a_new_authority_too(tmp_path):
    old, new = Authority("old"), Authority("new")
    server = old.write(tmp_path / "server")
    client = old.write(tmp_path / "client")

    async def serve(reader, writer):
        writer.write(b"ok")
        await writer.drain()
        writer.close()

    async def ask(port, files):
        """What the server says; nothing where it refuses us, which TLS 1.3 reports with the data."""
        context = ssl.create_default_context(cafile=files.authorities)
        if files.certificate:
            context.load_cert_chain(files.certificate, files.key)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            return await reader.read()
        except (ssl.SSLError, ConnectionError):
            return b""
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=http_context(server))
    port = listener.sockets[0].getsockname()[1]
    assert await ask(port, client) == b"ok"
    new.write(tmp_path / "server")
    renewed = new.write(tmp_path / "renewed")
    assert await ask(port, renewed) == b"ok"
    assert await ask(port, replace(client, authorities=renewed.authorities)) == b""
    assert await ask(port, TlsFiles(authorities=renewed.authorities)) == b""
    listener.close()
