"""Free ports of this host for the services of a run."""

from __future__ import annotations

from trimaran.config import Endpoints, RunConfig
from trimaran.errors import InputError
from trimaran.run.network import find_host, is_free, reserve, split


def fill_endpoints(config: RunConfig, move_busy: bool = False) -> RunConfig:
    """The configuration with an address for every service.

    A named port that is in use raises InputError, or with `move_busy` gives way to a free one.
    """
    taken: set[str] = set()
    host = find_host(config.network)

    def address(named: str | None, key: str) -> str:
        if named is not None and named not in taken and _is_ours(named):
            chosen = named
        elif named is not None and not move_busy:
            raise InputError(
                f"endpoints.{key}: {named}: port in use; stop what listens there, name another,"
                " or leave the key out and a free one is chosen"
            )
        else:
            chosen = host.free_address(taken)
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
        environment=addresses(given.environment, config.num_environments, "environment"),
    )
    return config.model_copy(update={"endpoints": filled})


def _is_ours(address: str) -> bool:
    return is_free(address) and reserve(split(address)[1])


def with_replica(config: RunConfig, index: int, address: str) -> RunConfig:
    """The configuration for the process of a replica that it does not name."""
    named = config.endpoints.rollout[:index]
    unnamed = (address,) * (index + 1 - len(named))
    endpoints = config.endpoints.model_copy(update={"rollout": (*named, *unnamed)})
    return config.model_copy(update={"endpoints": endpoints})
