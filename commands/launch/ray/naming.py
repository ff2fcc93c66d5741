"""Names on a Ray cluster, which several managers may use.

Two stores may have a run of one id. A mark that lies in the run's store distinguishes them, however
the store is reached: URL and host name may differ from one launcher to the next.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from trimaran.run.runs import ray_key
from trimaran.store import ConflictError, Store

MARK_BYTES = 4


async def own_prefix(store: Store, run_id: str) -> str:
    """What the names of a run's actors and placement groups begin with, in all its lives.

    Raises as each call of the store does.

    Example: `await own_prefix(store, "demo-1") == "demo-1~9f86d081/"`
    """
    key = ray_key(run_id)
    with suppress(ConflictError):  # an earlier launcher has made one
        await store.put(key, {"mark": secrets.token_hex(MARK_BYTES)}, expected=0)
    record = await store.get(key)
    assert record, "it is not deleted while the run has a launcher"
    return f"{run_id}~{record.value['mark']}/"
