"""Which addresses a plugin may have. A run names hosts, and a host name may point anywhere.

The address that was judged is the one that is connected to, so a name that changes its answer
between the two (DNS rebinding) gains nothing. An origin that names an address literally is not
resolved: allowing it allows that address.
"""

from __future__ import annotations

import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from trimaran.trust.allowed import Allowed, origin_of

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""RFC 6052: the last 32 bits are an IPv4 address."""
CLOUD_CONTROL = ipaddress.ip_address("168.63.129.16")
"""Azure's control endpoint: a public number that only the own host answers."""
PROTOCOL_ASSIGNMENTS = ipaddress.ip_network("192.0.0.0/24")
"""RFC 6890. Python before 3.11.10 takes most of it for global; Oracle's older cloud has its metadata
at 192.0.0.192."""


class AddressRefusedError(OSError):
    """The host name points only to addresses that are not allowed."""


class GuardedResolver(AbstractResolver):
    """Resolves by `inner` and hands on only addresses that may be called.

    Example:
        resolver = GuardedResolver(aiohttp.ThreadedResolver(), Allowed())
        await resolver.resolve("rewards.example", 443)  # AddressRefusedError for 10.0.0.7
    """

    def __init__(self, inner: AbstractResolver, allowed: Allowed) -> None:
        self._inner, self._allowed = inner, allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises AddressRefusedError where no address is left."""
        found = await self._inner.resolve(host, port, family)
        usable = [result for result in found if may_connect(result["host"], host, self._allowed)]
        if not usable:
            addresses = ", ".join(sorted({result["host"] for result in found}))
            raise AddressRefusedError(
                f"{host} is {addresses}, which is not a public address; if you trust it, start"
                " with --allow and the network it lies in, or name the address itself in the URL"
            )
        return usable

    async def close(self) -> None:
        await self._inner.close()


def may_connect(address: str, host: str, allowed: Allowed) -> bool:
    """Whether an address that the name `host` points to may be called."""
    given = ipaddress.ip_address(address)
    target = _within(given)
    if any(given in network or target in network for network in allowed.networks):
        return True
    if host == "localhost":
        return target.is_loopback
    return is_public(target)


def is_public(address: Address) -> bool:
    """Neither private, shared, loopback, link-local (cloud metadata), multicast nor reserved."""
    return (
        address.is_global
        and not (address.is_multicast or address.is_reserved or address.is_link_local)
        and not (isinstance(address, ipaddress.IPv6Address) and address.is_site_local)
        and address != CLOUD_CONTROL
        and address not in PROTOCOL_ASSIGNMENTS
    )


def _within(address: Address) -> Address:
    """The IPv4 address that packets to an IPv6 address are translated or tunnelled to."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_local(url: str) -> bool:
    """Whether what is sent there stays on this machine."""
    host = origin_of(url, "url")[1]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
