"""One transfer group at a time: what an accelerator's groups need, and the host's do not.

NCCL asks that communicators which share a device be used one after the other, in
the same order on all ranks, or else they may deadlock ("Using multiple NCCL
communicators concurrently" in its user guide). What HCCL does is unknown.

Two things make it so. A process gives its groups a `GroupTurn`: the next group begins
when torch has left the one before it, also where that one has failed. A receiver
takes its senders in the order of the plan (`Carrier.one_at_a_time`), which is the
same for every receiver. So all wait for the same sender, the first in that order
that has not finished, and it waits for none of the others: no circle can form.

Before each transfer the members `meet` at the group's store. So none waits on
its device for one that is busy with another sender, or is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

HERE, GO = "trimaran/here", "trimaran/go"
MEET_POLL_SECONDS = 0.005


class GroupTurn:
    """A process's turn: the group that has it may use torch's collectives.

    Example:

        turn = GroupTurn()
        Collective(device, 0, "127.0.0.1", first, 1, turn)
        Collective(device, 0, "127.0.0.1", second, 1, turn)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self, seconds: float) -> None:
        """Raises TimeoutError when another group still has it after `seconds`."""
        if not self._lock.acquire(timeout=max(seconds, 0.0)):
            raise TimeoutError(
                "torch has not left an earlier transfer group of this process;"
                " if that stays so, restart this process"
            )

    def give(self) -> None:
        self._lock.release()


def meet(
    store: Store, rank: int, size: int, transfer: int, check_alive: Callable[[], None]
) -> None:
    """Returns once all members are here for the group's transfer number `transfer`, from 1.

    Rank 0 looks for the others and announces them. `check_alive` is called again and again, and ends
    the wait by what it raises.
    """

    def has_come(key: str) -> bool:
        return store.check([key]) and int(store.get(key)) >= transfer

    def wait_for(key: str) -> None:
        while not has_come(key):
            check_alive()
            time.sleep(MEET_POLL_SECONDS)

    if rank:
        store.set(f"{HERE}/{rank}", str(transfer))
        wait_for(GO)
        return
    for other in range(1, size):
        try:
            wait_for(f"{HERE}/{other}")
        except TimeoutError as error:
            raise TimeoutError(f"receiver {other} did not come ({error})") from None
    store.set(GO, str(transfer))
