"""Addresses on this machine: each process has one of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from commands.launch.local.endpoints import fill_endpoints
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError
from trimaran.run.network import LOOPBACK, is_free


def configure(endpoints: dict[str, Any]) -> RunConfig:
    return parse_config(
        {
            "model": {"path": "m"},
            "data": {"train": "d"},
            "reward": {"rules": {"exact_match": 1}},
            "rollout": {"replicas": 2},
            "trainer": {"data_parallel": 2},
            "endpoints": endpoints,
        }
    )


def test_every_service_gets_a_free_loopback_address_of_its_own() -> None:
    filled = fill_endpoints(configure({})).endpoints
    addresses = [
        *(filled.controller, filled.reward, filled.weight_sync),
        *(*filled.rollout, *filled.trainer),
    ]
    assert len(addresses) == len(set(addresses)) == 7
    assert all(address and address.startswith("127.0.0.1:") for address in addresses)
    assert all(address and is_free(address) for address in addresses)


def test_a_named_address_is_kept() -> None:
    named = LOOPBACK.free_address()
    assert fill_endpoints(configure({"reward": named})).endpoints.reward == named


def test_a_named_port_in_use_is_refused_or_moved() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        config = configure({"rollout": [LOOPBACK.free_address(), address]})
        with pytest.raises(InputError, match=rf"endpoints\.rollout\[1\]: {address}: port in use"):
            fill_endpoints(config)
        moved = fill_endpoints(config, move_busy=True).endpoints.rollout
        assert moved[0] == config.endpoints.rollout[0]
        assert moved[1] != address


def test_one_port_named_twice_is_refused() -> None:
    named = LOOPBACK.free_address()
    with pytest.raises(InputError, match="port in use"):
        fill_endpoints(configure({"reward": named, "controller": named}))


CHOOSE = """
import random, sys
random.seed(7)  # the same order in every process
from trimaran.run.network import LOOPBACK
taken = set()
for _ in range(20):
    taken.add(LOOPBACK.free_address(taken))
print(*sorted(taken), flush=True)
sys.stdin.read()
"""


def test_launchers_that_choose_at_the_same_time_choose_different_ports() -> None:
    launchers = [
        subprocess.Popen(
            [sys.executable, "-c", CHOOSE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        chosen = [process.stdout.readline().split() for process in launchers if process.stdout]
        every = [address for addresses in chosen for address in addresses]
        assert len(every) == len(set(every)) == 60
    finally:
        for process in launchers:
            process.kill()
            process.wait()
            assert process.stdin and process.stdout
            process.stdin.close()
            process.stdout.close()


def test_a_port_is_free_again_when_its_launcher_is_gone() -> None:
    code = "from trimaran.run.network import LOOPBACK; print(LOOPBACK.free_address())"
    command = [sys.executable, "-c", f"import random; random.seed(3); {code}"]
    first, second = (subprocess.check_output(command, text=True) for _ in range(2))
    assert first == second
    assert int(LOOPBACK.free_address().rpartition(":")[2]) in LOOPBACK.ports
