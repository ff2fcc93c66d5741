"""An S3 server for tests: moto's, which speaks the protocol."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trimaran.run.network import LOOPBACK, split


@contextmanager
def served() -> Iterator[Endpoint]:
    """The server, with the variables that lead to it in this process' environment."""
    server = Endpoint(split(LOOPBACK.free_address())[1])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.variables.items():
            patch.setenv(name, value)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@pytest.fixture(scope="module")
def bucket() -> Iterator[Endpoint]:
    with served() as endpoint:
        yield endpoint


class Endpoint:
    """An S3 server in a process of its own, which forgets everything when it is killed."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.port, self.address = port, address
        self.process: subprocess.Popen[bytes]

    @property
    def variables(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self._url,
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Returns once the bucket `payloads` is there."""
        place = ("-H", self.address, "-p", str(self.port))
        command = [sys.executable, "-m", "moto.server", *place]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not self._is_up():
            assert time.monotonic() < deadline, "moto does not start"
            time.sleep(0.1)
        self.make_bucket()

    def make_bucket(self) -> None:
        import boto3

        client: Any = boto3.client("s3", endpoint_url=self._url)
        client.create_bucket(Bucket="payloads")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _is_up(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.address, self.port)) == 0

    @property
    def _url(self) -> str:
        return f"http://{self.address}:{self.port}"
