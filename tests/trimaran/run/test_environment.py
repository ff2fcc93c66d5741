from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import services
from commands.cli.options import KINDS
from commands.launch.local.endpoints import fill_endpoints
from tests.configs import configure
from trimaran.config import Endpoints, RunConfig, config_to_tree, parse_config
from trimaran.errors import InputError
from trimaran.run.environment import (
    network_environment,
    process_name,
    service_address,
    service_environment,
)
from trimaran.run.network import LOOPBACK, Host


@pytest.fixture
def config() -> RunConfig:
    return configure(
        environment={"python": True},
        rollout={"threads": 3},
        trainer={"threads": 2},
        endpoints={"rollout": ["127.0.0.1:7001"], "reward": "127.0.0.1:7000"},
    )


def test_each_service_gets_the_threads_that_its_section_names(config: RunConfig) -> None:
    threads = [service_environment(config, kind, {})["OMP_NUM_THREADS"] for kind in KINDS]
    assert threads == ["1", "1", "1", "1", "3", "3", "2"]


def test_tokens_of_plugins_are_for_the_service_alone_that_calls_them(config: RunConfig) -> None:
    plugins = {
        name: {"plugin": {"url": "http://h:1", "token_variable": f"TRIMARAN_{name.upper()}_TOKEN"}}
        for name in ("judge", "world")
    }
    own = {"reward": {"rules": {"judge": plugins["judge"]}}, "environment": plugins["world"]}
    run = parse_config(json.loads(config.model_dump_json()) | own)
    names = ("TRIMARAN_JUDGE_TOKEN", "TRIMARAN_WORLD_TOKEN", "TRIMARAN_X")
    shell: dict[str, str] = dict.fromkeys(names, "x")
    known = {kind: set(shell) & set(service_environment(run, kind, shell)) for kind in KINDS}
    assert known.pop("reward") == {"TRIMARAN_JUDGE_TOKEN", "TRIMARAN_X"}
    assert known.pop("environment") == {"TRIMARAN_WORLD_TOKEN", "TRIMARAN_X"}
    assert all(names == {"TRIMARAN_X"} for names in known.values())


def test_the_shells_own_settings_win_but_for_the_threads(config: RunConfig) -> None:
    shell = {"OMP_NUM_THREADS": "64", "GLOO_SOCKET_IFNAME": "eth1", "HOME": "/h"}
    environment = service_environment(config, "trainer", shell)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["GLOO_SOCKET_IFNAME"] == "eth1"
    assert environment["HOME"] == "/h"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize(("max_lag", "spins"), [(0, "2000"), (1, "0")])
def test_threads_spin_where_one_engine_computes_at_a_time(
    config: RunConfig, max_lag: int, spins: str
) -> None:
    tree = config_to_tree(config)
    run = parse_config(tree | {"run": tree["run"] | {"max_lag": max_lag}})
    for kind in ("rollout", "trainer"):
        assert service_environment(run, kind, {})["GOMP_SPINCOUNT"] == spins
    assert "GOMP_SPINCOUNT" not in service_environment(run, "reward", {})


HOST = Host("10.0.0.7", "eth1", range(30000, 30100))


def test_libraries_are_shown_the_interface_of_the_subnet() -> None:
    names = network_environment(HOST, {})
    for library in ("GLOO", "TP"):
        assert names[f"{library}_SOCKET_IFNAME"] == "eth1"
    for library in ("NCCL", "HCCL"):
        assert names[f"{library}_SOCKET_IFNAME"] == "=eth1"  # and not eth10
    assert names["HCCL_IF_IP"] == names["VLLM_HOST_IP"] == "10.0.0.7"
    assert names["HCCL_HOST_SOCKET_PORT_RANGE"] == "30000-30099"
    assert "MASTER_ADDR" not in names
    assert network_environment(HOST, names) == names
    assert network_environment(LOOPBACK, {"HOME": "/h"}) == {"GLOO_SOCKET_IFNAME": "lo"}


def test_a_launcher_names_no_interface_of_a_subnet(config: RunConfig) -> None:
    """Its own host may call the network differently; `trimaran serve` looks where it runs."""
    tree = json.loads(config.model_dump_json()) | {"network": {"subnet": "10.0.0.0/8"}}
    assert not network_environment(HOST, {}).keys() & service_environment(
        parse_config(tree), "trainer", {}
    )
    assert service_environment(config, "trainer", {})["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0,eth1"),
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker"),
        ("HCCL_SOCKET_IFNAME", "=eth0,eth1"),
        ("HCCL_SOCKET_IFNAME", "^=eth0"),
        ("HCCL_IF_IP", "10.0.0.7"),
        ("HCCL_NPU_SOCKET_PORT_RANGE", "61000-61050"),
    ],
)
def test_what_the_shell_says_of_the_network_wins(name: str, value: str) -> None:
    assert network_environment(HOST, {name: value})[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLOO_SOCKET_IFNAME", "eth"),  # gloo takes whole names
        ("NCCL_SOCKET_IFNAME", "ib"),
        ("NCCL_SOCKET_IFNAME", "^eth"),
        ("HCCL_SOCKET_IFNAME", "=eth10"),
        ("HCCL_SOCKET_IFNAME", "^=eth1"),
        ("HCCL_IF_IP", "10.0.0.8"),
        ("VLLM_HOST_IP", "127.0.0.1"),
    ],
)
def test_a_shell_that_contradicts_the_subnet_is_told_so(name: str, value: str) -> None:
    told = f"{name}={value}: network.subnet is on eth1 (10.0.0.7) of this host; unset {name}"
    with pytest.raises(InputError, match=re.escape(told)):
        network_environment(HOST, {name: value})
    network_environment(LOOPBACK, {name: value})


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("expandable_segments:True", ""),
        ("page_size:1g, expandable_segments:True", "page_size:1g"),
    ],
)
def test_an_engine_that_sleeps_is_not_given_the_segments_that_its_sleep_mode_refuses(
    config: RunConfig, given: str, left: str
) -> None:
    shell = {"PYTORCH_NPU_ALLOC_CONF": given}
    colocated = parse_config(config_to_tree(config) | {"run": {"pools": "colocated"}})
    found = {
        (one.run.pools, kind): service_environment(one, kind, shell)["PYTORCH_NPU_ALLOC_CONF"]
        for one in (config, colocated)
        for kind in ("rollout", "trainer")
    }
    assert found.pop(("colocated", "rollout")) == left
    assert set(found.values()) == {given}
    assert "PYTORCH_NPU_ALLOC_CONF" not in service_environment(colocated, "rollout", {})


def test_what_an_error_of_a_collective_does_is_left_to_torch(config: RunConfig) -> None:
    """Megatron and the engine do not look whether their collectives have failed, so there the
    process has to end; transfer groups set it for themselves, when they are made."""
    for kind in ("rollout", "trainer"):
        names = service_environment(config, kind, {})
        assert not [name for name in names if name.endswith("ASYNC_ERROR_HANDLING")]


def test_every_kind_has_an_address_and_a_server_and_no_server_is_without_a_kind(
    config: RunConfig,
) -> None:
    filled = fill_endpoints(config.model_copy(update={"endpoints": Endpoints()}))
    # A follower finds its replica in the run's store, and is found there.
    named = [kind for kind in KINDS if kind != "follower"]
    assert len({service_address(filled, kind, 0) for kind in named}) == len(named)
    servers = {path.parent.name for path in Path(services.__path__[0]).glob("**/server.py")}
    # The manager is no service of one run.
    assert servers == {kind.replace("-", "_") for kind in KINDS} | {"manager"}


def test_names_and_addresses(config: RunConfig) -> None:
    assert process_name("rollout", 1) == "rollout-1"
    assert process_name("weight-sync", 0) == "weight-sync"
    assert service_address(config, "reward", 0) == "127.0.0.1:7000"
    # A replica registers with weight sync, so that address is needed as well.
    with pytest.raises(InputError, match=r"endpoints\.weight_sync: missing"):
        service_address(config, "rollout", 0)
    for kind, index in (("rollout", 1), ("rollout", -1), ("weight-sync", 0), ("trainer", 0)):
        with pytest.raises(InputError, match=r"endpoints\.(rollout|weight_sync|trainer)"):
            service_address(config, kind, index)


def test_credentials_of_buckets_and_sinks_are_for_the_controller_alone(config: RunConfig) -> None:
    """The other services run foreign functions, or models' own code, and open no bucket."""
    names = {
        *("AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT_KEY"),
        *("WANDB_API_KEY", "SWANLAB_API_KEY", "MLFLOW_TRACKING_TOKEN", "TRACKIO_SPACE_ID"),
    }
    for kind in KINDS:
        found = names & service_environment(config, kind, dict.fromkeys(names, "s")).keys()
        assert found == (names if kind == "controller" else set())


def test_a_hubs_token_is_kept_from_who_runs_functions_of_others(config: RunConfig) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        found = {kind for kind in KINDS if name in service_environment(config, kind, {name: "s"})}
        assert found == set(KINDS) - {"reward", "environment"}


@pytest.mark.parametrize(
    ("section", "key", "place", "kinds"),
    [
        ("run", "checkpoints", "s3://b/runs", {"controller", "trainer"}),
        ("model", "source", "s3://b/model", {"controller", "trainer", "rollout", "follower"}),
        ("run", "checkpoints", "/shared/runs", {"controller"}),
        ("run", "payloads", "s3://b/payloads", {"controller"}),
    ],
)
def test_who_uses_a_bucket_has_its_credentials(
    config: RunConfig, section: str, key: str, place: str, kinds: set[str]
) -> None:
    changed = getattr(config, section).model_copy(update={key: place})
    config = config.model_copy(update={section: changed})
    shell = {"AWS_SECRET_ACCESS_KEY": "s"}
    found = {kind for kind in KINDS if service_environment(config, kind, shell).keys() & shell}
    assert found == kinds
