"""What outlives a process: records, append-only streams, leases and fencing epochs.

`port.py` says what a run needs of a store, `open_store` chooses one by its URL: one SQLite file for
the processes of one machine, or a Redis server. Nothing outside this package knows which it is.
"""

from trimaran.store.open import (
    OPEN_SECONDS,
    find_store,
    is_shared,
    open_store,
    read_store,
    run_store_url,
    store_from,
    store_in,
    store_name,
    written_at,
)
from trimaran.store.port import (
    ConflictError,
    Entry,
    Lease,
    LostWritesError,
    Record,
    Store,
    StoreError,
    StoreFullError,
    TrimmedError,
    entries,
    kept_entries,
    records,
)
from trimaran.store.probe import ServerFacts, probe_server
from trimaran.store.timed import timed

__all__ = [
    "OPEN_SECONDS",
    "ConflictError",
    "Entry",
    "Lease",
    "LostWritesError",
    "Record",
    "ServerFacts",
    "Store",
    "StoreError",
    "StoreFullError",
    "TrimmedError",
    "entries",
    "find_store",
    "is_shared",
    "kept_entries",
    "open_store",
    "probe_server",
    "read_store",
    "records",
    "run_store_url",
    "store_from",
    "store_in",
    "store_name",
    "timed",
    "written_at",
]
