"""Names, addresses and interfaces by which the processes of several hosts find each other."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from commands.doctor.finding import Finding, KnownFault, Severity
from commands.doctor.system import System
from trimaran.config import NetworkSection, RunConfig
from trimaran.errors import InputError
from trimaran.run.environment import network_environment
from trimaran.run.network import Interface, find_host, read_interfaces, split

INTERFACE_VARIABLES = (
    *("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"),
)
OWN_ADDRESS_VARIABLES = ("HCCL_IF_IP", "VLLM_HOST_IP", "CURRENT_IP")
ADDRESS_VARIABLES = ("MASTER_ADDR", *OWN_ADDRESS_VARIABLES)

LOCALHOST = KnownFault(
    "addresses/localhost",
    Severity.WARNING,
    "{where} is {value}: this machine only",
    "other hosts take it for themselves, and wait for a process that never comes; on one host it"
    " works",
    "{setting}={address}",
)
OWN_NAME = KnownFault(
    "addresses/own-name",
    Severity.WARNING,
    "/etc/hosts gives this machine's name {name} the address {value}",
    "libraries that ask for the address of their own host give loopback to the others; Debian"
    " installs it so",
    "sed -i '1i {address} {name}' /etc/hosts",
)
NO_INTERFACE = KnownFault(
    "addresses/no-interface",
    Severity.ERROR,
    "{variable}={value}: there is no such interface here; there are {known}",
    "the library looks for it while a group is made, and fails or waits for ever",
    "export {variable}={interface}",
)
OTHER_INTERFACE = KnownFault(
    "addresses/other-interface",
    Severity.ERROR,
    "{what}",
    "peers get one address while packets go by another interface: groups hang while they are made",
    "unset {variable}   # a run sets it by itself",
)
FOREIGN_ADDRESS = KnownFault(
    "addresses/foreign-address",
    Severity.ERROR,
    "{variable}={value}: no interface here has this address; there are {known}",
    "a process cannot listen on an address that another host has, or none",
    "export {variable}={address}",
)
OUTSIDE_SUBNET = KnownFault(
    "addresses/outside-subnet",
    Severity.ERROR,
    "{what}",
    "every service of the run listens on this host's address in that subnet",
    "network.subnet=...   # in the run's configuration; `ip -brief address` lists what there is",
)
NO_SUBNET = KnownFault(
    "addresses/no-subnet",
    Severity.WARNING,
    "rollout.hosts is {hosts}, and network.subnet is not given",
    "the hosts of a replica reach each other in that subnet, by its interface, and vLLM and Gloo take any"
    " port there; without it all of them listen on 127.0.0.1",
    "network.subnet=...   # unless the manager's own configuration has it, services.network",
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Example: Addresses("node-1", {"node-1": "10.0.0.1"}, (Interface("lo", "127.0.0.1"),), {})"""

    name: str
    """The host's."""
    names: Mapping[str, str]
    """Name -> its first address in /etc/hosts."""
    interfaces: Sequence[Interface]
    """None, where the kernel does not list them: then nothing is said of them."""
    variables: Mapping[str, str]

    def own(self, network: NetworkSection) -> Interface:
        """In the subnet, or that by which others most likely reach this host."""
        try:
            host = find_host(network, self.interfaces)
        except InputError:
            host = None
        if host is not None and not host.is_loopback:
            return Interface(host.interface, host.address)
        usable = (one for one in self.interfaces if not _loops(one.address))
        return next(usable, Interface("lo", "127.0.0.1"))


def read_addresses(system: System) -> Addresses:
    names: dict[str, str] = {}
    for line in system.read("etc/hosts").splitlines():
        address, *listed = line.partition("#")[0].split() or [""]
        for name in listed:
            names.setdefault(name, address)
    try:
        interfaces = read_interfaces()
    except OSError:  # a sandbox without netlink
        interfaces = ()
    return Addresses(socket.gethostname(), names, interfaces, system.variables)


def check_addresses(facts: Addresses, config: RunConfig | None) -> Iterator[Finding]:
    network = config.network if config is not None else NetworkSection()
    own, given = facts.own(network), facts.variables
    known = ", ".join(f"{one.name} {one.address}" for one in facts.interfaces)
    localhost = LOCALHOST.at(Severity.ERROR) if network.subnet is not None else LOCALHOST
    for where, setting, value in _named(given, config):
        if _loops(value) and (value == "localhost" or network.subnet is not None):
            places = {"where": where, "value": value, "setting": setting, "address": own.address}
            yield localhost.found(**places)
    hosts_entry = facts.names.get(facts.name, "")
    stays_here = config is not None and network.subnet is None
    if _loops(hosts_entry) and not _loops(own.address) and not stays_here:
        yield OWN_NAME.found(name=facts.name, value=hosts_entry, address=own.address)
    for variable in OWN_ADDRESS_VARIABLES:
        value, there = given.get(variable, ""), {one.address for one in facts.interfaces}
        if value and there and not _loops(value) and value not in there:
            places = {"variable": variable, "value": value, "known": known}
            yield FOREIGN_ADDRESS.found(address=own.address, **places)
    for variable in INTERFACE_VARIABLES:
        value = given.get(variable)
        if value and facts.interfaces and not _chosen(variable, value, facts.interfaces):
            places = {"variable": variable, "value": value, "known": known}
            yield NO_INTERFACE.found(interface=own.name, **places)
    if config is not None and config.rollout.hosts > 1 and network.subnet is None:
        yield NO_SUBNET.found(hosts=config.rollout.hosts)
    if network.subnet is not None:
        yield from _check_subnet(facts, network)


def _check_subnet(facts: Addresses, network: NetworkSection) -> Iterator[Finding]:
    """This host's interface in the run's subnet, against the variables that name another one."""
    there = {
        name: value
        for name, value in facts.variables.items()
        if (name in INTERFACE_VARIABLES and _chosen(name, value, facts.interfaces))
        or (name in OWN_ADDRESS_VARIABLES and value in {one.address for one in facts.interfaces})
    }
    try:
        network_environment(find_host(network, facts.interfaces), there)
    except InputError as error:
        for what in str(error).splitlines():
            variable = what.partition("=")[0]
            if variable in there:
                yield OTHER_INTERFACE.found(what=what, variable=variable)
            else:
                yield OUTSIDE_SUBNET.found(what=what)


def _chosen(variable: str, value: str, interfaces: Sequence[Interface]) -> list[Interface]:
    """As the libraries read it: Gloo and TensorPipe take whole names, NCCL and HCCL beginnings of
    names; `=` stands before whole ones, and `^` before those that are not meant."""
    names = value.removeprefix("^").removeprefix("=").split(",")
    is_whole = value.removeprefix("^").startswith("=") or variable.startswith(("GLOO", "TP"))
    meant = [
        one
        for one in interfaces
        if one.name in names
        or (not is_whole and any(name and one.name.startswith(name) for name in names))
    ]
    return [one for one in interfaces if one not in meant] if value.startswith("^") else meant


def _named(
    variables: Mapping[str, str], config: RunConfig | None
) -> Iterator[tuple[str, str, str]]:
    """Where an address is given, how it is set, and its host."""
    for variable in ADDRESS_VARIABLES:
        if value := variables.get(variable):
            yield variable, f"export {variable}", value
    for key, value in config.endpoints if config is not None else ():
        for address in (value,) if isinstance(value, str) else value or ():
            host, port = split(address)
            yield f"endpoints.{key}", f"# with port {port}: endpoints.{key}", host


def _loops(value: str) -> bool:
    if value == "localhost":
        return True
    try:
        return ipaddress.ip_address(value).is_loopback
    except ValueError:
        return False
