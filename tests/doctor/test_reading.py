"""What is read of a real system, where a case of `host_cases` gives the fact."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from commands.doctor.checks.addresses import check_addresses, read_addresses
from commands.doctor.checks.disks import check_places, read_place
from commands.doctor.checks.limits import read_limits
from commands.doctor.checks.memory import read_memory
from commands.doctor.checks.stores import check_store
from commands.doctor.checks.versions import load_matrix, read_versions
from commands.doctor.examine import examine
from commands.doctor.system import System
from tests.doctor.made import cpu_host, faults, npu_host, write, write_package
from tests.redis_server import RedisServer
from tests.tiny_disk import mounted
from trimaran.store import probe_server

ASK = "import os; from commands.doctor.checks.limits import read_limits; from commands.doctor.system import"
ASK += " System; print(read_limits(System(os.environ)).files)"


def test_this_host_is_read() -> None:
    """Whatever it is: each reader takes a real system."""
    findings = examine(System(os.environ), None)
    assert {"versions", "devices", "addresses", "ports", "limits", "tools", "preloads"} == {
        one.check for one in findings
    }
    found = read_versions(System(os.environ), load_matrix())
    assert found["python"] == platform.python_version()
    assert read_memory(System(os.environ)).total > 0


def test_the_limit_is_that_of_the_process() -> None:
    command = f"ulimit -Sn 123; exec {sys.executable} -c '{ASK}'"
    asked = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert asked.stdout.strip() == "123.0", asked.stderr


def test_shared_memory_is_what_its_file_system_has_left(tmp_path: Path) -> None:
    system = cpu_host(tmp_path / "root")
    (tmp_path / "root/dev/shm").rmdir()
    with mounted(tmp_path / "root/dev/shm", "20m"):
        assert read_limits(system).shared == 20 << 20
        assert faults(examine(system, None)) == {"limits/shared-memory"}


def test_a_full_disk_is_reported_with_what_it_has(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "4m") as folder:
        place = read_place(System(os.environ), folder / "runs/new", "checkpoints", wants=1 << 30)
        assert (place.has, place.kind, place.said) == (4 << 20, "tmpfs", "")
        assert faults(list(check_places([place], False))) == {"disks/room", "disks/volatile"}
        assert not list(folder.iterdir())


def test_the_first_package_on_the_path_counts(tmp_path: Path) -> None:
    system = npu_host(tmp_path)
    other = tmp_path / "other"
    write_package(other, "torch", "2.5.1")
    behind = System(system.variables, tmp_path, (*system.site, str(other / "site")))
    before = System(system.variables, tmp_path, (str(other / "site"), *system.site))
    assert read_versions(behind, load_matrix())["torch"] == "2.10.0+cpu"
    assert read_versions(before, load_matrix())["torch"] == "2.5.1"


def test_drivers_of_both_vendors_are_read(tmp_path: Path) -> None:
    system = npu_host(tmp_path)
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 1 UTC 2025\n"
    write(tmp_path, "proc/driver/nvidia/version", text)
    write_package(tmp_path, "nvidia-cuda-runtime", "13.0.96")
    found = read_versions(system, load_matrix())
    assert found["nvidia-driver"] == "570.86.15"
    assert (found["npu-driver"], found["cann"]) == ("26.0.rc1", "9.1.0")
    (finding,) = [one for one in examine(system, None) if one.fault == "mismatch"]
    assert finding.what.startswith("nvidia-driver 570.86.15: >=580 is needed")


def test_an_old_cgroup_limits_memory_as_well(tmp_path: Path) -> None:
    system = cpu_host(tmp_path)
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{8 << 30}\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{7 << 30}\n")
    memory = read_memory(system)
    assert (memory.total, memory.free) == (8 << 30, 1 << 30)


def test_swap_is_no_memory_for_training(tmp_path: Path) -> None:
    system = cpu_host(tmp_path)
    without = read_memory(system)
    with (tmp_path / "proc/meminfo").open("a") as meminfo:
        meminfo.write("SwapTotal:      268435456 kB\nSwapFree:       268435456 kB\n")
    assert read_memory(system) == without and without.total < 256 << 30


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"NCCL_SOCKET_IFNAME": "^lo"}, set()),
        ({"NCCL_SOCKET_IFNAME": "=l"}, {"addresses/no-interface"}),
        ({"NCCL_SOCKET_IFNAME": "l"}, set()),
        ({"GLOO_SOCKET_IFNAME": "l"}, {"addresses/no-interface"}),
        ({"HCCL_IF_IP": "203.0.113.9"}, {"addresses/foreign-address"}),
    ],
)
def test_interfaces_are_meant_as_each_library_means_them(
    variables: dict[str, str], expected: set[str], tmp_path: Path
) -> None:
    facts = read_addresses(cpu_host(tmp_path, **variables))
    assert faults(list(check_addresses(facts, None))) == expected


@pytest.mark.parametrize(
    ("settings", "options", "severity"),
    [
        ((), "", None),
        (("--appendonly", "no"), "", "error"),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "", "error"),
        (("--appendonly", "no"), "&durability=weak", "warning"),
    ],
)
def test_a_redis_server_is_asked_for_its_settings(
    settings: tuple[str, ...],
    options: str,
    severity: str | None,
    redis_program: str,
    tmp_path: Path,
) -> None:
    server = RedisServer(tmp_path / "redis", *settings).start()
    try:
        findings = list(check_store(asyncio.run(probe_server(server.url("doctor", options)))))
        with redis.Redis(port=server.port) as client:
            assert client.dbsize() == 0
    finally:
        server.kill()
    assert [one.severity for one in findings] == ([severity] if severity else [])
    assert all("append" in one.what and "config set appendonly yes" in one.fix for one in findings)


def test_a_wrong_password_is_reported_and_not_shown(redis_program: str, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        server.require("the-right-one")
        url = f"redis://:the-wrong-one@127.0.0.1:{server.port}/0"
        (finding,) = check_store(asyncio.run(probe_server(url)))
    finally:
        server.kill()
    assert finding.fault == "unreachable" and "password" in finding.what
    assert "the-wrong-one" not in str(finding)
