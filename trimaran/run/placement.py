"""Which process of a run computes on which devices of this machine.

    placement = place(config, read_machine(os.environ))
    placement.variables("rollout", 1)  # {"ASCEND_RT_VISIBLE_DEVICES": "3,4", ...}

A process sees only its own devices: a replica its tensor_parallel ones, a trainer rank one. So the
first device in sight is its own, whatever its rank. That also holds where a library guesses the
device from a rank: torch's NCCL and HCCL groups take the rank in the group modulo the devices in
sight, and in a transfer group that rank has nothing to do with devices. NCCL and HCCL reach peers
that a process does not see. They know them by bus id (NCCL, p2pCanConnect in
src/transport/p2p.cc) or physical number (HCCL's hrtEnableP2P).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from trimaran.config import DEVICES_NEEDED, RunConfig
from trimaran.errors import InputError
from trimaran.host.device import (
    VISIBLE_DEVICES,
    Kind,
    find_harmful,
    find_hidden,
    find_missing,
    find_visible,
    is_gpu_uuid,
    resolve,
)
from trimaran.host.machine import Machine, read_machine
from trimaran.run.environment import (
    network_environment,
    process_name,
    service_environment,
)
from trimaran.run.network import find_host

POOLS = ("trainer", "rollout")
"""In the order in which `auto` serves them."""
PLACED = "TRIMARAN_PLACED"
"""Names the process whose devices this environment shows: it is not to be placed once more."""

ATB_VARIABLE = "ATB_HOME_PATH"
"""Set by the set_env.sh of NNAL's ATB. torch_npu loads its libatb.so when vLLM-Ascend's worker
calls `_register_atb_extensions`."""
NPU_PACKAGES: dict[str, dict[str, str]] = {
    "rollout": {"vllm_ascend": "vLLM", "scipy": "vLLM-Ascend", "triton": "vLLM-Ascend"},
    "trainer": {"mindspeed": "the trainer", "scipy": "MindSpeed", "triton": "MindSpeed"},
}
"""Pool -> module -> who needs it. triton-ascend brings the module triton."""


@dataclass(frozen=True, slots=True)
class PoolDevices:
    """Example: PoolDevices("npu", (("0", "1"), ("2", "3"))) is two replicas of two devices."""

    kind: Kind
    shares: tuple[tuple[str, ...], ...]
    """What each process sees; nothing on a CPU."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Example: place(config, read_machine(os.environ)).variables("trainer", 0)"""

    pools: Mapping[str, PoolDevices]

    @property
    def num_devices(self) -> int:
        """Those of both pools; none on a CPU."""
        return len({(p.kind, name) for p in self.pools.values() for s in p.shares for name in s})

    def variables(self, kind: str, index: int) -> dict[str, str]:
        """For the environment of one service; none where it computes nothing."""
        if kind not in self.pools:
            return {}
        pool, placed = self.pools[kind], {PLACED: process_name(kind, index)}
        if pool.kind == "cpu":
            return placed
        if index >= len(pool.shares):
            raise InputError(
                f"{kind} {index}: the configuration gives devices to {len(pool.shares)} of them;"
                f" give it its own, {PLACED}={process_name(kind, index)}"
                f" {VISIBLE_DEVICES[pool.kind]}=..."
            )
        return placed | {VISIBLE_DEVICES[pool.kind]: ",".join(pool.shares[index])}


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the configuration asks for one pool."""

    pool: str
    kind: Kind
    listed: Literal["auto"] | tuple[int | str, ...]
    num_devices: int
    num_each: int
    """Devices of one process."""
    engine: str


def place(config: RunConfig, machine: Machine, checked: Sequence[str] = POOLS) -> Placement:
    """Share the machine's devices out: first those that the configuration lists, then `auto`.

    `checked`: the pools that this Python environment is for. The other pool may have one of its
    own, so nothing is looked for that only it needs; it counts where it wants the same devices.
    Raises InputError, with the key and a remedy a line.
    """
    wishes = [_wish(config, pool, machine) for pool in POOLS]
    own = [wish for wish in wishes if wish.pool in checked]
    if faults := [fault for wish in own for fault in _find_faults(wish, machine)]:
        raise InputError("\n".join(faults))
    asking = [wish for wish in wishes if wish.kind in {other.kind for other in own}]
    # The other pool's processes may see other devices than this one.
    devices = {
        w.pool: _check_listed(w, machine) if w in own else tuple(map(str, w.listed))
        for w in asking
        if w.listed != "auto"
    }
    if config.is_colocated:
        devices = _share_all(wishes, devices, machine)
    elif len(devices) == 2 and asking[0].kind == asking[1].kind:
        _check_shared(config, devices["trainer"], devices["rollout"])
    is_shared_out = any(wish.pool not in devices for wish in own)
    for wish in asking if is_shared_out else ():
        if wish.pool not in devices:
            same = [other.pool for other in asking if other.kind == wish.kind]
            taken = [device for pool in same for device in devices.get(pool, ())]
            devices[wish.pool] = _next_free(wish, machine, taken)
    return Placement({w.pool: _split(w, devices[w.pool]) for w in asking if w.pool in devices})


def placed_environment(
    config: RunConfig,
    kind: str,
    index: int,
    inherited: Mapping[str, str],
    read: Callable[[Mapping[str, str]], Machine] = read_machine,
) -> dict[str, str]:
    """The environment for a service that may have been started alone: it takes its own share of
    the devices in sight, unless a launcher has placed it already."""
    environment = service_environment(config, kind, inherited)
    environment |= network_environment(find_host(config.network), inherited)
    pool = "rollout" if kind == "follower" else kind
    if pool not in POOLS:
        return environment
    # Of a replica's hosts each has its share, and what starts it there says which.
    is_part = pool == "rollout" and config.rollout.hosts > 1
    if is_part or inherited.get(PLACED) == process_name(kind, index):
        check_host(config, pool, read(inherited))
        return environment
    return environment | place(config, read(inherited), (kind,)).variables(kind, index)


def check_host(config: RunConfig, pool: str, machine: Machine) -> None:
    """Checks a host where processes are placed by others: it has what one process of this pool needs.

    Raises InputError, with the key and a remedy a line.
    """
    wish = _wish(config, pool, machine)
    visible = find_visible(wish.kind, machine)
    if faults := _find_faults(wish, machine):
        raise InputError("\n".join(faults))
    if wish.kind != "cpu" and len(visible) < wish.num_each:
        raise InputError(
            f"{pool}.tensor_parallel: one process needs {wish.num_each} {wish.kind} devices of its"
            f" host, which has {len(visible)}; {describe_sight(wish.kind, machine)}; lower it, show"
            f" more by {VISIBLE_DEVICES[wish.kind]}, or put a replica on several hosts:"
            f" {pool}.hosts (docs/deploy.md)"
        )


def added_variables(
    config: RunConfig, index: int, devices: Sequence[str], machine: Machine
) -> dict[str, str]:
    """For the environment of a replica beyond those that the configuration names.

    Raises InputError where it needs another number of devices.
    """
    device, name = resolve(config.rollout.device, machine), process_name("rollout", index)
    placed = {PLACED: name}
    if device == "cpu":
        return placed
    if len(devices) != config.rollout.tensor_parallel:
        raise InputError(
            f"{name}: {len(devices)} {device} devices are given"
            f" ({_join(devices)}), and it needs {config.rollout.tensor_parallel}"
            " (rollout.tensor_parallel)"
        )
    return placed | {VISIBLE_DEVICES[device]: ",".join(devices)}


def _wish(config: RunConfig, pool: str, machine: Machine) -> _Wish:
    rollout, trainer = config.rollout, config.trainer
    if pool == "rollout":
        kind = resolve(rollout.device, machine)
        sizes = config.num_rollout_devices, rollout.devices_on_host
        return _Wish(pool, kind, rollout.devices, *sizes, rollout.engine)
    kind = resolve(trainer.device, machine)
    return _Wish(pool, kind, trainer.devices, config.num_trainer_ranks, 1, "megatron")


def _find_faults(wish: _Wish, machine: Machine) -> list[str]:
    missing = find_missing(wish.kind, machine)
    if wish.kind == "npu" and wish.engine in ("vllm", "megatron"):
        missing.extend(
            f"{module} is not installed, and {needed_by} needs it; install by deploy/npu/install.sh"
            for module, needed_by in NPU_PACKAGES[wish.pool].items()
            if module not in machine.packages
        )
        if wish.engine == "vllm" and not machine.variables.get(ATB_VARIABLE):
            missing.append(
                f"ATB is not set up in this shell ({ATB_VARIABLE} is not set); install NNAL and"
                " source its atb/set_env.sh"
            )
    key = f"{wish.pool}.device"
    return [
        *(f"{key} {wish.kind}: {what}, or choose another {key}" for what in missing),
        *(f"{key} {wish.kind}: {what}" for what in find_harmful(wish.kind, machine)),
    ]


def _check_listed(wish: _Wish, machine: Machine) -> tuple[str, ...]:
    names = tuple(map(str, wish.listed))
    key, variable = f"{wish.pool}.devices", VISIBLE_DEVICES[wish.kind]
    if wish.kind == "cpu":
        raise InputError(
            f"{key}: {wish.pool}.device is cpu here, which has no numbers; leave the list out, or"
            f" name npu or cuda as {wish.pool}.device"
        )
    if hidden := find_hidden(names, wish.kind, machine):
        raise InputError(
            f"{key}: {_join(hidden)} not in sight; {describe_sight(wish.kind, machine)};"
            f" name some of these, or change {variable}"
        )
    return names


def _check_shared(config: RunConfig, trainer: Sequence[str], rollout: Sequence[str]) -> None:
    """One device for both is for machines with few. NCCL and HCCL refuse two ranks on one."""
    if is_gpu_uuid(trainer[0]) != is_gpu_uuid(rollout[0]):
        raise InputError(
            "rollout.devices: names numbers and trainer.devices UUIDs, or the other way round, so"
            " it is not known which are the same; name both in the same way"
        )
    twice = [device for device in rollout if device in trainer]
    if twice and config.weight_sync.transport != "relay":
        raise InputError(
            f"rollout.devices: {_join(twice)} also in trainer.devices; name others. To share on"
            " purpose, set weight_sync.transport=relay, because no collective has two ranks on one"
            " device, and rollout.memory_fraction to the share that the trainer leaves"
        )


def _share_all(
    wishes: Sequence[_Wish], listed: Mapping[str, tuple[str, ...]], machine: Machine
) -> dict[str, tuple[str, ...]]:
    """The same devices for both pools, in the same order: those that either lists, or the first ones."""
    trainer, rollout = wishes
    if trainer.kind != rollout.kind:
        raise InputError(
            f"run.pools: colocated, and trainer.device is {trainer.kind} here, rollout.device"
            f" {rollout.kind}; name the same kind in both"
        )
    shared = next(iter(listed.values()), None) or _next_free(trainer, machine, ())
    return {wish.pool: shared for wish in wishes}


def _next_free(wish: _Wish, machine: Machine, taken: Sequence[str]) -> tuple[str, ...]:
    if wish.kind == "cpu":
        return ()
    unknown = set(filter(is_gpu_uuid, taken)) - set(find_visible(wish.kind, machine))
    if unknown:
        raise InputError(
            f"{wish.pool}.devices: auto cannot tell which numbers {_join(sorted(unknown))} of the other"
            f" pool have; name UUIDs here, too, or show UUIDs by {VISIBLE_DEVICES[wish.kind]}"
        )
    others = set(taken)
    free = [device for device in find_visible(wish.kind, machine) if device not in others]
    if len(free) < wish.num_devices:
        raise InputError(
            f"{wish.pool}.devices: auto needs {wish.num_devices} {wish.kind} devices"
            f" ({DEVICES_NEEDED[wish.pool]}) and {len(free) or 'none'} of those in sight are free;"
            f" {describe_sight(wish.kind, machine)}; the other pool has number {_join(taken)}; lower a"
            f" factor, show more by {VISIBLE_DEVICES[wish.kind]}, or let both pools share a device"
            " (docs/architecture.md, Devices)"
        )
    return tuple(free[: wish.num_devices])


def _split(wish: _Wish, devices: Sequence[str]) -> PoolDevices:
    starts = range(0, len(devices), wish.num_each)
    shares = tuple(tuple(devices[start : start + wish.num_each]) for start in starts)
    for share in shares:
        if len(share) > 1 and any(name.startswith("MIG-") for name in share):
            raise InputError(
                f"{wish.pool}.devices: {_join(share)} belong to one process, and CUDA shows a process"
                f" one MIG instance only; set {wish.pool}.tensor_parallel=1, or name whole GPUs"
            )
        # torch_npu counts none otherwise: the runtime wants them so.
        if wish.kind == "npu" and any(int(a) >= int(b) for a, b in pairwise(share)):
            raise InputError(
                f"{wish.pool}.devices: {_join(share)} belong to one process, and the NPU runtime"
                " shows it none unless they ascend; sort them"
            )
    return PoolDevices(wish.kind, shares)


def describe_sight(kind: Kind, machine: Machine) -> str:
    variable = VISIBLE_DEVICES[kind]
    value = machine.variables.get(variable)
    given = "not set" if value is None else repr(value)
    return f"in sight: {_join(find_visible(kind, machine))} ({variable} is {given})"


def _join(devices: Sequence[str], most: int = 16) -> str:
    shown = ", ".join(devices[:most])
    return f"{shown}, ... ({len(devices)} in all)" if len(devices) > most else shown or "none"
