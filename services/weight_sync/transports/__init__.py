"""How weights travel. `carrier.py` says what a transport has to do; this table names them all."""

from __future__ import annotations

from typing import Any

from services.weight_sync.transports.carrier import Carrier
from services.weight_sync.transports.group_carrier import GroupCarrier
from services.weight_sync.transports.memory_carrier import MemoryCarrier
from services.weight_sync.transports.relay_carrier import RelayCarrier
from trimaran.device import Device
from trimaran.tls import SocketTls
from trimaran.types import Transport


def make_carriers(
    device: Device, index: int, address: str, tls: SocketTls | None = None
) -> dict[Transport, Carrier[Any]]:
    """One receiver's. `address`: of the interface on which collectives listen. `tls`: of the relay."""
    return {
        Transport.COLLECTIVE: GroupCarrier(device, index, address),
        Transport.MEMORY: MemoryCarrier(),
        Transport.RELAY: RelayCarrier(tls=tls),
    }
