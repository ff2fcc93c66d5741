"""Where in a ledger to begin to read, when one group or one step of a million is asked for.

Each `Compacted` record says what all records before it add up to, and names the segment of the archive
before it, which begins with the `Compacted` record before. So a search goes back over these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from trimaran.ledger.ledger import stream_of
from trimaran.ledger.payloads.archive import first_record
from trimaran.ledger.payloads.files import Payloads
from trimaran.ledger.records import Tree
from trimaran.store import Store


class Start(NamedTuple):
    """Read the records behind `after`."""

    after: int
    state: Tree
    """What those up to `after` add up to, as `encode_state` writes it; empty before the first."""


async def find_start(
    store: Store, payloads: Payloads, run_id: str, is_early: Callable[[Tree], Any]
) -> Start:
    """The last place that is archived whose state is early enough; the ledger's beginning where none
    is.

    Example: await find_start(store, payloads, "demo", lambda state: state["next_number"] <= 17)
    """
    standing = await store.read(stream_of(run_id), None, 1)
    if not standing:
        return Start(0, {})
    [(sequence, tree)] = standing
    while tree["kind"] == "compacted":
        if is_early(tree["state"]):
            return Start(sequence - 1, tree["state"])
        sequence, tree = tree["first"], await first_record(payloads, tree["archive"])
    return Start(sequence - 1, {})
