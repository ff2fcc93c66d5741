"""Port ranges from which the system, HCCL and a run's services take ports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from commands.doctor.finding import Finding, KnownFault, Severity
from commands.doctor.system import System
from trimaran.host.device import Kind

OUTGOING = "proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "proc/sys/net/ipv4/ip_local_reserved_ports"
HCCL_RANGE = "HCCL_HOST_SOCKET_PORT_RANGE"

OURS_TAKEN = KnownFault(
    "ports/outgoing-overlap",
    Severity.WARNING,
    "the system gives out ports {first} to {last} for outgoing connections, and services of a run"
    " listen on {ours}",
    "a connection of any program may take a port between its choice and the service's start",
    "sysctl -w net.ipv4.ip_local_port_range='{start} 60999'",
)
HCCL_FIXED = KnownFault(
    "ports/hccl-fixed",
    Severity.WARNING,
    "HCCL's host ports are fixed ({variable} is not set)",
    "trainer, replicas and transfer groups on one host each make HCCL groups, and on fixed ports"
    " they collide (vLLM-Ascend's issues 3162 and 4725), or meet a connection of another program",
    "export HCCL_HOST_SOCKET_PORT_RANGE=auto HCCL_NPU_SOCKET_PORT_RANGE=auto",
)


@dataclass(frozen=True, slots=True)
class Ports:
    """Example: Ports(range(32768, 61000), (), {})"""

    outgoing: range
    reserved: tuple[range, ...]
    variables: Mapping[str, str]


def read_ports(system: System) -> Ports:
    first, last, *_ = (*system.numbers(OUTGOING), 32768, 60999)
    listed = re.findall(r"(\d+)(?:-(\d+))?", system.read(RESERVED))
    reserved = tuple(range(int(first), int(last or first) + 1) for first, last in listed)
    return Ports(range(first, last + 1), reserved, system.variables)


def check_ports(facts: Ports, ours: range, kind: Kind) -> Iterator[Finding]:
    """`ours`: on which the run's services listen."""
    first, last = facts.outgoing.start, facts.outgoing.stop - 1
    meet = range(max(first, ours.start), min(facts.outgoing.stop, ours.stop))
    if any(all(port not in one for one in facts.reserved) for port in meet):
        words = f"{ours.start} to {ours.stop - 1}"
        start = max(32768, ours.stop) if ours.stop < 60000 else 1024
        yield OURS_TAKEN.found(first=first, last=last, ours=words, start=start)
    if kind == "npu" and not facts.variables.get(HCCL_RANGE):
        yield HCCL_FIXED.found(variable=HCCL_RANGE)
