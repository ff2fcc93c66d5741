"""Accelerators: nodes, container mounts, visibility, and variables that would harm a run on them."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from commands.doctor.finding import Finding, KnownFault, Severity
from commands.doctor.system import System
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.host.device import (
    BACKENDS,
    CANN_VARIABLES,
    VISIBLE_DEVICES,
    Device,
    Kind,
    find_harmful,
    find_visible,
    kinds_of,
    resolve,
)
from trimaran.host.machine import Machine
from trimaran.run.placement import ATB_VARIABLE, POOLS, check_host, place

MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
MOUNTS = ("usr/local/dcmi", "usr/local/Ascend/driver/lib64", "etc/ascend_install.info")
ENVIRONMENTS = {
    "CANN": (CANN_VARIABLES, "ascend-toolkit/set_env.sh"),
    "ATB": ((ATB_VARIABLE,), "nnal/atb/set_env.sh"),
}
"""What the vendor's scripts set up: by which variables that is seen, and the script."""
OLD_SWITCHES = {"VLLM_USE_V1": "0", "VLLM_ATTENTION_BACKEND": "XFORMERS"}

REFUSED = KnownFault(
    "devices/refused",
    Severity.ERROR,
    "{what}",
    "the run would refuse to start, or its processes would not find their devices",
    "what the line says behind its last semicolon",
)
HARMFUL = KnownFault(
    "devices/harmful-variable",
    Severity.ERROR,
    "{what}",
    "a run refuses to start with it",
    "unset {variable}",
)
NODES = KnownFault(
    "devices/nodes",
    Severity.ERROR,
    "/dev has {dies} NPU dies, and lacks {missing}",
    "the runtime opens these nodes before any die; a container must be given them",
    "docker run ... {flags}   # --device NODE for each die and each of these",
)
PERMISSION = KnownFault(
    "devices/permission",
    Severity.ERROR,
    "{node} cannot be opened by this user",
    "the driver's nodes belong to the group HwHiAiUser",
    "usermod -a -G HwHiAiUser $USER   # then log in again; in a container: --group-add",
)
LIBRARIES = KnownFault(
    "devices/mounts",
    Severity.ERROR,
    "there are NPU dies here, but not {missing}",
    "a container shares the host's driver: its libraries must be mounted",
    "docker run ... {flags}   # -v PATH:PATH for each",
)
UNSET = KnownFault(
    "devices/environment",
    Severity.WARNING,
    "{name} is not set up in this shell ({variable} is not set)",
    "torch-npu and vLLM-Ascend find its libraries by what its set_env.sh sets; the guides source it before"
    " vLLM-Ascend is installed and before anything starts. A run on NPUs refuses to start without it",
    ". /usr/local/Ascend/{file}   # or where it is installed; in the shell that starts the run",
)
CUT = KnownFault(
    "devices/cut-short",
    Severity.ERROR,
    "{variable}={given} names {num_named} devices, and a process sees {seen}",
    "the runtime reads the list up to the first name that it does not accept, and an NPU's must"
    " ascend; the rest is lost without a word",
    "export {variable}=...   # numbers from 0 to {last}, ascending, with commas and no spaces",
)
TASK_QUEUE = KnownFault(
    "devices/task-queue",
    Severity.ERROR,
    "TASK_QUEUE_ENABLE={given}, and replicas capture graphs (rollout.eager)",
    "with 2, torch-npu hands kernels over on a further thread, with which capturing a graph fails",
    "export TASK_QUEUE_ENABLE=1   # or set rollout.eager=true",
)
OLD = KnownFault(
    "devices/old-switch",
    Severity.WARNING,
    "{variable}={given}",
    "another guide's switch for older releases of vLLM: ours is made for V1 and chooses its"
    " attention by itself",
    "unset {variable}",
)


@dataclass(frozen=True, slots=True)
class Devices:
    """Example: Devices(read_machine(os.environ), frozenset(MANAGERS), (), ())"""

    machine: Machine
    managers: frozenset[str]
    """Those of MANAGERS whose nodes are there."""
    closed: tuple[str, ...]
    """Nodes that this user may not open."""
    missing_mounts: tuple[str, ...]


def read_devices(system: System, machine: Machine) -> Devices:
    there = frozenset(name for name in MANAGERS if system.path(f"dev/{name}").exists())
    nodes = [*sorted(system.path("dev").glob("davinci[0-9]*"))]
    nodes.extend(system.path(f"dev/{name}") for name in sorted(there))
    return Devices(
        machine,
        there,
        tuple(
            f"/{n.relative_to(system.root)}" for n in nodes if not os.access(n, os.R_OK | os.W_OK)
        ),
        tuple(f"/{name}" for name in MOUNTS if not system.path(name).exists()),
    )


def check_devices(
    facts: Devices, kind: Kind, config: RunConfig | None, pools: Sequence[str] | None = None
) -> Iterator[Finding]:
    """`pools`: those of which one process is to start here; None: as the configuration says."""
    given = facts.machine.variables
    harmful = find_harmful(kind, facts.machine)
    for what in (*harmful, *_refused_by_engine(given, kind)):
        yield HARMFUL.found(what=what, variable=what.partition("=")[0])
    if kind == "npu":
        yield from _check_nodes(facts)
        yield from _check_variables(facts.machine, config)
        if config is None:  # a run's own refusal says so, of the pools that need it
            yield from _check_environment(given)
    if kind != "cpu":
        yield from _check_list(facts.machine, kind)
    for variable, value in OLD_SWITCHES.items():
        if given.get(variable) == value:
            yield OLD.found(variable=variable, given=value)
    if config is not None:
        for what in _refusals(config, facts.machine, pools):
            if not any(line in what for line in harmful):
                yield REFUSED.found(what=what)


def _check_nodes(facts: Devices) -> Iterator[Finding]:
    if not facts.machine.num_npus:
        return
    if missing := [f"/dev/{name}" for name in MANAGERS if name not in facts.managers]:
        flags = " ".join(f"--device {node}" for node in missing)
        dies = facts.machine.num_npus
        yield NODES.found(dies=dies, missing=", ".join(missing), flags=flags)
    for node in facts.closed:
        yield PERMISSION.found(node=node)
    if facts.missing_mounts:
        flags = " ".join(f"-v {path}:{path}" for path in facts.missing_mounts)
        yield LIBRARIES.found(missing=", ".join(facts.missing_mounts), flags=flags)


def _check_variables(machine: Machine, config: RunConfig | None) -> Iterator[Finding]:
    queue = machine.variables.get("TASK_QUEUE_ENABLE", "")
    if queue == "2" and config is not None and config.rollout.eager is False:
        yield TASK_QUEUE.found(given=queue)


def _check_environment(variables: Mapping[str, str]) -> Iterator[Finding]:
    for name, (known_by, file) in ENVIRONMENTS.items():
        if not any(variables.get(variable) for variable in known_by):
            yield UNSET.found(name=name, variable=known_by[0], file=file)


def _refused_by_engine(variables: Mapping[str, str], kind: Kind) -> list[str]:
    # By name: nothing under trimaran may lead to an import of vLLM.
    settings = importlib.import_module("services.rollout.vllm.settings")
    try:
        settings.check_environment(variables, Device(kind, BACKENDS[kind]))
    except InputError as error:
        return str(error).splitlines()
    return []


def _check_list(machine: Machine, kind: Kind) -> Iterator[Finding]:
    variable = VISIBLE_DEVICES[kind]
    named = [name for name in re.split(r"[,\s]+", machine.variables.get(variable, "")) if name]
    seen = find_visible(kind, machine)
    count = machine.num_npus if kind == "npu" else machine.num_gpus
    if named and count and len(seen) < len(named):
        places = {"given": machine.variables[variable], "seen": len(seen) or "none"}
        yield CUT.found(variable=variable, num_named=len(named), last=count - 1, **places)


def _refusals(config: RunConfig, machine: Machine, pools: Sequence[str] | None) -> Sequence[str]:
    """What the run's pools miss here; in a run over several hosts, only pools whose kind of device is here."""
    try:
        if config.network.subnet is None and pools is None:
            place(config, machine)
            return ()
        for pool in POOLS if pools is None else pools:
            if resolve(getattr(config, pool).device, machine) in kinds_of(machine):
                check_host(config, pool, machine)
    except InputError as error:
        return str(error).splitlines()
    return ()
