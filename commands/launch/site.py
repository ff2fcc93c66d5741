"""What a run consists of, and what starts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commands.launch.children import Children
from commands.launch.service_process import ServiceProcess

MakeReplica = Callable[[int, tuple[str, ...]], Sequence[ServiceProcess]]
"""By index and devices: the replica's own process first, then those on its further hosts. Raises InputError where it cannot be."""


@dataclass(frozen=True, slots=True)
class Site:
    """Example: Site(run_services(config, folder, placement), make_replica, LocalChildren())"""

    services: Sequence[ServiceProcess]
    """Those with which the run begins."""
    make_replica: MakeReplica
    """For replicas that join later."""
    children: Children
    num_devices: int = 0
    """Accelerators of those, where the launcher shares them out itself; elsewhere the manager knows."""
