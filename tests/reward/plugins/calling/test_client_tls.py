"""TLS with certificates of one's own."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from services.reward.outcome import Fault, Value
from tests.certificates import Authority
from tests.reward.plugins.calling.test_client import judging, spec_of, texts
from tests.trimaran.plugins.hostile import Server, of_texts
from trimaran.errors import InputError
from trimaran.trust.access import TlsFiles

GOOD = of_texts(lambda text: {"score": float(text)})


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority("own").write(tmp_path_factory.mktemp("own"))


def serving_with(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert files.certificate
    context.load_cert_chain(files.certificate, files.key)
    return context


async def test_certificates_of_ca_file_are_trusted_and_others_are_not(own: TlsFiles) -> None:
    async with Server(GOOD, tls=serving_with(own)) as server:
        trusted, plain = spec_of(server.url, ca_file=own.authorities), spec_of(server.url)
        async with judging(trusted, plain) as judge:
            assert await judge.judge(trusted, texts("1")) == (Value(1.0),)
            (outcome,) = await judge.judge(plain, texts("1"))
            assert isinstance(outcome, Fault) and "TLS fails" in outcome.reason
            assert len(server.posts) == 1


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")

    async def run() -> None:
        async with judging(spec_of("https://127.0.0.1:9", ca_file=file)):
            pass

    with pytest.raises(InputError, match=r"ca_file .*ca\.pem cannot be used"):
        asyncio.run(run())
