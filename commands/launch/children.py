"""What starts the processes of a run: a port with an implementation for each place.

| implementation | who starts a process | who ends one that is frozen |
|---|---|---|
| `LocalChildren` (`local_children.py`) | the launcher, on its own machine | the launcher |
| `RayChildren` (`ray/children.py`) | an actor on a node of the cluster | the launcher, through that actor |
| `ExternalChildren` (`external_children.py`) | a container engine; the process registers | the engine, by its probe |

`Processes` (`processes.py`) decides who is started again, when, and with whom; an implementation decides
nothing. It says who lives, and puts into `exits` what has ended without having been asked to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from commands.launch.service_process import Exit, ServiceProcess


class Child(Protocol):
    """One life of a service's process, from its start to its end."""

    @property
    def service(self) -> ServiceProcess: ...

    @property
    def incarnation(self) -> str:
        """Names this life among all of the run; empty while it is not known to have begun."""
        ...

    @property
    def began(self) -> float:
        """On this process's monotonic clock."""
        ...

    @property
    def address(self) -> str:
        """host:port at which it answers; empty where it is not known (yet): its health is not asked."""
        ...

    def is_stopped(self) -> bool:
        """The kernel lets it do nothing until it gets SIGCONT; False where that is not known."""
        ...


class Children(Protocol):
    """The services' processes that live, by name, and a queue of those that have ended.

    Example:
        children: Children = LocalChildren()
        await children.open()
        await children.start(service)
        ended = await children.exits.get()
    """

    exits: asyncio.Queue[Exit]
    """Processes that ended by themselves, or could not come to life; those that `end` ended are not
    in it."""

    @property
    def alive(self) -> Mapping[str, Child]:
        """Also those whose start is under way."""
        ...

    async def open(self) -> None:
        """Before anything else."""
        ...

    async def start(self, service: ServiceProcess) -> None:
        """Returns once the start is under way and `alive` holds it: what the start then comes to is
        seen there and in `exits`. Raises OSError where it cannot be started."""
        ...

    def can_start(self, name: str) -> bool:
        """Whether a replica beyond those that the run began with can be started now; where others
        start processes, it has to have come first."""
        ...

    async def end(self, names: Iterable[str], seconds: float) -> None:
        """Asks them for an orderly end, within `seconds`; who is left then is ended at once. Returns
        when they are gone, or when nothing more can be done for it. Unknown names are left out."""
        ...

    def kill(self, name: str) -> None:
        """Ends one at once, which counts as a death of its own; nothing where it is not alive."""
        ...

    def kill_all(self) -> None: ...

    async def close(self) -> None:
        """Ends what is left at once. Idempotent."""
        ...
