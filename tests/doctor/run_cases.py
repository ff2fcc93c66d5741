"""How each fault of a run on its hosts is made, and the words by which it is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from commands.doctor.checks.disks import WrittenFolder, check_places
from commands.doctor.checks.stores import check_store
from commands.doctor.examine import examine
from commands.doctor.hosts import Link, Other, ask_host, check_host, check_links, measure_links
from commands.doctor.runs import check_gpus, check_run_by
from tests.doctor.host_cases import Case, Made
from tests.doctor.made import config, cpu_host, write, write_meminfo
from tests.trimaran.model.memory.models import QWEN25_7B
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.host.machine import GpuMemory
from trimaran.model.memory.plan import make_plan
from trimaran.run.network import LOOPBACK, split
from trimaran.run.placement import Placement, PoolDevices
from trimaran.store import ServerFacts, probe_server
from trimaran.trust.access import Trust

TRUST = Trust("a-token-of-a-test")
GIB = 1 << 30
GOOD = WrittenFolder("runs", "checkpoints", wants=1.0, has=2.0, said="", seconds=0.001, kind="ext4")


def refusing(of_run: RunConfig) -> None:
    raise InputError("rollout.max_tokens: 9000 is more than the 512 positions of the model")


def refused(root: Path) -> Made:
    return list(check_run_by(refusing, config(root)))


def filled(*free: int, **rollout: object) -> Callable[[Path], Made]:
    """Two GPUs of 200 GiB, the first for the trainer's rank of Qwen2.5-7B, the other for a replica; and a replica on
    one that is known by its UUID."""

    def make(root: Path) -> Made:
        pools = {
            "trainer": PoolDevices("cuda", (("0",),)),
            "rollout": PoolDevices("cuda", (("1",), ("GPU-8932f937",))),
        }
        gpus = [GpuMemory(200 * GIB, each * GIB) for each in free]
        plan = make_plan(
            config(root, rollout=rollout), QWEN25_7B, trains_on_host=False, rolls_on_host=False
        )
        return list(check_gpus(Placement(pools), plan, gpus))

    return make


def large_model(total: int, free: int) -> Callable[[Path], Made]:
    """140 GB of weights, and so many kB of memory."""

    def make(root: Path) -> Made:
        system = cpu_host(root)
        write_meminfo(root, total, free)
        size = 140 * 10**9
        # On the disk that this test runs on there may be less room than its checkpoints want.
        run = config(root, size, trainer={"device": "cpu"})
        return [one for one in examine(system, run) if one.check != "disks"]

    return make


def no_folder(root: Path) -> Made:
    """A file is where the run's folder should be made."""
    system = cpu_host(root)
    folder = Path("/proc/trimaran-runs")  # nothing may write there, root neither
    return examine(system, config(root, run={"folder": str(folder)}))


def no_room(root: Path) -> Made:
    system = cpu_host(root)
    run = config(root, run={"payloads": str(root / "payloads"), "payload_quota_gib": 1 << 29})
    return examine(system, run)


def place(**facts: object) -> Callable[[Path], Made]:
    return lambda root: list(check_places([replace(GOOD, **facts)], has_redis=False))  # pyright: ignore


def mounted_as(kind: str) -> Callable[[Path], Made]:
    def make(root: Path) -> Made:
        system = cpu_host(root)
        mounts = f"/dev/sda1 / ext4 rw 0 0\nserver:/export {root} {kind} rw 0 0\n"
        write(root, "proc/self/mounts", mounts)
        return examine(system, config(root))

    return make


def free_port() -> int:
    return split(LOOPBACK.free_address())[1]


def no_store(root: Path) -> Made:
    return list(check_store(asyncio.run(probe_server(f"redis://127.0.0.1:{free_port()}/0"))))


def store(**facts: object) -> Callable[[Path], Made]:
    good = ServerFacts("redis://127.0.0.1:6379/0 (trimaran)", "", "", "appendonly yes", 0.0001)
    return lambda root: list(check_store(replace(good, **facts)))  # pyright: ignore


def no_host(root: Path) -> Made:
    asked = asyncio.run(ask_host(f"127.0.0.1:{free_port()}", TRUST, None))
    assert not asked.findings
    return list(check_host(asked, {}))


def other(here: dict[str, str], **facts: object) -> Callable[[Path], Made]:
    reported = Other("10.0.0.2:7990", versions={"python": "3.11.2"})
    reported = replace(reported, **facts)  # pyright: ignore
    return lambda root: list(check_host(reported, here, "/models/a", 5))


def broken_link(root: Path) -> Made:
    members = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    return list(check_links(asyncio.run(measure_links(members, TRUST))))[:1]


def linked(*links: Link, size: float = 0, timeout: float = 0) -> Callable[[Path], Made]:
    return lambda root: list(check_links(links, size, timeout))


def link(start: str, end: str, speed: float = 1e9, seconds: float = 0.0001) -> Link:
    return Link(start, end, seconds, speed)


SAME = {"python": "3.11.2"}
RUN_CASES: dict[str, Case] = {
    "run/refused": (refused, ("rollout.max_tokens: 9000",)),
    "run/device-in-use": (
        filled(200, 169),
        ("GPU 1 has 169 GiB free of 200 GiB", "rollout 0 takes 170 GiB"),
    ),
    "memory/too-little": (large_model(64 << 20, 60 << 20), ("64 GiB", "moments")),
    "memory/in-use": (large_model(4 << 30, 1 << 20), ("1 GiB are free",)),
    "disks/unwritable": (no_folder, ("/proc/trimaran-runs", "cannot be written")),
    "disks/room": (no_room, ("payloads", "free", "may take 5.37e+08 GiB")),
    "disks/slow-fsync": (place(seconds=0.3), ("300 ms",)),
    "disks/volatile": (mounted_as("tmpfs"), ("lies in memory (tmpfs)",)),
    "disks/store-over-network": (mounted_as("nfs4"), ("network file system (nfs4)",)),
    "store/unreachable": (no_store, ("redis://127.0.0.1", "connecting")),
    "store/not-durable": (
        store(weakness="appendonly is no, not yes"),
        ("appendonly is no, not yes",),
    ),
    "store/slow": (store(seconds=0.5), ("500 ms",)),
    "hosts/unreachable": (no_host, ("127.0.0.1:", "refused")),
    "hosts/clock": (
        other(SAME, ahead=-90.0, within=0.1, model_bytes=5),
        ("90 s behind", "10.0.0.2"),
    ),
    "hosts/different-versions": (
        other(SAME | {"torch": "2.10.0"}, model_bytes=5),
        ("torch none", "2.10.0 on this host"),
    ),
    "hosts/no-model": (other(SAME), ("/models/a holds no weights", "5 bytes")),
    "links/broken": (broken_link, ("127.0.0.1:", "refused")),
    "links/too-slow": (
        linked(link("a", "b"), size=140e9, timeout=120),
        ("a to b carries 1 GB/s", "140 s", "120 s"),
    ),
    "links/uneven": (
        linked(link("a", "b"), link("b", "a"), link("a", "c", 1e8)),
        ("a to c", "0.1 GB/s"),
    ),
    "links/far": (linked(link("a", "b", seconds=0.2)), ("from b to a", "200 ms")),
}
"""check/fault -> what makes it, and words of its text."""
