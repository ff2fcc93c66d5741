"""The few calls of Ray that we use; the only file that imports Ray, and only when it is used.

Nothing of a run travels through Ray but orders to start, reports and log lines. What is given to
an actor when it is made lies in Ray's own store, so secrets go only through calls, which do not.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from trimaran.errors import InputError, UnavailableError
from trimaran.host.device import Kind

NAMESPACE = "trimaran"
ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Ray's own; `--ray-address` sets it, and launchers inherit it."""
RAY_NAMES: Mapping[Kind, str] = {"npu": "NPU", "cuda": "GPU"}
"""What Ray calls these devices."""
RECONNECT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
RECONNECT_SECONDS = "86400"
"""For a head that comes back. Ray's own 60 s end the process that waits."""
MISSING = (
    "--launcher ray: Ray is not installed; install it on every node: pip install 'trimaran[ray]'"
)


P = ParamSpec("P")
T = TypeVar("T")


class ActorLostError(Exception):
    """The actor is dead."""


class ActorSilentError(Exception):
    """The actor cannot be reached at the moment."""


@dataclass(frozen=True, slots=True)
class Node:
    """Example: Node("4b79…", "10.0.0.7", {"CPU": 64.0, "NPU": 8.0}, {"zone": "a"})"""

    node_id: str
    """Names this life of the node: a host that was down comes back with another one."""
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    is_leaving: bool = False
    """It has said that it will be gone soon (drained)."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where an actor may stand, and what of the node it takes.

    Example: Where(resources={"NPU": 4}, labels={"zone": "a"})
    """

    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    node_id: str = ""
    """Preferred: where it has no room, another one."""
    group: Any = None
    """A placement group, and which of its bundles."""
    bundle: int = 0


def ray_address() -> str:
    """Where Ray's head is; `auto`: that of the cluster to which this host belongs."""
    return os.environ.get(ADDRESS_VARIABLE) or "auto"


def check_installed() -> None:
    """Raises InputError."""
    if importlib.util.find_spec("ray") is None:
        raise InputError(MISSING)


def _of_head(
    method: Callable[Concatenate[Cluster, P], T],
) -> Callable[Concatenate[Cluster, P], T]:
    """What Ray's head answers: it raises UnavailableError where that cannot."""

    @functools.wraps(method)
    def ask(cluster: Cluster, *arguments: P.args, **named: P.kwargs) -> T:
        exceptions: Any = importlib.import_module("ray.exceptions")
        try:
            return method(cluster, *arguments, **named)
        except exceptions.RayError as error:
            first = str(error).strip().partition("\n")[0]
            raise UnavailableError(f"Ray ({cluster.address}) cannot answer: {first}") from None

    return ask


class Cluster:
    """A connection to a Ray cluster. Calls block while its head is away.

    Example:
        cluster = Cluster("10.0.0.1:6379")
        cluster.connect()
        [node.address for node in cluster.nodes()]
    """

    def __init__(self, address: str) -> None:
        """`address`: of Ray's head, or `auto` for the cluster to which this host belongs."""
        self.address = address
        self._ray: Any = None

    def connect(self) -> None:
        """Raises InputError without Ray, UnavailableError without a cluster."""
        os.environ.setdefault(RECONNECT_VARIABLE, RECONNECT_SECONDS)
        ray = import_ray()
        try:
            ray.init(
                address=self.address,
                namespace=NAMESPACE,
                logging_level="ERROR",
                log_to_driver=False,
                ignore_reinit_error=True,
            )
        except (ConnectionError, RuntimeError, ValueError, AssertionError) as error:
            first = str(error).strip().partition("\n")[0]
            raise UnavailableError(
                f"--ray-address {self.address}: no Ray cluster can be reached ({first}); this host"
                f" must be one of its nodes: ray start --address={self.address}"
            ) from None
        self._ray = ray

    def disconnect(self) -> None:
        if self._ray is not None:
            self._ray.shutdown()

    @property
    def own_node(self) -> str:
        """The id of the node on which we are."""
        return own_node()

    @_of_head
    def nodes(self) -> list[Node]:
        """Those that live."""
        state: Any = importlib.import_module("ray._private.state")
        leaving = state.state.get_draining_nodes()
        return [
            Node(
                node["NodeID"],
                node["NodeManagerAddress"],
                dict(node["Resources"]),
                dict(node["Labels"]),
                node["NodeID"] in leaving,
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    @_of_head
    def make(self, actor: type[Any], name: str, where: Where, *arguments: Any) -> Any:
        """A detached actor. Returns before it has a place. `arguments` lie in Ray's own store."""
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        strategy: Any = "SPREAD"
        if where.group is not None:
            strategy = strategies.PlacementGroupSchedulingStrategy(where.group, where.bundle)
        elif where.node_id:
            strategy = strategies.NodeAffinitySchedulingStrategy(
                where.node_id, soft=True, _spill_on_unavailable=True
            )
        options: dict[str, Any] = {
            "name": name,
            "lifetime": "detached",
            "num_cpus": where.resources.get("CPU", 0),
            "num_gpus": where.resources.get("GPU", 0),
            "resources": {n: v for n, v in where.resources.items() if n not in ("CPU", "GPU")},
            "scheduling_strategy": strategy,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if where.labels and strategy == "SPREAD":
            options["label_selector"] = dict(where.labels)
        return self._ray.remote(actor).options(**options).remote(*arguments)

    def call(self, actor: Any, method: str, *arguments: Any) -> Future[Any]:
        """Its result raises ActorLostError and ActorSilentError, and what the method raises.
        `arguments` are not kept anywhere."""
        return _translated(getattr(actor, method).remote(*arguments).future())

    def node_of(self, actor: Any) -> Future[str]:
        """The id of the node on which it is, once it has a place."""
        return self.call(actor, "node")

    def kill(self, actor: Any) -> None:
        self._ray.kill(actor, no_restart=True)

    @_of_head
    def find(self, prefix: str) -> dict[str, Any]:
        """Actors whose names begin so."""
        util: Any = importlib.import_module("ray.util")
        found = [entry["name"] for entry in util.list_named_actors(all_namespaces=True)]
        actors: dict[str, Any] = {}
        for name in found:
            if name.startswith(prefix):
                try:
                    actors[name] = self._ray.get_actor(name, namespace=NAMESPACE)
                except ValueError:  # it has just ended
                    continue
        return actors

    @_of_head
    def reserve(
        self,
        name: str,
        bundles: Sequence[Mapping[str, float]],
        labels: Mapping[str, str],
        is_spread: bool = False,
    ) -> Any:
        """A placement group on few nodes with these labels, or spread over many: all of the bundles or
        none. Returns before it has them."""
        util: Any = importlib.import_module("ray.util.placement_group")
        return util.placement_group(
            [dict(bundle) for bundle in bundles],
            strategy="SPREAD" if is_spread else "PACK",
            name=name,
            lifetime="detached",
            bundle_label_selector=[dict(labels) for _ in bundles] if labels else None,
        )

    @_of_head
    def release(self, prefix: str) -> None:
        """Placement groups whose names begin so."""
        util: Any = importlib.import_module("ray.util.placement_group")
        worker: Any = importlib.import_module("ray._raylet")
        for group_id, entry in util.placement_group_table().items():
            if entry["name"].startswith(prefix) and entry["state"] != "REMOVED":
                identity = worker.PlacementGroupID.from_hex(group_id)
                util.remove_placement_group(util.PlacementGroup(identity))


def import_ray() -> Any:
    """Raises InputError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(MISSING) from None


def own_node() -> str:
    """The id of the node on which this process is."""
    return import_ray().get_runtime_context().get_node_id()


def assigned_devices(resource: str) -> list[str]:
    """Within an actor: the ids that Ray has given to it of `NPU` or `GPU`."""
    return import_ray().get_runtime_context().get_accelerator_ids().get(resource, [])


def _translated(future: Future[Any]) -> Future[Any]:
    exceptions: Any = importlib.import_module("ray.exceptions")
    translated: Future[Any] = Future()

    def tell(done: Future[Any]) -> None:
        if not translated.set_running_or_notify_cancel():  # it is not awaited any more
            return
        error: Any = done.exception()
        if error is None:
            translated.set_result(done.result())
        elif isinstance(error, exceptions.ActorUnavailableError):
            translated.set_exception(ActorSilentError(str(error)))
        elif isinstance(error, exceptions.RayActorError):
            translated.set_exception(ActorLostError(str(error)))
        elif isinstance(error, exceptions.RayTaskError):
            translated.set_exception(error.cause if isinstance(error.cause, OSError) else error)
        else:
            translated.set_exception(error)

    future.add_done_callback(tell)
    return translated
