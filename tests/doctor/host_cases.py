"""How each fault of a host is made, and the words by which it is reported."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from commands.doctor.checks.addresses import Addresses, check_addresses
from commands.doctor.checks.devices import Devices, check_devices, read_devices
from commands.doctor.checks.limits import check_limits, read_limits
from commands.doctor.examine import examine
from commands.doctor.finding import Finding
from commands.doctor.system import System
from tests.doctor.made import (
    config,
    cpu_host,
    npu_host,
    without,
    write,
    write_limits,
    write_package,
    write_tool,
)
from trimaran.host.device import Kind
from trimaran.host.machine import read_machine
from trimaran.run.network import Interface

Made = list[Finding]
Case = tuple[Callable[[Path], Made], tuple[str, ...]]
TLS_C = 'static __thread char block[1 << 20] __attribute__((tls_model("initial-exec")));\n'
TLS_C += "char *use(int i) { return block + i; }\n"
INTERFACES = (
    Interface("lo", "127.0.0.1"),
    Interface("eth0", "192.168.1.4"),
    Interface("ib0", "10.7.0.4"),
)


def on(
    host: Callable[[Path], System], change: Callable[[Path], object] = lambda root: None
) -> Callable[[Path], Made]:
    """What is found on a healthy host that `change` has harmed."""

    def make(root: Path) -> Made:
        system = host(root)
        change(root)
        return examine(system, None)

    return make


def harmed_tool(name: str, script: str) -> Callable[[Path], Made]:
    return on(npu_host, lambda root: write_tool(root, name, script))


def variables(**given: str) -> Callable[[Path], Made]:
    return on(lambda root: npu_host(root, **given))


def unset(name: str) -> Callable[[Path], Made]:
    return on(lambda root: without(npu_host(root), name))


def removed(*names: str) -> Callable[[Path], Made]:
    def change(root: Path) -> None:
        for name in names:
            (root / name).rename(root / f"{name}.away")

    return on(npu_host, change)


def generic_torchvision(root: Path) -> None:
    write_package(root, "torch", "2.13.0+cpu")
    write_package(root, "torchvision", "0.28.0")


def static_tls(root: Path) -> None:
    """A library that wants more static TLS than is left, compiled here."""
    (root / "site/scikit_learn.libs").mkdir()
    (root / "tls.c").write_text(TLS_C)
    library = root / "site/scikit_learn.libs/libgomp-947d5fa1.so.1.0.0"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(root / "tls.c")]
    subprocess.run(command, check=True, timeout=60)


def closed(root: Path) -> Made:
    """Root may open every file, so the fact is given."""
    system = npu_host(root)
    machine = read_machine(system.variables, str(root / "dev/davinci[0-9]*"))
    facts = replace(read_devices(system, machine), closed=("/dev/davinci0",))
    return list(check_devices(facts, "npu", None))


def devices_of(
    root: Path, kind: Kind, given: Mapping[str, str], **sections: Mapping[str, object]
) -> Made:
    machine = read_machine(given, str(root / "dev/davinci[0-9]*"))
    facts = Devices(machine, frozenset(), (), ())
    return list(check_devices(facts, kind, config(root, 0, **sections)))


def graphs_with_queue(root: Path) -> Made:
    return devices_of(
        root,
        "npu",
        {"TASK_QUEUE_ENABLE": "2"},
        rollout={"eager": False, "device": "cpu", "engine": "transformers"},
        trainer={"device": "cpu"},
    )


def refused(root: Path) -> Made:
    return devices_of(root, "cpu", {}, trainer={"device": "cuda", "devices": [7]})


def named(
    given: Mapping[str, str], names: Mapping[str, str] | None = None, subnet: str = ""
) -> Callable[[Path], Made]:
    def make(root: Path) -> Made:
        facts = Addresses("node-1", names or {"node-1": "192.168.1.4"}, INTERFACES, given)
        of_run = config(root, network={"subnet": subnet}) if subnet else None
        return list(check_addresses(facts, of_run))

    return make


def on_two_hosts(root: Path) -> Made:
    of_run = config(root, rollout={"tensor_parallel": 4, "hosts": 2})
    return list(check_addresses(Addresses("node-1", {}, INTERFACES, {}), of_run))


def limited(**limits: str) -> Callable[[Path], Made]:
    def change(root: Path) -> None:
        write_limits(root, **{"files": "65536", **limits})
        (root / "sys/class/infiniband/mlx5_0").mkdir(parents=True)

    return on(npu_host, change)


def small_shm(root: Path) -> Made:
    """The room is given; `test_reading` reads it from a file system of its own."""
    facts = replace(read_limits(cpu_host(root)), shared=64 << 20, files=1 << 20)
    parallel = config(root, rollout={"tensor_parallel": 2, "replicas": 4})
    return list(check_limits(facts, "cpu", parallel))


GUIDE_TLS = "cannot allocate memory in static TLS block"
HOST_CASES: dict[str, Case] = {
    "versions/mismatch": (
        on(npu_host, lambda root: write_package(root, "torch", "2.9.0")),
        ("torch 2.9.0", "==2.10.0", "vllm-ascend 0.23.0"),
    ),
    "versions/absent": (
        removed("site/triton_ascend-0.dist-info"),
        ("triton-ascend is not installed", "==3.2.2"),
    ),
    "versions/build": (
        on(cpu_host, generic_torchvision),
        ("torchvision 0.28.0", "torch 2.13.0+cpu"),
    ),
    "preloads/no-allocator": (variables(LD_PRELOAD=""), ("no jemalloc",)),
    "preloads/static-tls": (on(cpu_host, static_tls), ("libgomp-947d5fa1.so.1.0.0", GUIDE_TLS)),
    "tools/npu-smi": (
        harmed_tool("npu-smi", "echo dcmi module initialize failed >&2; exit 1"),
        ("npu-smi info", "dcmi module initialize failed"),
    ),
    "tools/compiler": (
        harmed_tool(
            "clang++", "echo \"<stdin>:1:10: fatal error: 'cstdint' file not found\" >&2; exit 1"
        ),
        ("clang++", "fatal error: 'cstdint' file not found"),
    ),
    "tools/no-compiler": (removed("bin/g++", "bin/clang++"), ("g++, clang++",)),
    "devices/refused": (refused, ("trainer.device cuda", "no GPU is in sight")),
    "devices/harmful-variable": (
        variables(VLLM_ASCEND_ENABLE_NZ="1"),
        ("VLLM_ASCEND_ENABLE_NZ=1", "unset it"),
    ),
    "devices/nodes": (removed("dev/hisi_hdc"), ("2 NPU dies", "/dev/hisi_hdc")),
    "devices/permission": (closed, ("/dev/davinci0", "cannot be opened")),
    "devices/mounts": (removed("usr/local/dcmi"), ("/usr/local/dcmi",)),
    "devices/environment": (
        unset("ATB_HOME_PATH"),
        ("ATB is not set up in this shell", "ATB_HOME_PATH"),
    ),
    "devices/cut-short": (
        variables(ASCEND_RT_VISIBLE_DEVICES="0, 1"),
        ("ASCEND_RT_VISIBLE_DEVICES=0, 1", "names 2", "sees 1"),
    ),
    "devices/task-queue": (graphs_with_queue, ("TASK_QUEUE_ENABLE=2", "graphs")),
    "devices/old-switch": (variables(VLLM_USE_V1="0"), ("VLLM_USE_V1=0",)),
    "addresses/localhost": (
        named({"MASTER_ADDR": "localhost"}),
        ("MASTER_ADDR is localhost",),
    ),
    "addresses/own-name": (named({}, {"node-1": "127.0.1.1"}), ("node-1", "127.0.1.1")),
    "addresses/no-interface": (
        named({"GLOO_SOCKET_IFNAME": "eth9"}),
        ("GLOO_SOCKET_IFNAME=eth9", "eth0 192.168.1.4"),
    ),
    "addresses/other-interface": (
        named({"HCCL_SOCKET_IFNAME": "eth0"}, subnet="10.0.0.0/8"),
        ("HCCL_SOCKET_IFNAME=eth0", "10.7.0.4"),
    ),
    "addresses/foreign-address": (
        named({"HCCL_IF_IP": "10.7.0.5"}),
        ("HCCL_IF_IP=10.7.0.5", "ib0 10.7.0.4"),
    ),
    "addresses/outside-subnet": (named({}, subnet="172.16.0.0/12"), ("172.16.0.0/12", "eth0")),
    "addresses/no-subnet": (on_two_hosts, ("rollout.hosts is 2",)),
    "ports/outgoing-overlap": (
        on(
            cpu_host,
            lambda root: write(root, "proc/sys/net/ipv4/ip_local_port_range", "1024 65535"),
        ),
        ("1024 to 65535", "20000 to 32767"),
    ),
    "ports/hccl-fixed": (
        unset("HCCL_HOST_SOCKET_PORT_RANGE"),
        ("HCCL_HOST_SOCKET_PORT_RANGE is not set",),
    ),
    "limits/nofile": (limited(files="1024"), ("1024 files", "32768")),
    "limits/memlock": (limited(locked="8388608"), ("8 MiB", "mlx5_0")),
    "limits/nproc": (
        on(cpu_host, lambda root: write(root, "sys/fs/cgroup/pids.max", "256")),
        ("256 processes", "768"),
    ),
    "limits/shared-memory": (small_shm, ("/dev/shm", "64 MiB")),
    "limits/no-huge-pages": (
        on(
            cpu_host,
            lambda root: write(
                root, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"
            ),
        ),
        ("transparent huge pages",),
    ),
}
"""check/fault -> what makes it, and words of its text."""
