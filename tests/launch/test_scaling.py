"""How many replicas: never fewer than the least number, never more than the most."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from commands.launch.local.endpoints import fill_endpoints
from commands.launch.run_services import added_replica
from commands.launch.scaling import Scaling
from commands.launch.service_process import ServiceProcess
from trimaran.config import RunConfig, parse_config
from trimaran.run.network import LOOPBACK


def configure(device: str = "cpu", **rollout: Any) -> RunConfig:
    return fill_endpoints(
        parse_config(
            {
                "model": {"path": "m"},
                "data": {"train": "d"},
                "reward": {"rules": {"exact_match": 1}},
                "rollout": {"device": device, "replicas": 2, "max_replicas": 4, **rollout},
            }
        )
    )


class FakeProcesses:
    def __init__(self, *names: str) -> None:
        self.services = {n: ServiceProcess(n, (), {}, Path(n)) for n in ("controller", *names)}
        self.added: list[ServiceProcess] = []
        self.removed: list[str] = []
        self.absent: set[str] = set()

    def can_add(self, name: str) -> bool:
        return name not in self.absent

    async def add(self, service: ServiceProcess) -> None:
        self.services[service.name] = service
        self.added.append(service)

    async def remove(self, name: str) -> None:
        del self.services[name]
        self.removed.append(name)


async def scale(
    config: RunConfig, processes: FakeProcesses, notes: list[str], *wishes: dict[str, Any]
) -> None:
    def make_replica(index: int, devices: tuple[str, ...]) -> list[ServiceProcess]:
        address = LOOPBACK.free_address()
        return [added_replica(config, Path("/run"), index, address, devices)]

    scaling = Scaling(config, make_replica, cast(Any, processes), notes.append)
    for wish in wishes:
        await scaling.scale(wish)


def make_pair(index: int, devices: tuple[str, ...]) -> list[ServiceProcess]:
    """A replica on two hosts."""
    names = f"rollout-{index}", f"follower-{index}"
    return [ServiceProcess(name, (), {}, Path(name)) for name in names]


@pytest.mark.parametrize(
    ("before", "wanted", "added", "removed"),
    [
        (2, 3, ["rollout-2"], []),
        (2, 9, ["rollout-2", "rollout-3"], []),
        (4, 0, [], ["rollout-3", "rollout-2"]),
        (3, 3, [], []),
    ],
)
async def test_the_next_index_joins_and_the_highest_leaves(
    before: int, wanted: int, added: list[str], removed: list[str]
) -> None:
    processes = FakeProcesses(*(f"rollout-{i}" for i in range(before)))
    await scale(configure(), processes, [], {"wanted": wanted})
    assert [service.name for service in processes.added] == added
    assert processes.removed == removed


async def test_a_gap_is_filled_first_and_the_addresses_are_apart() -> None:
    processes = FakeProcesses("rollout-0", "rollout-1", "rollout-3")
    await scale(configure(max_replicas=5), processes, [], {"wanted": 5})
    assert [service.name for service in processes.added] == ["rollout-2", "rollout-4"]
    assert len({service.address for service in processes.added}) == 2
    for service in processes.added:
        assert service.command[-2:] == ("--address", service.address)
        assert service.expendable


async def test_on_an_accelerator_a_replica_gets_the_devices_that_the_record_gives() -> None:
    processes = FakeProcesses("rollout-0", "rollout-1")
    wish = {"wanted": 3, "devices": {"0": ["0", "1"], "1": ["2", "3"], "2": ["4", "5"]}}
    await scale(configure("cuda", tensor_parallel=2), processes, [], wish)
    [added] = processes.added
    assert added.environment["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert added.environment["TRIMARAN_PLACED"] == "rollout-2"


async def test_who_has_devices_stays_or_joins_whatever_its_index() -> None:
    processes = FakeProcesses("rollout-0", "rollout-1", "rollout-2")
    wish = {"wanted": 3, "devices": {"0": [], "1": [], "3": []}}
    await scale(configure(), processes, [], wish)
    assert (processes.removed, [s.name for s in processes.added]) == (["rollout-2"], ["rollout-3"])


async def test_a_wish_that_names_replicas_knows_the_bounds() -> None:
    processes = FakeProcesses("rollout-0", "rollout-1")
    wish = {"wanted": 6, "devices": {str(index): list[str]() for index in range(6)}}
    await scale(configure(), processes, [], wish, {"wanted": 1, "devices": {"5": []}})
    assert sorted(processes.services) == ["controller", "rollout-5"]


async def test_without_devices_none_joins_and_that_is_reported_once() -> None:
    processes, notes = FakeProcesses("rollout-0", "rollout-1"), list[str]()
    wish: dict[str, object] = {"wanted": 3}
    await scale(configure("cuda"), processes, notes, wish, wish)
    assert not processes.added
    assert notes == [
        "a replica cannot be added: rollout-2: 0 cuda devices are given (none), and it needs 1"
        " (rollout.tensor_parallel)"
    ]


@pytest.mark.parametrize("absent", ["rollout-2", "follower-2"])
@pytest.mark.parametrize(
    "wish", [{"wanted": 3}, {"wanted": 3, "devices": {"0": [], "1": [], "2": []}}]
)
async def test_a_replica_on_several_hosts_is_added_once_all_of_them_are_there(
    wish: dict[str, Any], absent: str
) -> None:
    config = configure(tensor_parallel=2, hosts=2, max_replicas=3)
    processes = FakeProcesses("rollout-0", "rollout-1")
    processes.absent = {absent}
    scaling = Scaling(config, make_pair, cast(Any, processes), lambda _: None)
    await scaling.scale(wish)
    assert not processes.added
    processes.absent = set()
    await scaling.scale(wish)
    assert [service.name for service in processes.added] == ["rollout-2", "follower-2"]


async def test_a_replica_of_which_one_host_cannot_be_started_is_taken_back_and_tried_again() -> (
    None
):
    class Refusing(FakeProcesses):
        refuses = True

        async def add(self, service: ServiceProcess) -> None:
            if service.name.startswith("follower") and self.refuses:
                raise OSError("no such host")
            await super().add(service)

    processes, notes = Refusing("rollout-0", "rollout-1"), list[str]()
    scaling = Scaling(configure(), make_pair, cast(Any, processes), notes.append)
    await scaling.scale({"wanted": 3})
    assert processes.removed == ["rollout-2"]
    assert notes == ["a replica cannot be added: no such host"]
    processes.refuses = False
    await scaling.scale({"wanted": 3})
    assert "follower-2" in processes.services
