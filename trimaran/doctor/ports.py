"""Port ranges that different owners take ports from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trimaran.device import Kind
from trimaran.doctor.finding import Check, Fault, Finding, Severity
from trimaran.doctor.system import System

OUTGOING = "proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "proc/sys/net/ipv4/ip_local_reserved_ports"
HCCL_BASE = "HCCL_IF_BASE_PORT"
HCCL_RANGE = "HCCL_HOST_SOCKET_PORT_RANGE"
HCCL_FIRST, HCCL_COUNT = 60000, 32
"""CANN's documentation of HCCL_IF_BASE_PORT: 60000 to 60031 since 8.5, 60000 to 60015 before; the
system must reserve them."""
LEAST_OUTGOING = 10000
"""A port rests for a minute after its connection: 64 replicas with reward plugins need thousands."""

OURS_TAKEN = Fault(
    "outgoing-overlap",
    Severity.WARNING,
    "the system gives out ports {first} to {last} for outgoing connections, and services of a run"
    " listen on {ours}",
    "a connection of any program may take a port between its choice and the service's start",
    "sysctl -w net.ipv4.ip_local_port_range='{mended} 60999'",
    symptom="Address already in use",
)
FEW = Fault(
    "few-outgoing",
    Severity.WARNING,
    "only {count} ports are there for outgoing connections ({first} to {last})",
    "connections fail when all of them are in use or rest after it",
    "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
    symptom="Cannot assign requested address",
)
HCCL_UNRESERVED = Fault(
    "hccl-not-reserved",
    Severity.WARNING,
    "HCCL listens on ports {hccl} ({why_these}), and the system may give them to others",
    "an outgoing connection of any program may hold one of them when a group is made",
    "sysctl -w net.ipv4.ip_local_reserved_ports={hccl}",
    symptom="EJ0003 or EI0019: Please check the port status and whether the port is being used by other process",
)
HCCL_OURS = Fault(
    "hccl-overlap",
    Severity.ERROR,
    "HCCL listens on ports {hccl} ({why_these}), and services of a run on {ours}",
    "whichever comes second fails to listen",
    "export HCCL_IF_BASE_PORT=60000   # or network.ports in the run's configuration",
    symptom="Address already in use; EJ0003: Failed to bind the IP port",
)
HCCL_FIXED = Fault(
    "hccl-shared-host",
    Severity.WARNING,
    "HCCL's host ports are fixed ({why_these})",
    "trainer, replicas and transfer groups on one host each make HCCL groups, and on fixed ports"
    " they collide (vLLM-Ascend's issues 3162 and 4725)",
    "export HCCL_HOST_SOCKET_PORT_RANGE=auto HCCL_NPU_SOCKET_PORT_RANGE=auto",
    symptom="socket type[0], listen on ip[...] and specific port[16666] fail",
)
CHECK = Check(
    "ports",
    "the system's range for outgoing connections, its reserved ports, HCCL's ports, and those of a"
    " run's services",
    (OURS_TAKEN, FEW, HCCL_UNRESERVED, HCCL_OURS, HCCL_FIXED),
)


@dataclass(frozen=True, slots=True)
class Ports:
    """Example: Ports(range(32768, 61000), (), {})"""

    outgoing: range
    reserved: tuple[range, ...]
    variables: Mapping[str, str]


def read_ports(system: System) -> Ports:
    first, last, *_ = (*system.numbers(OUTGOING), 32768, 60999)
    return Ports(range(first, last + 1), _ranges(system.read(RESERVED)), system.variables)


def check_ports(facts: Ports, ours: range, kind: Kind) -> Iterator[Finding]:
    """`ours`: on which the run's services listen."""
    first, last = facts.outgoing.start, facts.outgoing.stop - 1
    words = f"{ours.start} to {ours.stop - 1}"
    if _meet(facts.outgoing, ours) and not _covered(ours, facts.reserved):
        mended = max(32768, ours.stop) if ours.stop < 60000 else 1024
        yield CHECK.found(OURS_TAKEN, first=first, last=last, ours=words, mended=mended)
    if len(facts.outgoing) < LEAST_OUTGOING:
        yield CHECK.found(FEW, count=len(facts.outgoing), first=first, last=last)
    if kind == "npu" and facts.variables.get(HCCL_RANGE) != "auto":
        yield from _check_hccl(facts, ours)


def _check_hccl(facts: Ports, ours: range) -> Iterator[Finding]:
    listed, base = facts.variables.get(HCCL_RANGE, ""), facts.variables.get(HCCL_BASE, "")
    start = int(base) if base.isdecimal() else HCCL_FIRST
    hccl = _ranges(listed) or (range(start, start + HCCL_COUNT),)
    why = f"{HCCL_RANGE}={listed}" if listed else f"{HCCL_BASE}={base}" if base else "its default"
    shown = ",".join(f"{one.start}-{one.stop - 1}" for one in hccl)
    if any(_meet(one, facts.outgoing) and not _covered(one, facts.reserved) for one in hccl):
        yield CHECK.found(HCCL_UNRESERVED, hccl=shown, why_these=why)
    if listed:  # groups take free ones of it
        return
    yield CHECK.found(HCCL_FIXED, why_these=why)
    if any(_meet(one, ours) for one in hccl):
        words = f"{ours.start} to {ours.stop - 1}"
        yield CHECK.found(HCCL_OURS, hccl=shown, why_these=why, ours=words)


def _ranges(text: str) -> tuple[range, ...]:
    """Of "60000-60015,61000"."""
    found = re.findall(r"(\d+)(?:-(\d+))?", text)
    return tuple(range(int(first), int(last or first) + 1) for first, last in found)


def _meet(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _covered(ports: range, reserved: tuple[range, ...]) -> bool:
    return all(any(port in one for one in reserved) for port in ports)
