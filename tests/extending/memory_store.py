"""A store inside one process: the whole of what docs/extending.md shows in part."""

import json
import time
from collections import defaultdict
from threading import Lock

from trimaran.errors import OutOfOrderError, StaleEpochError
from trimaran.store import ConflictError, Lease, Record, TrimmedError


class MemoryStore:
    durability = "kept in memory: ends with its process"

    def __init__(self, clock=time.monotonic):
        self._lock, self._clock = Lock(), clock
        self._ticks = 0
        self._records, self._streams, self._leases = {}, defaultdict(list), {}
        self._trimmed, self._epochs = defaultdict(int), defaultdict(int)

    async def get(self, key):
        return self._record(key) if key in self._records else None

    async def put(self, key, value, expected=None):
        text = json.dumps(value)
        with self._lock:
            self._expect(key, expected)
            return self._put(key, text)

    async def delete(self, key, expected=None):
        with self._lock:
            self._expect(key, expected)
            self._records.pop(key, None)

    async def list_records(self, prefix="", after="", limit=1000):
        keys = [key for key in sorted(self._records) if key.startswith(prefix) and key > after]
        return tuple([(key, self._record(key)) for key in keys[:limit]])

    async def put_fenced(self, records, name, epoch):
        texts = {key: json.dumps(value) for key, value in records.items()}
        with self._lock:
            newest = self._epochs[name]
            if epoch < newest:
                raise StaleEpochError(f"run {name}: epoch {epoch} was replaced by {newest}")
            for key, text in texts.items():
                self._put(key, text)

    async def extend(self, stream, values, after=None):
        texts = [json.dumps(value) for value in values]
        with self._lock:
            last = self._last(stream)
            if after is not None and after != last:
                raise OutOfOrderError(f"{stream}: ends at {last}, not at {after}")
            self._streams[stream] += texts
            return last + len(texts)

    async def read(self, stream, after=None, limit=1000):
        with self._lock:
            through = self._trimmed[stream]
            if after is not None and after < through:
                raise TrimmedError(stream, after, through)
            start = max(after or 0, through) - through
            texts = self._streams[stream][start : start + limit]
        return tuple((through + start + i, json.loads(text)) for i, text in enumerate(texts, 1))

    async def last(self, stream):
        return self._last(stream)

    async def trim(self, stream, through):
        with self._lock:
            count = min(through, self._last(stream)) - self._trimmed[stream]
            if count > 0:
                del self._streams[stream][:count]
                self._trimmed[stream] += count

    async def acquire(self, name, holder, seconds):
        with self._lock:
            held = self._held(name)
            if held and held.holder != holder:
                return None
            self._epochs[name] += 1
            lease = Lease(name, holder, self._epochs[name])
            self._leases[name] = lease, self._clock() + seconds
            return lease

    async def renew(self, lease, seconds):
        with self._lock:
            if self._leases.get(lease.name, (None, 0))[0] != lease:
                raise ConflictError(f"lease {lease.name}: {lease.holder} does not hold it any more")
            self._leases[lease.name] = lease, self._clock() + seconds

    async def release(self, lease):
        with self._lock:
            if self._leases.get(lease.name, (None, 0))[0] == lease:
                del self._leases[lease.name]

    async def holder(self, name):
        return self._held(name)

    async def next_epoch(self, name):
        with self._lock:
            self._epochs[name] += 1
            return self._epochs[name]

    async def newest_epoch(self, name):
        return self._epochs[name]

    async def delete_all(self, prefix=""):
        with self._lock:
            for names in (
                *(self._records, self._streams, self._trimmed, self._leases, self._epochs),
            ):
                for name in [name for name in names if name.startswith(prefix)]:
                    del names[name]

    async def close(self):
        """Idempotent."""

    def _expect(self, key, expected):
        version = self._records.get(key, (None, 0))[1]
        if expected is not None and expected != version:
            raise ConflictError(f"{key}: has version {version}, not {expected}; read it again")

    def _record(self, key):
        text, version = self._records[key]
        return Record(json.loads(text), version)

    def _put(self, key, text):
        self._ticks += 1
        self._records[key] = text, self._ticks
        return self._ticks

    def _last(self, stream):
        return self._trimmed[stream] + len(self._streams[stream])

    def _held(self, name):
        lease, until = self._leases.get(name, (None, 0))
        return lease if until > self._clock() else None
