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

from trimaran.config import DEVICES_NEEDED, RolloutSection, RunConfig, TrainerSection
from trimaran.device import VISIBLE_DEVICES, Kind, find_missing, find_visible, resolve
from trimaran.errors import InputError
from trimaran.launch.environment import process_name, service_environment
from trimaran.machine import Machine, read_machine

PoolName = Literal["trainer", "rollout"]
POOLS: tuple[PoolName, ...] = ("trainer", "rollout")
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
"""Pool -> module -> who imports it. triton-ascend brings the module triton."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Example: Pool("npu", (("0", "1"), ("2", "3"))) is two replicas of two devices."""

    kind: Kind
    shares: tuple[tuple[str, ...], ...]
    """What each process sees; nothing on a CPU."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Example: place(config, read_machine(os.environ)).variables("trainer", 0)"""

    pools: Mapping[str, Pool]

    def variables(self, kind: str, index: int) -> dict[str, str]:
        """For the environment of one service; none where it computes nothing."""
        if kind not in self.pools:
            return {}
        pool, placed = self.pools[kind], {PLACED: process_name(kind, index)}
        if pool.kind == "cpu":
            return placed
        return placed | {VISIBLE_DEVICES[pool.kind]: ",".join(pool.shares[index])}


def place(config: RunConfig, machine: Machine, checked: Sequence[PoolName] = POOLS) -> Placement:
    """Share the machine's devices out: first those that the configuration names, then `auto`.

    `checked`: the pools that this Python environment is for. The other pool may have one of its
    own, so nothing is looked for that only it needs; it counts where it wants the same devices.
    Raises InputError, with the key and a remedy a line.
    """
    kinds = {pool: resolve(_section(config, pool).device, machine) for pool in POOLS}
    faults = [
        f"{pool}.device {kinds[pool]}: {missing}, or choose another {pool}.device"
        for pool in POOLS
        if pool in checked
        for missing in _find_missing(config, pool, kinds[pool], machine)
    ]
    if faults:
        raise InputError("\n".join(faults))
    asking = [pool for pool in POOLS if kinds[pool] in {kinds[own] for own in checked}]
    devices = {pool: _named(config, pool, kinds[pool], machine) for pool in asking}
    if len(asking) == 2 and kinds["rollout"] == kinds["trainer"]:
        _check_shared(config, devices["trainer"], devices["rollout"])
    for pool in asking:
        if not devices[pool]:
            taken = {d for other in asking if kinds[other] == kinds[pool] for d in devices[other]}
            devices[pool] = _next_free(config, pool, kinds[pool], machine, taken)
    return Placement({pool: _split(config, pool, kinds[pool], devices[pool]) for pool in asking})


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
    if kind not in POOLS or inherited.get(PLACED) == process_name(kind, index):
        return environment
    return environment | place(config, read(inherited), (kind,)).variables(kind, index)


def _section(config: RunConfig, pool: PoolName) -> RolloutSection | TrainerSection:
    return config.rollout if pool == "rollout" else config.trainer


def _find_missing(config: RunConfig, pool: PoolName, kind: Kind, machine: Machine) -> list[str]:
    missing = find_missing(kind, machine)
    runs_megatron_or_vllm = pool == "trainer" or config.rollout.engine == "vllm"
    if kind != "npu" or not runs_megatron_or_vllm:
        return missing
    missing.extend(
        f"{module} is not installed, and {importer} imports it; install the npu extra as"
        " docs/install.md says"
        for module, importer in NPU_PACKAGES[pool].items()
        if module not in machine.packages
    )
    if pool == "rollout" and not machine.variables.get(ATB_VARIABLE):
        missing.append(
            f"ATB is not set up in this shell ({ATB_VARIABLE} is not set); install NNAL and source"
            " its atb/set_env.sh"
        )
    return missing


def _named(config: RunConfig, pool: PoolName, kind: Kind, machine: Machine) -> tuple[str, ...]:
    """What the configuration lists; nothing for `auto`."""
    listed = _section(config, pool).devices
    if listed == "auto":
        return ()
    if kind == "cpu":
        raise InputError(
            f"{pool}.devices: {pool}.device is cpu here, which has no numbers; leave the list out,"
            f" or name npu or cuda as {pool}.device"
        )
    numbers, visible = tuple(map(str, listed)), find_visible(kind, machine)
    hidden = [number for number in numbers if number not in visible]
    if hidden:
        by_uuid = not any(device.isdecimal() for device in visible)
        remedy = "leave the list out" if by_uuid else "name some of these"
        raise InputError(
            f"{pool}.devices: {_join(hidden)} not in sight;"
            f" {_describe_sight(kind, machine)}; {remedy}, or change {VISIBLE_DEVICES[kind]}"
        )
    return numbers


def _check_shared(config: RunConfig, trainer: Sequence[str], rollout: Sequence[str]) -> None:
    """One device for both is for machines with few; their groups refuse two ranks on one."""
    twice = [device for device in rollout if device in trainer]
    if twice and config.weight_sync.transport != "relay":
        raise InputError(
            f"rollout.devices: {_join(twice)} also in trainer.devices; name others. To share on"
            " purpose, set weight_sync.transport=relay, because no collective has two ranks on one"
            " device, and rollout.memory_fraction to the share that the trainer leaves"
        )


def _next_free(
    config: RunConfig, pool: PoolName, kind: Kind, machine: Machine, taken: set[str]
) -> tuple[str, ...]:
    if kind == "cpu":
        return ()
    needed = config.num_rollout_devices if pool == "rollout" else config.num_trainer_ranks
    free = [device for device in find_visible(kind, machine) if device not in taken]
    if len(free) < needed:
        raise InputError(
            f"{pool}.devices: auto needs {needed} {kind} devices ({DEVICES_NEEDED[pool]}) and"
            f" {len(free)} are free; {_describe_sight(kind, machine)}"
            + (f", the other pool has {_join(sorted(taken))}" if taken else "")
            + f"; lower a factor, show more by {VISIBLE_DEVICES[kind]}, or let both pools share a"
            " device as docs/architecture.md says (Devices)"
        )
    return tuple(free[:needed])


def _split(config: RunConfig, pool: PoolName, kind: Kind, devices: Sequence[str]) -> Pool:
    size = config.rollout.tensor_parallel if pool == "rollout" else 1
    shares = tuple(tuple(devices[i : i + size]) for i in range(0, len(devices), size))
    for share in shares:
        # torch_npu counts none otherwise: the runtime wants them so.
        if kind == "npu" and any(int(a) >= int(b) for a, b in pairwise(share)):
            raise InputError(
                f"{pool}.devices: {_join(share)} belong to one process, and the NPU runtime shows a"
                " process none unless they ascend; sort them"
            )
    return Pool(kind, shares)


def _describe_sight(kind: Kind, machine: Machine) -> str:
    variable = VISIBLE_DEVICES[kind]
    value = machine.variables.get(variable)
    given = "not set" if value is None else f"{value!r}"
    return f"in sight: {_join(find_visible(kind, machine))} ({variable} is {given})"


def _join(devices: Sequence[str], most: int = 16) -> str:
    shown = ", ".join(devices[:most])
    return f"{shown}, ... ({len(devices)} in all)" if len(devices) > most else shown or "none"
