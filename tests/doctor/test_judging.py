"""Where the same facts mean something else: in a subnet, on another kind of device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commands.doctor.checks.addresses import Addresses, check_addresses
from commands.doctor.checks.limits import GIB, check_limits, read_limits
from commands.doctor.checks.memory import needs_of
from commands.doctor.examine import examine
from commands.doctor.finding import Finding, Severity
from tests.doctor.host_cases import INTERFACES, devices_of
from tests.doctor.made import config, cpu_host, faults, npu_host, without
from tests.doctor.run_cases import filled


def in_subnet(root: Path, **variables: str) -> list[Finding]:
    facts = Addresses("node-1", {}, INTERFACES, variables)
    return list(check_addresses(facts, config(root, network={"subnet": "10.0.0.0/8"})))


@pytest.mark.parametrize(
    ("variable", "value", "fault", "fix"),
    [
        # Not the first interface's.
        ("MASTER_ADDR", "localhost", "localhost", "export MASTER_ADDR=10.7.0.4"),
        ("MASTER_ADDR", "127.0.0.1", "localhost", "export MASTER_ADDR=10.7.0.4"),
        ("GLOO_SOCKET_IFNAME", "eth0", "other-interface", "unset GLOO_SOCKET_IFNAME"),
        ("HCCL_IF_IP", "192.168.1.4", "other-interface", "unset HCCL_IF_IP"),
        ("GLOO_SOCKET_IFNAME", "eth9", "no-interface", "export GLOO_SOCKET_IFNAME=ib0"),
    ],
)
def test_in_a_subnet_what_names_another_interface_is_one_error(
    variable: str, value: str, fault: str, fix: str, tmp_path: Path
) -> None:
    (finding,) = in_subnet(tmp_path, **{variable: value})
    assert (finding.severity, finding.fault) == (Severity.ERROR, fault)
    assert finding.fix.startswith(fix)


def test_in_a_subnet_its_own_interface_and_address_are_right(tmp_path: Path) -> None:
    assert not in_subnet(tmp_path, GLOO_SOCKET_IFNAME="ib0", HCCL_IF_IP="10.7.0.4")


def test_where_the_kernel_lists_no_interfaces_nothing_is_said_of_them() -> None:
    facts = Addresses("node-1", {}, (), {"GLOO_SOCKET_IFNAME": "eth9", "HCCL_IF_IP": "10.7.0.4"})
    assert not list(check_addresses(facts, None))


def test_a_run_on_one_machine_may_have_its_name_on_loopback(tmp_path: Path) -> None:
    facts = Addresses("node-1", {"node-1": "127.0.1.1"}, INTERFACES, {})
    assert not list(check_addresses(facts, config(tmp_path)))
    (finding,) = check_addresses(facts, None)  # a host without a purpose
    assert finding.fault == "own-name"
    assert finding.fix == "sed -i '1i 192.168.1.4 node-1' /etc/hosts"


def test_variables_of_npus_mean_nothing_elsewhere(tmp_path: Path) -> None:
    given = {"TASK_QUEUE_ENABLE": "2", "VLLM_ASCEND_ENABLE_NZ": "1", "RANK_TABLE_FILE": "x"}
    run = {"rollout": {"eager": False, "device": "cpu"}, "trainer": {"device": "cpu"}}
    assert not devices_of(tmp_path, "cpu", given, **run)


def test_what_a_placement_says_as_well_is_reported_once(tmp_path: Path) -> None:
    pools = {"rollout": {"device": "npu"}, "trainer": {"device": "npu"}}
    findings = devices_of(tmp_path, "npu", {"RANK_TABLE_FILE": "x"}, **pools)
    reported = [one.fault for one in findings if "RANK_TABLE_FILE" in one.what]
    assert reported == ["harmful-variable"]
    assert "refused" in {one.fault for one in findings}  # there are no dies


def test_files_grow_with_the_run(tmp_path: Path) -> None:
    facts = replace(read_limits(cpu_host(tmp_path)), files=1024, shared=1 << 40)
    assert not list(check_limits(facts, "cpu", config(tmp_path, rollout={"replicas": 4})))
    large = config(tmp_path, rollout={"replicas": 64, "tensor_parallel": 4})
    (finding,) = check_limits(facts, "cpu", large)
    assert finding.fix.startswith("ulimit -n 2592")


def test_of_a_run_over_several_hosts_one_replica_counts_here(tmp_path: Path) -> None:
    alone = needs_of(config(tmp_path, 10, rollout={"replicas": 4}), "cuda")
    spread = config(tmp_path, 10, rollout={"replicas": 4}, network={"subnet": "10.0.0.0/8"})
    assert sum(alone.values()) == 10 * 4 + 10 + GIB  # and a reward worker
    assert sum(needs_of(spread, "cuda").values()) == 10


def test_of_a_run_over_several_hosts_a_host_needs_what_its_own_devices_need(tmp_path: Path) -> None:
    trainer, rollout = {"device": "npu"}, {"device": "cpu"}
    alone = config(tmp_path, trainer=trainer, rollout=rollout)
    subnet = {"subnet": "10.0.0.0/8"}
    spread = config(tmp_path, trainer=trainer, rollout=rollout, network=subnet)
    host = cpu_host(tmp_path / "host")
    assert "devices/refused" in faults(examine(host, alone, is_start=True))
    assert not {name for name in faults(examine(host, spread)) if "addresses/" not in name}
    # There is no torch_npu here.
    with_dies = npu_host(tmp_path / "dies")
    assert "devices/refused" in faults(examine(with_dies, spread, is_start=True))


def test_a_rank_needs_what_the_plan_knows_and_vllm_its_share(tmp_path: Path) -> None:
    assert not filled(130, 170)(tmp_path)
    (finding,) = filled(100, 170)(tmp_path)
    assert "trainer 0 takes" in finding.what  # 7.6e9 weights, gradients and moments
    assert not filled(130, 86, memory_fraction=0.42)(tmp_path)
    assert not filled(130, 15, engine="transformers")(tmp_path)
    (finding,) = filled(130, 14, engine="transformers")(tmp_path)
    assert "rollout 0 takes 14.2 GiB" in finding.what
    assert not filled()(tmp_path)  # they do not report it


def test_what_a_run_refuses_is_not_reported_of_the_shell_as_well(tmp_path: Path) -> None:
    system = without(npu_host(tmp_path), "ASCEND_HOME_PATH", "ATB_HOME_PATH")
    reported = [one.what.split()[0] for one in examine(system, None) if one.fault == "environment"]
    assert reported == ["CANN", "ATB"]
    run = config(tmp_path, rollout={"device": "npu"}, trainer={"device": "npu"})
    assert not [one for one in examine(system, run) if one.fault == "environment"]
