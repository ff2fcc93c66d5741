from __future__ import annotations

import socket
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
