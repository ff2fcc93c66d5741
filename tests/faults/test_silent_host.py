"""A host that falls silent in the middle of a call: no packet comes, and no end of the connection."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.namespaces import NamespaceHost, hosts

pytestmark = pytest.mark.e2e
MODULE = "tests.faults.silent_host"


def start(stack: ExitStack, host: NamespaceHost, *words: str) -> subprocess.Popen[str]:
    command = host.inside(sys.executable, "-m", MODULE, *words)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def test_a_call_to_a_host_that_falls_silent_ends_within_seconds() -> None:
    with hosts("10.77.1", 2) as (near, far), ExitStack() as stack:
        address = f"{far.address}:24000"
        serving = start(stack, far, "serve", address)
        assert serving.stdout and serving.stdout.readline() == "serves\n"
        calling = start(stack, near, "call", address)
        assert calling.stdout and calling.stdout.readline() == "called\n"
        down = ("ip", "-n", far.name, "link", "set", far.interface, "down")
        subprocess.run(down, check=True)
        name, seconds = calling.stdout.readline().split()
        assert name == "UnreachableError"
        assert float(seconds) < 45  # FakeRun speaks again after 60
