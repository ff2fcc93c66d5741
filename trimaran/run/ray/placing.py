"""What of Ray's nodes each process of a run takes, and where it may stand. Pure.

| process | takes | stands |
|---|---|---|
| controller, reward, weight sync | nothing | on the launcher's node while that lives |
| a trainer rank | one NPU or GPU; a CPU where it computes on the CPU | in a placement group with the other ranks |
| a replica | rollout.tensor_parallel of them, on one node | spread over the nodes |
| a replica on rollout.hosts hosts, and each of its followers | its share of them, on one node | in a placement group with the others, spread |

A node that is started with the resource `trimaran_rollout` or `trimaran_trainer` is kept for that:
where any node has it, replicas (ranks) stand only on such nodes. How much of it makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trimaran.config import RunConfig
from trimaran.host.device import DeviceName, Kind
from trimaran.run.ray.cluster import RAY_NAMES, Node, Where

SHARE = 0.001
"""The amount of a resource that says where, not how many."""
ACCELERATORS: tuple[Kind, ...] = ("npu", "cuda")
COMPUTING = ("trainer", "rollout")
ROLLING = ("rollout", "follower")
"""Kinds of processes that are a replica, or one host's part of it."""
ROLES = {"trainer": "trimaran_trainer", "rollout": "trimaran_rollout"}
"""Resources that keep a node for services of a kind."""


def device_kind(name: DeviceName, nodes: Sequence[Node]) -> Kind:
    """`auto` is what the nodes have: NPUs before GPUs before CPUs."""
    if name != "auto":
        return name
    for kind in ACCELERATORS:
        if any(node.resources.get(RAY_NAMES[kind]) for node in nodes):
            return kind
    return "cpu"


def kind_of(config: RunConfig, service: str, nodes: Sequence[Node]) -> Kind:
    """On which kind of device a service of this kind computes."""
    if service not in (*COMPUTING, *ROLLING):
        return "cpu"
    section = config.trainer if service == "trainer" else config.rollout
    return device_kind(section.device, nodes)


def device_name(address: str, slot: int) -> str:
    """As the manager's grants name a device whose number Ray chooses.

    Example: device_name("10.0.0.7", 3) == "10.0.0.7/3"
    """
    return f"{address}/{slot}"


def node_of(wish: Mapping[str, Any], replica: int, first: int = 0) -> str:
    """The address of the node on which the manager wants a replica; empty where it has said none.
    `wish`: what stands under `trimaran.run.runs.replicas_key`. `first`: of its devices, that with which one
    host's part begins."""
    wanted: Mapping[str, Sequence[str]] = wish.get("devices") or {}
    devices = wanted.get(str(replica), ())[first:]
    return devices[0].partition("/")[0] if devices and "/" in devices[0] else ""


def beside(address: str, nodes: Sequence[Node]) -> Where:
    """For what computes nothing: on this node while it lives."""
    here = any(node.address == address and not node.is_leaving for node in nodes)
    return Where({f"node:{address}": SHARE} if here else {})


def replica_place(
    config: RunConfig, nodes: Sequence[Node], taken: Mapping[str, int], wanted: str = ""
) -> Where:
    """The place of a replica on one host: on the node with the address `wanted`, or on one with the fewest of them.
    `taken`: those of the run by their node's id."""
    rollout = config.rollout
    amounts = _amounts(config, "rollout", rollout.tensor_parallel, nodes)
    fitting = [node for node in nodes if _fits(node, amounts, rollout.labels)]
    chosen = next((node for node in fitting if node.address == wanted), None)
    if chosen is None:
        chosen = min(fitting, key=lambda node: taken.get(node.node_id, 0), default=None)
    return Where(amounts, rollout.labels, chosen.node_id if chosen else "")


def replica_bundles(
    config: RunConfig, nodes: Sequence[Node], wish: Mapping[str, Any], replica: int
) -> list[dict[str, float]]:
    """The bundles of a replica on several hosts, one for each: on the node that the manager wants for it, or on any."""
    rollout = config.rollout
    amounts = _amounts(config, "rollout", rollout.devices_on_host, nodes)
    fitting = {node.address for node in nodes if _fits(node, amounts, rollout.labels)}
    starts = range(0, rollout.tensor_parallel, rollout.devices_on_host)
    wanted = [node_of(wish, replica, first) for first in starts]
    return [amounts | ({f"node:{one}": SHARE} if one in fitting else {}) for one in wanted]


def part_in(config: RunConfig, part: int, group: object, nodes: Sequence[Node]) -> Where:
    """The place of one host's process in its replica's placement group."""
    amounts = _amounts(config, "rollout", config.rollout.devices_on_host, nodes)
    return Where(amounts, group=group, bundle=part)


def trainer_bundles(config: RunConfig, nodes: Sequence[Node]) -> list[dict[str, float]]:
    """One for each tensor-parallel group where a node has room for it, so that it stands on one
    host; one for each rank otherwise."""
    trainer = config.trainer
    resource = RAY_NAMES.get(kind_of(config, "trainer", nodes), "CPU")
    widest = max((node.resources.get(resource, 0.0) for node in nodes), default=0.0)
    size = trainer.tensor_parallel if widest >= trainer.tensor_parallel else 1
    bundle = _amounts(config, "trainer", size, nodes)
    return [bundle] * (config.num_trainer_ranks // size)


def rank_in(
    config: RunConfig, rank: int, group: object, num_bundles: int, nodes: Sequence[Node]
) -> Where:
    """The place of a trainer rank in its placement group."""
    bundle = rank * num_bundles // config.num_trainer_ranks
    return Where(_amounts(config, "trainer", 1, nodes), group=group, bundle=bundle)


def _amounts(
    config: RunConfig, service: str, count: int, nodes: Sequence[Node]
) -> dict[str, float]:
    """Amounts of Ray's resources for `count` devices. A process on an accelerator takes no CPU from Ray's account: it would
    only find no room beside processes on the CPU."""
    resource = RAY_NAMES.get(kind_of(config, service, nodes), "CPU")
    role = ROLES[service]
    kept = {role: SHARE * count} if any(node.resources.get(role) for node in nodes) else {}
    return {resource: float(count)} | kept


def _fits(node: Node, amounts: Mapping[str, float], labels: Mapping[str, str]) -> bool:
    """If nothing else were there."""
    has_room = all(node.resources.get(name, 0.0) >= amount for name, amount in amounts.items())
    return has_room and not node.is_leaving and labels.items() <= node.labels.items()
