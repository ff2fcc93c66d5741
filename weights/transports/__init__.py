"""How weights travel. `carrier.py` says what a transport has to do; this table names them all."""

from __future__ import annotations

from typing import Any

from trimaran.host.device import Device
from trimaran.trust.tls import SocketTls
from trimaran.types import Transport
from weights.transports.carrier import Carrier
from weights.transports.collective.group_carrier import GroupCarrier
from weights.transports.memory_carrier import MemoryCarrier
from weights.transports.relay.relay_carrier import RelayCarrier


def make_carriers(
    device: Device, index: int, address: str, tls: SocketTls | None = None
) -> dict[Transport, Carrier[Any]]:
    """One receiver's. `address`: of the interface on which collectives listen. `tls`: of the relay."""
    return {
        Transport.COLLECTIVE: GroupCarrier(device, index, address),
        Transport.MEMORY: MemoryCarrier(),
        Transport.RELAY: RelayCarrier(tls=tls),
    }
