from __future__ import annotations

import ipaddress
import subprocess
import sys

import pytest

from trimaran.config import NetworkSection
from trimaran.errors import InputError
from trimaran.run.network import (
    LOOPBACK,
    Host,
    Interface,
    find_host,
    is_free,
    join,
    read_interfaces,
    split,
)

LO = (Interface("lo", "127.0.0.1"), Interface("lo", "::1"))
TWO_NETWORKS = (*LO, Interface("eth0", "192.168.1.4"), Interface("ib0", "10.7.0.4"))


def test_without_a_subnet_a_run_stays_on_loopback() -> None:
    assert find_host(NetworkSection(), TWO_NETWORKS) == LOOPBACK
    assert LOOPBACK.is_loopback


@pytest.mark.parametrize(
    ("subnet", "address", "interface"),
    [
        ("10.0.0.0/8", "10.7.0.4", "ib0"),
        ("192.168.1.4/32", "192.168.1.4", "eth0"),
        ("fd00:7::/64", "fd00:7::4", "eth0"),
    ],
)
def test_a_host_is_known_by_its_address_in_the_subnet(
    subnet: str, address: str, interface: str
) -> None:
    there = (*TWO_NETWORKS, Interface("eth0", "fd00:7::4"))
    host = find_host(NetworkSection(subnet=subnet, ports="30000-30009"), there)
    assert host == Host(address, interface, range(30000, 30010))
    assert not host.is_loopback


def test_no_address_and_several_are_told_with_those_that_exist() -> None:
    none = (
        "subnet: this host has no address in 10.9.0.0/16; it has eth0 192.168.1.4, ib0 10.7.0.4, lo"
    )
    with pytest.raises(InputError, match=none):
        find_host(NetworkSection(subnet="10.9.0.0/16"), TWO_NETWORKS)
    twice = (*TWO_NETWORKS, Interface("eth1", "10.8.0.4"))
    with pytest.raises(InputError, match=r"several addresses .*\(eth1 10.8.0.4, ib0 10.7.0.4\)"):
        find_host(NetworkSection(subnet="10.0.0.0/8"), twice)
    with pytest.raises(InputError, match="no address in 0.0.0.0/0"):
        find_host(NetworkSection(subnet="0.0.0.0/0"), LO)


def test_the_kernel_lists_the_addresses_that_ip_shows() -> None:
    found = set(read_interfaces())
    assert Interface("lo", "127.0.0.1") in found
    assert all(not ipaddress.ip_address(one.address).is_link_local for one in found)
    shown = subprocess.run(["ip", "-o", "addr", "show"], capture_output=True, text=True, check=True)
    words = [line.split() for line in shown.stdout.splitlines() if "scope link" not in line]
    assert found == {Interface(line[1], line[3].partition("/")[0]) for line in words}


def test_a_listener_takes_a_free_port_of_the_range() -> None:
    with LOOPBACK.listen() as listener:
        address, port = listener.getsockname()
        assert port in LOOPBACK.ports
        assert not is_free(join(address, port))
        with pytest.raises(InputError, match="network.ports: no free port"):
            Host(ports=range(port, port + 1)).listen()


def test_a_port_that_another_process_has_reserved_is_left_alone() -> None:
    """A launcher's service may bind it any moment, for the first time or again."""
    port = split(LOOPBACK.free_address())[1]
    code = f"from trimaran.run.network import Host; Host(ports=range({port}, {port + 1})).listen()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "no free port" in done.stderr


def test_an_address_that_is_not_this_hosts_is_no_lack_of_ports() -> None:
    with pytest.raises(OSError, match="assign"):
        Host("192.0.2.99", "eth7").listen()


def test_ipv6_is_listened_on() -> None:
    with Host("::1", "lo").listen() as listener:
        host, port = listener.getsockname()[:2]
    assert (host, join(host, port)) == ("::1", f"[::1]:{port}")
    assert split(join(host, port)) == (host, port)
