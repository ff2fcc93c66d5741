"""The nodes of a Ray cluster as pools, which come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from services.manager.scheduling.needs import YES
from services.manager.scheduling.pools import Pool
from trimaran.errors import DeadlineError, UnavailableError
from trimaran.host.call_thread import CallThread
from trimaran.host.device import Kind
from trimaran.run.ray.cluster import RAY_NAMES, Cluster, Node
from trimaran.run.ray.placing import ROLES, device_name

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
HEAD_SECONDS = 30.0
"""For Ray's head to answer."""
RAY_LABELS = "ray.io/"


class RayPools:
    """Example:
    pools = RayPools(Cluster("auto"))
    first = await pools.open()
    await pools.follow(manager.use_pools)
    """

    def __init__(self, cluster: Cluster, look_seconds: float = LOOK_SECONDS) -> None:
        self._cluster, self._look_seconds = cluster, look_seconds
        self._head = CallThread("Ray's head")

    async def open(self) -> tuple[Pool, ...]:
        """Those that are there. Raises InputError without Ray, UnavailableError without a cluster."""
        await self._head.wait(self._cluster.connect, HEAD_SECONDS)
        return await self._look()

    async def follow(self, use: Callable[[Sequence[Pool]], None]) -> None:
        """For ever. While the head of the cluster is away, what was last seen stays."""
        while True:
            try:
                use(await self._look())
            except (UnavailableError, DeadlineError) as error:
                logger.warning("the nodes stay as they were seen: %s", error)
            await asyncio.sleep(self._look_seconds)

    async def _look(self) -> tuple[Pool, ...]:
        return pools_of(await self._head.wait(self._cluster.nodes, HEAD_SECONDS))


def pools_of(nodes: Sequence[Node]) -> tuple[Pool, ...]:
    """A pool for each kind of device of each node that stays: NPUs, GPUs, and a slot for each CPU.
    Runs choose them by the node's labels (`ray start --labels`)."""
    pools: list[Pool] = []
    for node in sorted(nodes, key=lambda node: node.address):
        if node.is_leaving:
            continue
        for kind, resource in _KINDS.items():
            count = int(node.resources.get(resource, 0))
            names = tuple(device_name(node.address, slot) for slot in range(count))
            if names:
                pools.append(Pool(f"{node.address}-{kind}", kind, names, _labels(node)))
    return tuple(pools)


_KINDS: Mapping[Kind, str] = {**RAY_NAMES, "cpu": "CPU"}


def _labels(node: Node) -> dict[str, str]:
    own = {k: v for k, v in node.labels.items() if not k.startswith(RAY_LABELS)}
    return own | {role: YES for role in ROLES.values() if node.resources.get(role)}
