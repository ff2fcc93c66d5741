"""TLS with certificates of one's own."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from services.reward.outcome import Fault, Value
from tests.reward.plugins.calling.test_client import judging, spec_of, texts
from tests.trimaran.plugins.hostile import Server, of_texts
from trimaran.errors import InputError

GOOD = of_texts(lambda text: {"score": float(text)})


def make_certificate(folder: Path, name: str, subject: str) -> Path:
    """Self-signed, valid for the IP address or name `subject`; key and certificate in one file."""
    file = folder / f"{name}.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", str(file), "-out", str(folder / f"{name}.crt")),
            *("-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={subject}"),
        ],
        check=True,
        capture_output=True,
    )
    file.write_bytes(file.read_bytes() + (folder / f"{name}.crt").read_bytes())
    return file


def serving_with(file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("own"), "own", "IP:127.0.0.1")


async def test_certificates_of_ca_file_are_trusted_and_others_are_not(own: Path) -> None:
    async with Server(GOOD, tls=serving_with(own)) as server:
        trusted, plain = spec_of(server.url, ca_file=own), spec_of(server.url)
        async with judging(trusted, plain) as judge:
            assert await judge.judge(trusted, texts("1")) == (Value(1.0),)
            (outcome,) = await judge.judge(plain, texts("1"))
            assert isinstance(outcome, Fault) and "TLS fails" in outcome.reason
            assert "self-signed" in outcome.reason or "self signed" in outcome.reason
            assert len(server.posts) == 1


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")

    async def run() -> None:
        async with judging(spec_of("https://127.0.0.1:9", ca_file=file)):
            pass

    with pytest.raises(InputError, match=r"ca_file .*ca\.pem cannot be used"):
        asyncio.run(run())
