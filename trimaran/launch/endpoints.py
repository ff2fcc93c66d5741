"""Free loopback ports for the services of a run."""

from __future__ import annotations

import random
import socket

from trimaran.config import Endpoints, RunConfig
from trimaran.errors import InputError

# Below Linux' range for outgoing connections: our own calls never take a port
# between its choice here and the service's bind.
PORTS = range(20000, 32768)
HOST = "127.0.0.1"
_reserved: dict[str, socket.socket] = {}
"""By this process."""


def fill_endpoints(config: RunConfig, move_busy: bool = False) -> RunConfig:
    """The configuration with an address for every service.

    A named port that is in use raises InputError, or with `move_busy` gives way to a free one.
    """
    taken: set[str] = set()

    def address(named: str | None, key: str) -> str:
        if named is not None and named not in taken and is_free(named) and _reserve(named):
            chosen = named
        elif named is not None and not move_busy:
            raise InputError(
                f"endpoints.{key}: {named}: port in use; stop what listens there, name another,"
                " or leave the key out and a free one is chosen"
            )
        else:
            chosen = free_address(taken)
        taken.add(chosen)
        return chosen

    def addresses(named: tuple[str, ...], count: int, key: str) -> tuple[str, ...]:
        padded = named or (None,) * count
        return tuple(address(name, f"{key}[{index}]") for index, name in enumerate(padded))

    given = config.endpoints
    filled = Endpoints(
        controller=address(given.controller, "controller"),
        reward=address(given.reward, "reward"),
        weight_sync=address(given.weight_sync, "weight_sync"),
        rollout=addresses(given.rollout, config.rollout.replicas, "rollout"),
        trainer=addresses(given.trainer, config.num_trainer_ranks, "trainer"),
    )
    return config.model_copy(update={"endpoints": filled})


def with_replica(config: RunConfig, index: int, address: str) -> RunConfig:
    """The configuration for the process of a replica that it does not name."""
    named = config.endpoints.rollout[:index]
    unnamed = (address,) * (index + 1 - len(named))
    endpoints = config.endpoints.model_copy(update={"rollout": (*named, *unnamed)})
    return config.model_copy(update={"endpoints": endpoints})


def free_address(taken: set[str]) -> str:
    for port in random.sample(PORTS, len(PORTS)):
        address = f"{HOST}:{port}"
        if address not in taken and is_free(address) and _reserve(address):
            return address
    raise InputError(f"no free port from {PORTS.start} to {PORTS.stop - 1} on {HOST}")


def _reserve(address: str) -> bool:
    """Keeps other launchers from a port between its choice and the service's bind, and while that
    service is started again. False when another process has it.

    The reservation is a socket without a file (Linux: its name begins with a zero byte), in the
    network namespace in which the port is. The kernel ends it with this process.
    """
    name = f"\0trimaran-port-{address.rpartition(':')[2]}"
    if name in _reserved:
        return True
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(name)
    except OSError:
        reservation.close()
        return False
    _reserved[name] = reservation
    return True


def is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except (OSError, OverflowError):
            return False
    return True
