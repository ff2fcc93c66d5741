"""Looks at this host: every check that needs no other host."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import commands
import services
import trimaran
import weights
from commands.doctor.checks import (
    addresses,
    devices,
    disks,
    limits,
    memory,
    ports,
    preloads,
    tools,
    versions,
)
from commands.doctor.finding import NOTHING, Finding, Severity
from commands.doctor.system import System
from trimaran.config import NetworkSection, RunConfig
from trimaran.host.device import Kind, kinds_of, resolve
from trimaran.host.machine import NPU_NODES, Machine, read_machine
from trimaran.run.placement import POOLS


def examine(
    system: System,
    config: RunConfig | None,
    *,
    has_redis: bool = False,
    is_start: bool = False,
    service: str | None = None,
) -> list[Finding]:
    """Findings, and one that is fine for each check without any.

    `has_redis`: the run's store is no file. `is_start`: before a run, only what takes no time: no programs are called, nothing is written.
    `service`: the one of the run that is to start here, where each is started apart from the others; what those need
    does not count then.
    """
    machine = read_machine(system.variables, str(system.path(NPU_NODES)))
    pools = None if service is None else [pool for pool in POOLS if pool == service]
    kind = kind_of(config, machine, pools)
    network = config.network if config is not None else NetworkSection()
    rows = versions.load_matrix()
    installed = versions.read_versions(system, rows)
    found: list[tuple[str, Iterable[Finding]]] = [
        ("versions", [*versions.check_versions(installed, rows), *versions.check_build(installed)]),
        (
            "devices",
            devices.check_devices(devices.read_devices(system, machine), kind, config, pools),
        ),
        ("addresses", addresses.check_addresses(addresses.read_addresses(system), config)),
        ("ports", ports.check_ports(ports.read_ports(system), network.port_range, kind)),
        ("limits", limits.check_limits(limits.read_limits(system), kind, config)),
    ]
    if config is not None and service in (None, "rollout"):
        needs = memory.needs_of(config, kind, is_alone=service is not None)
        found.append(("memory", memory.check_memory(memory.read_memory(system), needs)))
    if not is_start:
        found.append(("tools", tools.check_tools(tools.read_tools(system, kind), kind)))
        loaded = preloads.read_preloads(system)
        found.append(("preloads", preloads.check_preloads(loaded, kind)))
    if config is not None and not is_start:
        places = disks.read_places(system, config)
        found.append(("disks", disks.check_places(places, has_redis)))
    return [finding for check, findings in found for finding in or_fine(check, findings)]


def or_fine(check: str, findings: Iterable[Finding]) -> list[Finding]:
    """One that is fine where nothing is wrong."""
    return [*findings] or [Finding(check, "", Severity.FINE, NOTHING)]


def kind_of(config: RunConfig | None, machine: Machine, pools: Sequence[str] | None = None) -> Kind:
    """What the run computes on here; the most demanding one, where its pools differ. `pools`: as in
    `check_devices`."""
    if config is None:
        return "npu" if machine.num_npus else "cuda" if machine.num_gpus else "cpu"
    named = POOLS if pools is None else pools
    kinds = {resolve(getattr(config, pool).device, machine) for pool in named}
    if pools is not None or config.network.subnet is not None:  # others may stand elsewhere
        kinds = (kinds & kinds_of(machine)) | {"cpu"}
    order: tuple[Kind, ...] = ("npu", "cuda", "cpu")
    return next(kind for kind in order if kind in kinds)


def facts_for_others(system: System, config: RunConfig | None) -> tuple[dict[str, str], int]:
    """What doctors compare between hosts: versions, with a digest of our own sources, and the bytes of the
    model's weights here."""
    found = versions.read_versions(system, versions.load_matrix())
    sources = digest_of(
        *(Path(str(part.__file__)).parent for part in (trimaran, weights, services, commands))
    )
    found["trimaran"] = f"{metadata.version('trimaran')} (sources {sources})"
    return found, memory.model_bytes(config) if config is not None else 0


def digest_of(*folders: Path) -> str:
    """A digest of the Python files below these folders: checkouts of one release may differ.

    Example: digest_of(Path("trimaran")) == "1f0e9c2b7a55"
    """
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if not path.is_file():  # an editor's lock is a link to nowhere
                continue
            name = path.relative_to(folder.parent).as_posix()
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:12]
