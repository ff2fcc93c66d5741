"""What several clients do to a store, at the same moment too, is what a plain model does in some order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.trimaran.store.clients import STORES, Connect
from trimaran.errors import OutOfOrderError, StaleEpochError
from trimaran.store import ConflictError, Lease, Store, TrimmedError

NUM_CLIENTS = 3
MAX_AT_ONCE = 3
SECONDS = 60.0

KEYS = st.sampled_from(["a", "b", "run/1", "run/12", "run/é"])
ALL_NAMES = ("s", "run/1")
NAMES = st.sampled_from(ALL_NAMES)
VALUES = st.integers(0, 3) | st.just({"deep": [1, None]})
BACK = st.integers(-1, 2)
HOLDERS = st.sampled_from(["one", "two"])


@dataclass
class Model:
    """What a store is, said as plainly as it can be, by the same calls. A version counts the puts of
    all keys."""

    records: dict[str, tuple[Any, int]] = field(default_factory=dict[str, tuple[Any, int]])
    clock: int = 0
    streams: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    trimmed: dict[str, int] = field(default_factory=dict[str, int])
    epochs: dict[str, int] = field(default_factory=dict[str, int])
    leases: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])

    def version(self, key: str) -> int:
        return self.records.get(key, (None, 0))[1]

    def put(self, key: str, value: Any, expected: int | None) -> Any:
        if expected not in (None, self.version(key)):
            return ConflictError
        self.clock += 1
        self.records[key] = value, self.clock
        return self.clock

    def delete(self, key: str, expected: int | None) -> Any:
        if expected not in (None, self.version(key)):
            return ConflictError
        self.records.pop(key, None)
        return None

    def put_fenced(self, records: dict[str, Any], name: str, epoch: int) -> Any:
        if epoch < self.epochs.get(name, 0):
            return StaleEpochError
        for key, value in records.items():
            self.put(key, value, None)
        return None

    def extend(self, stream: str, values: list[Any], after: int | None) -> Any:
        standing = self.streams.setdefault(stream, [])
        if after not in (None, len(standing)):
            return OutOfOrderError
        standing += values
        return len(standing)

    def trim(self, stream: str, through: int) -> None:
        end = min(through, len(self.streams.get(stream, [])))
        self.trimmed[stream] = max(self.trimmed.get(stream, 0), end)

    def read(self, stream: str, after: int | None, limit: int) -> Any:
        through = self.trimmed.get(stream, 0)
        if after is not None and after < through:
            return TrimmedError
        rows = list(enumerate(self.streams.get(stream, []), 1))[max(after or 0, through) :]
        return tuple(rows[:limit])

    def next_epoch(self, name: str) -> int:
        self.epochs[name] = self.epochs.get(name, 0) + 1
        return self.epochs[name]

    def acquire(self, name: str, holder: str, seconds: float) -> Any:
        if name in self.leases and self.leases[name][0] != holder:
            return None
        self.leases[name] = holder, self.next_epoch(name)
        return Lease(name, *self.leases[name])

    def renew(self, lease: Lease, seconds: float) -> Any:
        return None if self.leases.get(lease.name) == (lease.holder, lease.epoch) else ConflictError

    def release(self, lease: Lease) -> None:
        if self.renew(lease, SECONDS) is None:
            del self.leases[lease.name]

    def contents(self) -> Any:
        """As `_contents` reads it from a store."""
        leases = {name: Lease(name, *lease) for name, lease in self.leases.items()}
        streams = [(self.read(n, None, 1000), len(self.streams.get(n, []))) for n in ALL_NAMES]
        return (
            self.records,
            streams,
            [(self.epochs.get(name, 0), leases.get(name)) for name in ALL_NAMES],
        )

    def delete_all(self, prefix: str) -> None:
        for names in (self.records, self.streams, self.trimmed, self.epochs, self.leases):
            for name in [name for name in names if name.startswith(prefix)]:
                del names[name]


Action = tuple[str, tuple[Any, ...]]
"""A call of a store, which the model has too, and its arguments."""


class Clients(RuleBasedStateMachine):
    """Each rule lines an action up for some client. Up to three are then done at once."""

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()
        self.leases: list[Lease] = []
        self.line: list[tuple[int, Action]] = []

        async def open_all() -> list[Store]:
            return [await connect() for _ in range(NUM_CLIENTS)]

        self.stores = self.runner.run(open_all())

    def teardown(self) -> None:
        self.act()

        async def close() -> None:
            for store in self.stores:
                await store.close()

        self.runner.run(close())
        self.runner.close()

    def line_up(self, data: st.DataObject, call: str, *arguments: Any) -> None:
        who = data.draw(st.integers(0, NUM_CLIENTS - 1), "client")
        self.line.append((who, (call, arguments)))
        if len(self.line) == MAX_AT_ONCE or data.draw(st.booleans(), "now"):
            self.act()

    @rule(data=st.data(), key=KEYS, value=VALUES, stale=BACK, blind=st.booleans())
    def put(self, data: st.DataObject, key: str, value: Any, stale: int, blind: bool) -> None:
        version = self.model.version(key) - stale
        self.line_up(data, "put", key, value, None if blind else max(version, 0))

    @rule(data=st.data(), key=KEYS, blind=st.booleans())
    def delete(self, data: st.DataObject, key: str, blind: bool) -> None:
        self.line_up(data, "delete", key, None if blind else self.model.version(key))

    @rule(data=st.data(), name=NAMES, values=st.dictionaries(KEYS, VALUES, min_size=1), back=BACK)
    def fence(self, data: st.DataObject, name: str, values: dict[str, Any], back: int) -> None:
        epoch = max(self.model.epochs.get(name, 0) - back, 0)
        self.line_up(data, "put_fenced", values, name, epoch)

    @rule(data=st.data(), stream=NAMES, values=st.lists(VALUES, max_size=3), back=BACK | st.none())
    def extend(self, data: st.DataObject, stream: str, values: list[Any], back: int | None) -> None:
        last = len(self.model.streams.get(stream, []))
        self.line_up(data, "extend", stream, values, None if back is None else max(last - back, 0))

    @rule(data=st.data(), stream=NAMES, back=BACK)
    def trim(self, data: st.DataObject, stream: str, back: int) -> None:
        self.line_up(data, "trim", stream, len(self.model.streams.get(stream, [])) - back)

    @rule(
        data=st.data(), stream=NAMES, after=st.none() | st.integers(0, 9), limit=st.integers(1, 4)
    )
    def read(self, data: st.DataObject, stream: str, after: int | None, limit: int) -> None:
        self.line_up(data, "read", stream, after, limit)

    @rule(data=st.data(), name=NAMES)
    def draw(self, data: st.DataObject, name: str) -> None:
        self.line_up(data, "next_epoch", name)

    @rule(data=st.data(), name=NAMES, holder=HOLDERS)
    def acquire(self, data: st.DataObject, name: str, holder: str) -> None:
        self.line_up(data, "acquire", name, holder, SECONDS * 100)

    @rule(data=st.data(), place=st.integers(0, 5), ends=st.booleans())
    def keep_or_let_go(self, data: st.DataObject, place: int, ends: bool) -> None:
        if self.leases:
            lease = self.leases[-1 - place % len(self.leases)]
            if ends:
                self.line_up(data, "release", lease)
            else:
                self.line_up(data, "renew", lease, SECONDS * 100)

    @rule(data=st.data(), prefix=st.sampled_from(["run/1", "run/", "b"]))
    def delete_all(self, data: st.DataObject, prefix: str) -> None:
        self.line_up(data, "delete_all", prefix)

    def act(self) -> None:
        line, self.line = self.line, []
        if not line:
            return

        async def at_once() -> list[Any]:
            calls = [
                _outcome(getattr(self.stores[who], call)(*words)) for who, (call, words) in line
            ]
            return list(await asyncio.gather(*calls))

        found = self.runner.run(asyncio.wait_for(at_once(), SECONDS))
        seen = [self.runner.run(_contents(store)) for store in self.stores]
        assert seen[1:] == seen[:-1], "the clients see different things"
        for order in itertools.permutations(range(len(line))):
            model, outcomes = deepcopy(self.model), [None] * len(line)
            for place in order:
                call, words = line[place][1]
                outcomes[place] = getattr(model, call)(*words)
            if outcomes == found and model.contents() == seen[0]:
                self.model = model
                self.leases += [outcome for outcome in found if isinstance(outcome, Lease)]
                return
        raise AssertionError(f"no order explains {found} and {seen[0]} after {self.model}")


async def _outcome(call: Awaitable[Any]) -> Any:
    """A refusal counts by its class."""
    try:
        return await call
    except (OutOfOrderError, StaleEpochError) as error:
        return type(error)


async def _contents(store: Store) -> Any:
    return (
        {key: (record.value, record.version) for key, record in await store.list_records()},
        [(await store.read(name), await store.last(name)) for name in ALL_NAMES],
        [(await store.newest_epoch(name), await store.holder(name)) for name in ALL_NAMES],
    )


@pytest.mark.parametrize("name", STORES)
def test_any_interleaving_of_several_clients(name: str, request: pytest.FixtureRequest) -> None:
    class OfThisStore(Clients):
        def __init__(self) -> None:
            super().__init__(STORES[name](request))

    run_state_machine_as_test(
        OfThisStore,
        settings=settings(max_examples=15, stateful_step_count=20, deadline=None),
    )
