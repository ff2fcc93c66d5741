"""The sections `weight_sync`, `network` and `endpoints`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from trimaran.config.section import Section
from trimaran.config.values import (
    MAX_SECONDS,
    Address,
    Positive,
    Seconds,
    TransportName,
    check_ports,
    check_subnet,
)


class WeightSyncSection(Section):
    """How new weights reach the replicas; docs/weight-plane.md explains each key.

    weight_sync: {transport: collective, delta: true}
    """

    transport: TransportName = "auto"
    """auto: shared memory inside one machine, else collective. Whatever is chosen, joiners,
    laggards and survivors of a broken group use the relay."""
    delta: bool = False
    """Send changed elements only, where that is smaller. The trainer then compares each version
    with the one before it."""
    bucket_mib: Positive = 64
    """Two buckets are under way at a time."""
    relay_fan_out: Positive = 2
    """Pullers that one peer serves at a time."""
    stage_timeout: Seconds = 120
    commit_timeout: Seconds = 60
    join_timeout: Seconds = 60
    prove_timeout: Seconds = 60
    """For one replica to read back everything that it has loaded."""
    heartbeat_timeout: Annotated[float, Field(ge=1, le=MAX_SECONDS)] = 30
    """Silence after which a replica leaves routing."""
    sample_share: Annotated[float, Field(gt=0, le=1)] = 0.125
    """Share of the blocks that an engine reads back at a time, in rotation; run.proof says how often."""


class NetworkSection(Section):
    """Where the run's processes meet. `network: {subnet: 10.0.0.0/8, ports: 20000-32767}`"""

    subnet: Annotated[str, AfterValidator(check_subnet)] | None = None
    """Each host listens on its own address in it, and tensors travel over that address' interface.
    Without it all processes are on one machine, and listen on loopback."""
    # Below Linux' range for outgoing connections: our own calls never take a port between its
    # choice and the service's bind.
    ports: Annotated[str, Field(pattern=r"^\d{1,5}-\d{1,5}$"), AfterValidator(check_ports)] = (
        "20000-32767"
    )
    """Ports on which processes listen, first to last; a firewall has to let them through."""

    @property
    def port_range(self) -> range:
        first, last = map(int, self.ports.split("-"))
        return range(first, last + 1)


class Endpoints(Section):
    """host:port of every service. `trimaran train` fills in free loopback ports.

    endpoints: {reward: "127.0.0.1:7001", rollout: ["127.0.0.1:7003", "127.0.0.1:7004"]}
    """

    controller: Address | None = None
    reward: Address | None = None
    weight_sync: Address | None = None
    rollout: tuple[Address, ...] = ()
    trainer: tuple[Address, ...] = ()
    """One address a rank, rank 0 first."""
    environment: tuple[Address, ...] = ()
