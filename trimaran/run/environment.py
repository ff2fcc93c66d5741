"""How each service is started: its command, address and process environment.

The environment must stand before the process starts: OpenMP, the allocator and torch read it once.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.host.places import is_bucket
from trimaran.run.network import LOOPBACK, Host
from trimaran.trust.credentials import is_of_bucket, is_of_hub, is_of_sink

COMMON = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",  # a model is a local folder; no service waits for a hub
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # trimaran.host.device imports what is needed, in order
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # device numbers are those of nvidia-smi
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONUNBUFFERED": "1",
    # vLLM's processes give themselves titles, over their environment unless this is set. The manager
    # knows by a variable there whose they are, and that they are gone.
    "SPT_NOENV": "1",
}

COMPUTE = {
    # A thread that waits spins for some microseconds, as long as the pause between two operations,
    # and then sleeps.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "2000",
    # Keep freed memory and use huge pages: 9 % less time in training, more in generation. With one
    # arena, because glibc gives huge pages to the main one only, and torch computes in a thread.
    # `python -m benchmarks.run waiting` measures what these are worth.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    # Kernels of shapes that are gone: with the 1,024 that oneDNN would keep, and batches of any length, a trainer grew
    # by 0.65 GiB more in 60 steps.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
}

BOTH_BUSY = {"GOMP_SPINCOUNT": "0"}
"""For runs that generate while they train: on shared cores a thread that spins holds up the other engine.
`python -m benchmarks.run waiting` measures that, too."""

NUMBERED = ("rollout", "follower", "trainer", "environment")
"""Kinds of which a run may have several."""
COMPUTING = ("rollout", "follower", "trainer")
"""Kinds that load torch."""

ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"

CALLS = {
    "controller": ("reward", "environment", "weight-sync", "rollout", "trainer"),
    "weight-sync": ("trainer",),
    "rollout": ("weight-sync",),
}
"""Whom each kind calls at an address of the configuration."""

RUNS_OTHERS = ("reward", "environment")
"""Kinds that run code of others, and call plugins."""


def service_environment(
    config: RunConfig, kind: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment for one service. What the user's shell sets wins, except thread counts.

    In a subnet only the process' own host can say which interface is meant: there `trimaran serve`
    adds `network_environment`.

    Tokens of plugins are for the service alone that calls them, what reaches a sink for the controller
    alone, and credentials of buckets for who uses one. The reward and environment services, which run code
    of others, get none of these but the first, and no token of a hub.
    """
    hidden = plugin_variables(config) - plugin_variables(config, (kind,))
    inherited = {
        name: value
        for name, value in inherited.items()
        if name not in hidden
        and (uses_bucket(config, kind) or not is_of_bucket(name))
        and (kind == "controller" or not is_of_sink(name))
        and (kind not in RUNS_OTHERS or not is_of_hub(name))
    }
    if config.is_colocated and kind == "rollout":
        inherited |= _without_segments(inherited)
    defaults = COMMON | (COMPUTE if kind in COMPUTING else {})
    if config.run.max_lag and kind in COMPUTING:
        defaults |= BOTH_BUSY
    if config.network.subnet is None:
        defaults |= network_environment(LOOPBACK, {})
    own = {"rollout": config.rollout, "follower": config.rollout, "trainer": config.trainer}
    threads = own[kind].threads if kind in own else 1
    return {**defaults, **inherited, "OMP_NUM_THREADS": str(threads)}


def _without_segments(inherited: Mapping[str, str]) -> dict[str, str]:
    """The allocator's options without the one with which vLLM-Ascend's sleep mode refuses to start, and
    which guides set for the trainer's sake. vLLM on CUDA goes without it by itself."""
    if ALLOCATOR not in inherited:
        return {}
    options = [option.strip() for option in inherited[ALLOCATOR].split(",")]
    return {ALLOCATOR: ",".join(o for o in options if not o.startswith("expandable_segments:"))}


def network_environment(host: Host, inherited: Mapping[str, str]) -> dict[str, str]:
    """What makes libraries listen and call on the interface of the run's subnet on this host, where
    the process starts. What the user's shell sets wins.

    Raises InputError where that means another interface or address.
    """
    wanted = _network_variables(host)
    if not host.is_loopback and (
        others := [
            f"{name}={value}: network.subnet is on {host.interface} ({host.address}) of this host;"
            f" unset {name}, or correct network.subnet"
            for name, value in inherited.items()
            if name in wanted and not _agrees(name, value, host)
        ]
    ):
        raise InputError("\n".join(others))
    return {name: inherited.get(name, value) for name, value in wanted.items()}


def _network_variables(host: Host) -> dict[str, str]:
    if host.is_loopback:
        # gloo would otherwise listen on whatever address the host's name has.
        return {"GLOO_SOCKET_IFNAME": host.interface}
    variables = {
        "GLOO_SOCKET_IFNAME": host.interface,
        "TP_SOCKET_IFNAME": host.interface,
        # "=" is this interface, not all whose names begin so.
        "NCCL_SOCKET_IFNAME": f"={host.interface}",
        "HCCL_SOCKET_IFNAME": f"={host.interface}",
        "HCCL_IF_IP": host.address,
        # Where this range is given, HCCL_IF_BASE_PORT counts for nothing.
        "HCCL_HOST_SOCKET_PORT_RANGE": f"{host.ports.start}-{host.ports.stop - 1}",
        # On the NPU's own network card; the default is one port, for one process a device.
        "HCCL_NPU_SOCKET_PORT_RANGE": "auto",
        "VLLM_HOST_IP": host.address,
    }
    if ":" in host.address:
        variables |= {"NCCL_SOCKET_FAMILY": "AF_INET6", "HCCL_SOCKET_FAMILY": "AF_INET6"}
    return variables


def _agrees(name: str, value: str, host: Host) -> bool:
    if name in ("HCCL_IF_IP", "VLLM_HOST_IP"):
        return value == host.address
    if name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        return host.interface in value.split(",")
    return not name.endswith("_SOCKET_IFNAME") or _has(value, host.interface)


def _has(names: str, interface: str) -> bool:
    """Whether a list has the interface, as NCCL and HCCL read it: of prefixes, after "=" of whole
    names, after "^" of those that are not meant."""
    listed = names.removeprefix("^")
    is_exact, known = listed.startswith("="), listed.removeprefix("=").split(",")
    found = interface in known if is_exact else interface.startswith(tuple(known))
    return found != names.startswith("^")


def uses_bucket(config: RunConfig, kind: str) -> bool:
    """Whether a service uses a bucket that the run names: the controller for payloads, the trainer for
    checkpoints, and a service that loads the model to fetch it."""
    match kind:
        case "controller":
            return True
        case "trainer":
            return is_bucket(config.run.checkpoints) or is_bucket(config.model.source)
        case "rollout" | "follower":
            return is_bucket(config.model.source)
        case _:
            return False


def plugin_variables(config: RunConfig, kinds: Collection[str] = RUNS_OTHERS) -> frozenset[str]:
    """Names of the environment variables that hold tokens of the run's plugins. `kinds`: who calls them."""
    rewards = [section.plugin for section in config.reward.rules.values()]
    environments = [config.environment.plugin] if config.environment else []
    called = {"reward": rewards, "environment": environments}
    plugins = (plugin for kind in kinds for plugin in called.get(kind, ()))
    return frozenset(p.token_variable for p in plugins if p is not None and p.token_variable)


def service_address(config: RunConfig, kind: str, index: int) -> str:
    """Where it listens. Raises InputError when `endpoints` does not name it and those it calls."""
    endpoints = config.endpoints
    addresses: dict[str, tuple[str | None, ...]] = {
        "controller": (endpoints.controller,),
        "reward": (endpoints.reward,),
        "weight-sync": (endpoints.weight_sync,),
        "rollout": endpoints.rollout,
        "trainer": endpoints.trainer,
        "environment": endpoints.environment,
    }
    known = addresses[kind]
    address = known[index] if 0 <= index < len(known) else None
    if address is None:
        key = kind.replace("-", "_") + (f"[{index}]" if kind in NUMBERED else "")
        raise _missing(key)
    for called in CALLS.get(kind, ()):
        if called == "environment" and not config.num_environments:
            continue
        if not (addresses[called] and all(addresses[called])):
            raise _missing(called.replace("-", "_"))
    return address


def _missing(key: str) -> InputError:
    return InputError(
        f"endpoints.{key}: missing; a service that starts alone needs the host:port of each"
        " service it serves or calls"
    )


def serve_command(
    kind: str, config: str | None, run_folder: str, index: int, address: str = ""
) -> tuple[str, ...]:
    """What starts one service as a process. `config` None: it stands in the run's store. `address`:
    of a replica that the configuration does not name."""
    return (
        *(sys.executable, "-m", "commands.cli", "serve", kind),
        *(("--config", config) if config else ()),
        *("--run-folder", run_folder, "--index", str(index)),
        *(("--address", address) if address else ()),
    )


def process_name(kind: str, index: int) -> str:
    return f"{kind}-{index}" if kind in NUMBERED else kind


def environment_names(config: RunConfig) -> tuple[str, ...]:
    """Processes of the run's environment service."""
    return tuple(process_name("environment", index) for index in range(config.num_environments))


def part_of(config: RunConfig, kind: str, index: int) -> tuple[int, int]:
    """The replica to which a process belongs, and on which of its hosts it stands, from 0.

    Followers are numbered through: those of the first replica, by their hosts, then those of the second.
    Raises InputError for a follower where a replica has none.
    """
    if kind == "rollout":
        return index, 0
    if not config.rollout.num_followers:
        raise InputError(
            f"{process_name(kind, index)}: the run's replicas stand on one host each; leave it out, or set"
            " rollout.hosts"
        )
    replica, follower = divmod(index, config.rollout.num_followers)
    return replica, 1 + follower


def followers_of(config: RunConfig, replica: int) -> range:
    """Their indices, in the order of their hosts."""
    each = config.rollout.num_followers
    return range(replica * each, (replica + 1) * each)
