"""Names, addresses and interfaces by which the processes of several hosts find each other."""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trimaran.config import RunConfig
from trimaran.doctor.finding import Check, Fault, Finding, Severity
from trimaran.doctor.system import System

SIOCGIFADDR = 0x8915
INTERFACE_VARIABLES = (
    *("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"),
)
ADDRESS_VARIABLES = ("MASTER_ADDR", "HCCL_IF_IP", "VLLM_HOST_IP", "CURRENT_IP")
OWN_ADDRESS_VARIABLES = ("HCCL_IF_IP", "VLLM_HOST_IP", "CURRENT_IP")

LOCALHOST = Fault(
    "localhost",
    Severity.WARNING,
    "{where} is {value}: this machine only",
    "other hosts take it for themselves, and wait for a process that never comes; on one host it"
    " works",
    "{setting}{address}",
    symptom="connection refused; rendezvous timed out",
)
OWN_NAME = Fault(
    "own-name",
    Severity.WARNING,
    "/etc/hosts gives this machine's name {name} the address {value}",
    "libraries that ask for the address of their own host tell loopback to the others; Debian"
    " installs it so",
    "sed -i 's/^{value}[[:space:]].*/{address} {name}/' /etc/hosts",
    symptom="Gloo connectFullMesh failed; 127.0.1.1: connection refused",
)
NO_INTERFACE = Fault(
    "no-interface",
    Severity.ERROR,
    "{variable}={value}: there is no such interface here; there are {known}",
    "the library looks for it while a group is made, and fails or waits for ever",
    "export {variable}={interface}",
    symptom="Unable to find address for interface; Bootstrap: no socket interface found",
)
OTHER_INTERFACE = Fault(
    "other-interface",
    Severity.ERROR,
    "{variable}={value} has {has}, and not {wanted}",
    "peers are told one address while packets go by another interface: groups hang while they are"
    " made",
    "export {variable}={interface}",
    symptom="rendezvous timed out; EI0006: Getting socket times out",
)
FOREIGN_ADDRESS = Fault(
    "foreign-address",
    Severity.ERROR,
    "{variable}={value}: no interface here has this address; there are {known}",
    "a process cannot listen on an address that another host has, or nobody",
    "export {variable}={address}",
    symptom="Cannot assign requested address (EADDRNOTAVAIL)",
)
OUTSIDE_SUBNET = Fault(
    "outside-subnet",
    Severity.ERROR,
    "no interface here has an address in {subnet}; there are {known}",
    "every service of the run listens on this host's address in that subnet",
    "network.subnet=...   # in the run's configuration: a subnet of one of these addresses",
)
CHECK = Check(
    "addresses",
    "`localhost` where other hosts must reach it, the host's own name, and interfaces against"
    " addresses: `GLOO_`, `TP_`, `NCCL_` and `HCCL_SOCKET_IFNAME`, `HCCL_IF_IP`, `VLLM_HOST_IP`,"
    " `MASTER_ADDR`, the run's subnet",
    (LOCALHOST, OWN_NAME, NO_INTERFACE, OTHER_INTERFACE, FOREIGN_ADDRESS, OUTSIDE_SUBNET),
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Example: Addresses("node-1", {"node-1": "10.0.0.1"}, {"lo": "127.0.0.1"}, {})"""

    name: str
    """Of the host."""
    names: Mapping[str, str]
    """Of /etc/hosts: name -> the first address."""
    interfaces: Mapping[str, str]
    """Interface -> its first IPv4 address; empty where it has none."""
    variables: Mapping[str, str]

    @property
    def best(self) -> tuple[str, str]:
        """The interface that others most likely reach this host by, and its address."""
        usable = [(name, own) for name, own in self.interfaces.items() if own and not _loops(own)]
        return usable[0] if usable else ("lo", "127.0.0.1")


def read_addresses(system: System) -> Addresses:
    names: dict[str, str] = {}
    for line in system.read("etc/hosts").splitlines():
        address, *listed = line.partition("#")[0].split() or [""]
        for name in listed:
            names.setdefault(name, address)
    interfaces = {name: _address_of(name) for _, name in socket.if_nameindex()}
    return Addresses(socket.gethostname(), names, interfaces, system.variables)


def check_addresses(
    facts: Addresses, config: RunConfig | None, subnet: str | None = None
) -> Iterator[Finding]:
    """`subnet`: in which the run's hosts reach each other; None where it stays on one."""
    interface, address = _inside(facts, subnet) or facts.best
    known = ", ".join(f"{name} {own or 'without one'}" for name, own in facts.interfaces.items())
    if subnet is not None and _inside(facts, subnet) is None:
        yield CHECK.found(OUTSIDE_SUBNET, subnet=subnet, known=known)
    severity = Severity.ERROR if subnet is not None else None
    for where, setting, value in _named(facts.variables, config):
        if _loops(value) and (value == "localhost" or subnet is not None):
            places = {"where": where, "value": value, "setting": setting, "address": address}
            yield CHECK.found(LOCALHOST, severity, **places)
    if _loops(own := facts.names.get(facts.name, "")) and address != "127.0.0.1":
        yield CHECK.found(OWN_NAME, name=facts.name, value=own, address=address)
    for variable in OWN_ADDRESS_VARIABLES:
        value = facts.variables.get(variable, "")
        if value and not _loops(value) and value not in facts.interfaces.values():
            yield CHECK.found(
                FOREIGN_ADDRESS, variable=variable, value=value, known=known, address=address
            )
    yield from _check_interfaces(facts, subnet, interface, known)


def _check_interfaces(
    facts: Addresses, subnet: str | None, interface: str, known: str
) -> Iterator[Finding]:
    for variable in INTERFACE_VARIABLES:
        if not (value := facts.variables.get(variable, "")):
            continue
        places = {"variable": variable, "value": value, "interface": interface}
        chosen = _chosen(variable, value, facts.interfaces)
        if not chosen:
            yield CHECK.found(NO_INTERFACE, known=known, **places)
            continue
        own = {facts.interfaces[name] for name in chosen} - {""}
        has = ", ".join(sorted(own)) or "no address"
        if subnet is not None and not any(_is_in(one, subnet) for one in own):
            yield CHECK.found(OTHER_INTERFACE, has=has, wanted=f"one in {subnet}", **places)
        wanted = facts.variables.get("HCCL_IF_IP", "")
        if variable.startswith("HCCL") and wanted in facts.interfaces.values() and wanted not in own:
            yield CHECK.found(OTHER_INTERFACE, has=has, wanted=f"{wanted} (HCCL_IF_IP)", **places)


def _chosen(variable: str, value: str, interfaces: Mapping[str, str]) -> list[str]:
    """As the libraries read it: Gloo and TensorPipe take names, NCCL and HCCL the beginnings of
    names, `=` whole ones, and `^` all others."""
    names = value.lstrip("^=").split(",")
    whole = value.startswith(("=", "^=")) or variable.startswith(("GLOO", "TP"))
    matches = [
        name
        for name in interfaces
        if any(name == one or (not whole and one and name.startswith(one)) for one in names)
    ]
    return [name for name in interfaces if name not in matches] if value[0] == "^" else matches


def _named(
    variables: Mapping[str, str], config: RunConfig | None
) -> Iterator[tuple[str, str, str]]:
    """Where an address is given, how it is set, and its host."""
    for variable in ADDRESS_VARIABLES:
        if value := variables.get(variable):
            yield variable, f"export {variable}=", value
    if config is None:
        return
    yield "weight_sync.address", "weight_sync.address=", config.weight_sync.address
    for key, value in config.endpoints:
        for address in (value,) if isinstance(value, str) else value or ():
            host, _, port = address.rpartition(":")
            yield f"endpoints.{key}", f"# port {port}: endpoints.{key}=", host


def _inside(facts: Addresses, subnet: str | None) -> tuple[str, str] | None:
    if subnet is None:
        return None
    found = (pair for pair in facts.interfaces.items() if pair[1] and _is_in(pair[1], subnet))
    return next(found, None)


def _is_in(address: str, subnet: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(subnet, strict=False)


def _loops(value: str) -> bool:
    return value == "localhost" or re.match(r"127\.|::1$", value) is not None


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
