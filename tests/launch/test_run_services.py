"""Which processes a run has, and who cannot go on without whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commands.cli.serve.launch import prepared
from commands.launch.joining.joining import num_of
from commands.launch.run_services import remote_replica, remote_services
from trimaran.config import RunConfig, config_to_tree, parse_config
from trimaran.errors import InputError
from trimaran.run.environment import followers_of, part_of
from trimaran.run.launchers import check_hosts
from trimaran.run.network import Host, check_tensors
from trimaran.trust.access import TlsFiles, Trust


def configure(**rollout: Any) -> RunConfig:
    return parse_config(
        {
            "model": {"path": "m"},
            "data": {"train": "d"},
            "reward": {"rules": {"exact_match": 1}},
            "rollout": {"replicas": 2, "max_replicas": 3, "tensor_parallel": 6, **rollout},
            "weight_sync": {"transport": "relay"},
        }
    )


def test_a_replica_on_one_host_is_one_process() -> None:
    services = {service.name: service for service in remote_services(configure(), Path("run"))}
    assert [name for name in services if name.startswith(("rollout", "follower"))] == [
        "rollout-0",
        "rollout-1",
    ]
    assert services["rollout-0"].takes_along == frozenset()
    assert num_of(configure(), "follower") == 0


def test_followers_are_numbered_through_the_replicas() -> None:
    config = configure(hosts=3)
    services = {service.name: service for service in remote_services(config, Path("run"))}
    assert {name for name in services if name.startswith("follower")} == {
        f"follower-{n}" for n in range(4)
    }
    assert services["follower-2"].takes_along == {"rollout-1", "follower-3"}
    assert services["rollout-1"].takes_along == {"follower-2", "follower-3"}
    assert services["follower-2"].expendable and services["follower-2"].kind == "follower"
    assert [part_of(config, "follower", n) for n in range(4)] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert followers_of(config, 2) == range(4, 6)
    third = [service.name for service in remote_replica(config, Path("run"), 2)]
    assert third == ["rollout-2", "follower-4", "follower-5"]
    assert num_of(config, "follower") == 6


def test_hosts_have_equally_many_devices() -> None:
    with pytest.raises(InputError, match=r"hosts \(4\) must divide tensor_parallel \(6\)"):
        configure(hosts=4)


def test_one_machine_has_no_second_host() -> None:
    with pytest.raises(InputError, match="rollout.hosts: 2 hosts .* --launcher ray"):
        prepared(configure(hosts=2), "local", move_busy=False)
    assert prepared(configure(hosts=2), "external", move_busy=False).rollout.hosts == 2


@pytest.mark.parametrize("launcher", ["ray", "external"])
def test_pools_that_take_turns_are_on_one_host(launcher: str) -> None:
    tree = config_to_tree(configure(max_replicas=2))
    tree |= {"run": {"pools": "colocated", "groups_per_step": 12}, "trainer": {"data_parallel": 12}}
    turns = parse_config(tree)
    with pytest.raises(
        InputError, match=f"colocated, and the launcher is `{launcher}`, .* one host"
    ):
        prepared(turns, launcher, move_busy=False)
    check_hosts(turns, "local")


def test_vllms_own_messages_between_hosts_want_a_trusted_network() -> None:
    there, tls = Host("10.0.0.7", "eth0"), Trust("f" * 32, TlsFiles())
    check_tensors(configure(), tls, there)
    with pytest.raises(InputError, match="rollout.hosts: the 2 hosts .* without TLS"):
        check_tensors(configure(hosts=2), tls, there)
    check_tensors(configure(hosts=2), Trust("f" * 32, is_network_trusted=True), there)


def test_a_follower_of_a_replica_on_one_host_is_refused() -> None:
    with pytest.raises(InputError, match=r"follower-0: .* one host each; .* set rollout\.hosts"):
        part_of(configure(), "follower", 0)
