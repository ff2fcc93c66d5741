"""What each process of a run takes of which node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.configs import configure as least
from trimaran.config import RunConfig
from trimaran.run.ray.cluster import Node
from trimaran.run.ray.placing import (
    beside,
    device_kind,
    device_name,
    kind_of,
    node_of,
    part_in,
    rank_in,
    replica_bundles,
    replica_place,
    trainer_bundles,
)

CPUS = (Node("n1", "10.0.0.1", {"CPU": 4.0}), Node("n2", "10.0.0.2", {"CPU": 4.0}))
NPUS = tuple(Node(f"n{i}", f"10.0.0.{i}", {"CPU": 64.0, "NPU": 8.0}) for i in (1, 2))


def configure(trainer: dict[str, Any] | None = None, **rollout: Any) -> RunConfig:
    return least(trainer=trainer or {}, rollout=rollout)


def test_auto_is_the_best_that_a_node_has() -> None:
    assert device_kind("auto", CPUS) == "cpu"
    assert device_kind("auto", [*CPUS, Node("n3", "10.0.0.3", {"GPU": 1.0})]) == "cuda"
    assert device_kind("auto", [*CPUS, *NPUS]) == "npu"
    assert device_kind("cpu", NPUS) == "cpu"


def test_a_replica_takes_its_devices_of_one_node_and_no_cpu() -> None:
    where = replica_place(configure(tensor_parallel=4), NPUS, {})
    assert where.resources == {"NPU": 4.0} and where.node_id == "n1"


def test_replicas_spread_and_the_managers_word_counts_before_that() -> None:
    config = configure()
    assert replica_place(config, CPUS, {}).node_id == "n1"
    assert replica_place(config, CPUS, {"n1": 1}).node_id == "n2"
    assert replica_place(config, CPUS, {"n2": 5}, wanted="10.0.0.2").node_id == "n2"
    assert replica_place(config, CPUS, {"n1": 1}, wanted="10.0.0.9").node_id == "n2"


def test_no_place_is_chosen_on_a_node_that_leaves_or_is_too_small_or_is_another() -> None:
    small, leaving = Node("n3", "a", {"CPU": 1.0}), Node("n4", "b", {"CPU": 8.0}, {}, True)
    assert replica_place(configure(tensor_parallel=2), [small, leaving], {}).node_id == ""
    zone = Node("n5", "c", {"CPU": 8.0}, {"zone": "a"})
    where = replica_place(configure(labels={"zone": "a"}), [*CPUS, zone], {"n5": 9})
    assert (where.node_id, where.labels) == ("n5", {"zone": "a"})


def test_a_node_that_is_kept_for_a_role_is_taken_by_it_alone() -> None:
    kept = Node("n3", "10.0.0.3", {"CPU": 4.0, "trimaran_rollout": 1.0})
    where = replica_place(configure(), [*CPUS, kept], {"n3": 3})
    assert where.node_id == "n3" and 0 < where.resources["trimaran_rollout"] < 0.01
    assert trainer_bundles(configure(), [*CPUS, kept]) == [{"CPU": 1.0}]


@pytest.mark.parametrize(
    ("wide", "bundles"), [(8.0, [{"NPU": 4.0}] * 2), (2.0, [{"NPU": 1.0}] * 8)]
)
def test_a_tensor_parallel_group_stands_on_one_host_where_it_fits(
    wide: float, bundles: list[dict[str, float]]
) -> None:
    nodes = [Node(f"n{i}", f"10.0.0.{i}", {"NPU": wide}) for i in range(8)]
    config = configure({"tensor_parallel": 4, "data_parallel": 2})
    assert trainer_bundles(config, nodes) == bundles
    places = [rank_in(config, rank, "group", len(bundles), nodes) for rank in range(8)]
    assert [place.bundle for place in places] == [rank * len(bundles) // 8 for rank in range(8)]
    assert all(place.resources == {"NPU": 1.0} and place.group == "group" for place in places)


def test_what_computes_nothing_stands_beside_the_launcher_while_its_node_stays() -> None:
    assert list(beside("10.0.0.1", CPUS).resources) == ["node:10.0.0.1"]
    leaving = [Node("n1", "10.0.0.1", {"CPU": 4.0}, is_leaving=True)]
    assert beside("10.0.0.1", leaving).resources == {}


def test_the_managers_wish_names_a_node() -> None:
    wish = {"wanted": 2, "devices": {"0": [device_name("10.0.0.7", 3)], "1": ["3"], "2": []}}
    assert [node_of(wish, index) for index in range(4)] == ["10.0.0.7", "", "", ""]
    assert node_of({"wanted": 1}, 0) == ""


def test_the_parts_of_a_replica_stand_where_the_manager_wants_each_or_anywhere() -> None:
    config = configure(tensor_parallel=16, hosts=2)
    devices = [device_name(f"10.0.0.{node}", slot) for node in (2, 1) for slot in range(8)]
    wish = {"devices": {"0": devices}}
    first, second = replica_bundles(config, NPUS, wish, 0)
    assert first.keys() == {"NPU", "node:10.0.0.2"} and first["NPU"] == 8.0
    assert second.keys() == {"NPU", "node:10.0.0.1"} and 0 < second["node:10.0.0.1"] < 0.01
    assert replica_bundles(config, NPUS, wish, 1) == [{"NPU": 8.0}] * 2
    assert replica_bundles(config, NPUS, {}, 0) == [{"NPU": 8.0}] * 2
    leaving = [NPUS[0], Node("n2", "10.0.0.2", {"NPU": 8.0}, is_leaving=True)]
    assert replica_bundles(config, leaving, wish, 0)[0] == {"NPU": 8.0}
    assert kind_of(config, "follower", NPUS) == "npu"


def test_a_part_takes_its_share_of_the_replicas_group() -> None:
    where = part_in(configure(tensor_parallel=16, hosts=2), 1, "group", NPUS)
    assert (where.resources, where.group, where.bundle) == ({"NPU": 8.0}, "group", 1)
