"""A store inside one process: the whole of what docs/extending.md shows in part."""

import json
from collections import defaultdict
from threading import Lock

from trimaran.errors import OutOfOrderError, StaleEpochError


class MemoryStore:
    def __init__(self):
        self._lock = Lock()
        self._records = {}
        self._streams = defaultdict(list)
        self._epochs = defaultdict(int)

    def put(self, key, value):
        self._records[key] = json.dumps(value)

    def put_fenced(self, records, name, epoch):
        new = {key: json.dumps(value) for key, value in records.items()}
        with self._lock:
            if epoch < self._epochs[name]:
                raise StaleEpochError(
                    f"run {name}: epoch {epoch} was replaced by {self._epochs[name]}"
                )
            self._records |= new

    def get(self, key):
        return json.loads(self._records.get(key, "null"))

    def append(self, stream, value):
        with self._lock:
            self._streams[stream].append(json.dumps(value))
            return len(self._streams[stream])

    def extend(self, stream, values, after):
        new = [json.dumps(value) for value in values]
        with self._lock:
            if len(self._streams[stream]) != after:
                raise OutOfOrderError(
                    f"{stream}: ends at {len(self._streams[stream])}, not at {after}"
                )
            self._streams[stream] += new

    def read(self, stream, after=0):
        rows = list(enumerate(self._streams[stream], start=1))[after:]
        return ((number, json.loads(row)) for number, row in rows)

    def next_epoch(self, name):
        with self._lock:
            self._epochs[name] += 1
            return self._epochs[name]

    def newest_epoch(self, name):
        return self._epochs[name]

    def close(self):
        """Idempotent."""
