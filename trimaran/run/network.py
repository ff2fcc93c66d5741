"""Where this host is reached: its own address in the run's subnet, the interface, free ports.

    host = find_host(config.network)
    host.address, host.interface          # ("10.0.0.7", "eth0"); ("127.0.0.1", "lo") without a subnet
    listener = host.listen()              # on a free port of network.ports

Each process looks on the host where it runs: two hosts may call the same network differently.
"""

from __future__ import annotations

import ipaddress
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psutil

from trimaran.config import NetworkSection, RunConfig
from trimaran.errors import InputError
from trimaran.host.system_errors import refused
from trimaran.trust.access import Trust

BACKLOG = 64
HTTP_BACKLOG = 1024

_reserved: dict[int, socket.socket] = {}
"""By this process."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of one interface. Example: Interface("eth0", "10.0.0.7")"""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Host:
    """How others reach the processes here.

    Example: Host("10.0.0.7", "eth0").free_address() == "10.0.0.7:24711"
    """

    address: str = "127.0.0.1"
    interface: str = "lo"
    ports: range = NetworkSection().port_range

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback

    def free_address(self, taken: frozenset[str] | set[str] = frozenset()) -> str:
        """host:port, kept for this process from other launchers and services of ours.

        Raises InputError when no port is left.
        """
        for port in _from_anywhere(self.ports):
            address = join(self.address, port)
            if address not in taken and is_free(address) and reserve(port):
                return address
        raise self._none_left()

    def listen(self, backlog: int = BACKLOG) -> socket.socket:
        """On a free port. Raises OSError where the address is not this host's, InputError when no
        port is left."""
        for port in _from_anywhere(self.ports):
            if (reservation := _take(port)) is None:
                continue
            with reservation:  # held no longer: from now on the port itself is taken
                try:
                    return socket.create_server(
                        (self.address, port), family=family_of(self.address), backlog=backlog
                    )
                except OSError:
                    if is_free(join(self.address, 0)):
                        continue
                    raise
        raise self._none_left()

    def _none_left(self) -> InputError:
        return InputError(
            f"network.ports: no free port from {self.ports.start} to {self.ports.stop - 1} on"
            f" {self.address}; widen the range, or end what listens there (ss -ltnp names it)"
        )


LOOPBACK = Host()


def find_host(
    network: NetworkSection | None = None, interfaces: Sequence[Interface] | None = None
) -> Host:
    """This host's address in `network.subnet`; loopback where no subnet is given.

    `interfaces`: those of this host where they are not given. Raises InputError naming what there
    is, where none of them or more than one lies in the subnet.
    """
    network = network or NetworkSection()
    if network.subnet is None:
        return replace(LOOPBACK, ports=network.port_range)
    subnet = ipaddress.ip_network(network.subnet)
    found = sorted(
        set(read_interfaces() if interfaces is None else interfaces),
        key=lambda one: (one.name, one.address),
    )
    within = [one for one in found if ipaddress.ip_address(one.address) in subnet]
    matches = [one for one in within if not ipaddress.ip_address(one.address).is_loopback]
    if len(matches) == 1:
        return Host(matches[0].address, matches[0].name, network.port_range)
    if matches:
        raise InputError(
            f"network.subnet: {subnet} holds several addresses of this host ({_list(matches)}); name"
            " a smaller subnet, in which each host has one"
        )
    raise InputError(
        f"network.subnet: this host has no address in {subnet}; it has {_list(found)}. Name the subnet"
        " in which the run's hosts reach each other, or leave it out for a run on one machine"
    )


def _from_anywhere(ports: range) -> Iterator[int]:
    """All of them, from a random one on, so that processes seldom try the same."""
    start = random.randrange(len(ports))
    yield from ports[start:]
    yield from ports[:start]


def check_tensors(config: RunConfig, trust: Trust, host: Host) -> None:
    """Raises InputError where tensors would leave this machine and be read by anyone who listens: of
    what carries them only the relay has TLS. The operator's word `trusted` allows all of it."""
    if host.is_loopback or trust.is_network_trusted:
        return
    trusted = "or say that everybody on the network may read it (network: trusted)"
    if trust.tls is None:
        raise InputError(
            f"network.subnet: {host.address} is beyond loopback, and nothing there is encrypted; give"
            f" the services TLS, {trusted}"
        )
    if config.weight_sync.transport != "relay":
        raise InputError(
            f"weight_sync.transport: {config.weight_sync.transport} sends weights without TLS; set"
            f" relay, {trusted}"
        )
    if config.rollout.hosts > 1:
        raise InputError(
            f"rollout.hosts: the {config.rollout.hosts} hosts of a replica exchange vllm's orders and"
            f" activations without TLS or a token; use one host, {trusted}"
        )
    if config.num_trainer_ranks > 1:
        raise InputError(
            f"trainer: {config.num_trainer_ranks} ranks exchange gradients without TLS; use one"
            f" rank, {trusted}"
        )


def join(host: str, port: int) -> str:
    """Example: join("fd00::7", 7001) == "[fd00::7]:7001" """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """What `join` joined. Raises ValueError where there is no port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listening_at(address: str, key: str) -> tuple[socket.socket, str]:
    """For HTTP; with the address as it was given, and its port. `key` names it in errors.

    Raises InputError, and UnavailableError where the machine is at fault.
    """
    try:
        host, port = split(address)
        listener = socket.create_server((host, port), family=family_of(host), backlog=HTTP_BACKLOG)
    except (OSError, ValueError, OverflowError) as error:
        raise refused(f"{key}: {address}: cannot be listened on", error, "name another") from None
    # Connections inherit it. asyncio does not set it on those of a socket that it did not make,
    # and TLS would wait 40 ms for an acknowledgement with each answer.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener, join(host, listener.getsockname()[1])


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_free(address: str) -> bool:
    """Whether the port can be bound; with port 0, whether the address is this host's."""
    try:
        host, port = split(address)
        with socket.socket(family_of(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError):
        return False
    return True


def reserve(port: int) -> bool:
    """Keeps other launchers from a port between its choice and the service's bind, and while that
    service is started again. False when another process has it."""
    if port in _reserved:
        return True
    if (reservation := _take(port)) is None:
        return False
    _reserved[port] = reservation
    return True


def _take(port: int) -> socket.socket | None:
    """A reservation is a socket without a file (Linux: its name begins with a zero byte), in the
    network namespace in which the port is. The kernel ends it with this process."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0trimaran-port-{port}")
    except OSError:
        reservation.close()
        return None
    return reservation


def read_interfaces() -> tuple[Interface, ...]:
    """All addresses of this host, of IPv4 and IPv6, but for those that mean something on one link only."""
    return tuple(
        Interface(name.partition(":")[0], one.address)  # an alias is "eth0:1"
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6)
        and not ipaddress.ip_address(one.address).is_link_local
    )


def _list(interfaces: Sequence[Interface]) -> str:
    return ", ".join(f"{one.name} {one.address}" for one in interfaces) or "none at all"
