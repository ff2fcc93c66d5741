"""Whatever fails, and wherever the coordinator dies: what is routable is proven at the live version."""

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.weight_sync.coordinator import Coordinator
from services.weight_sync.ledger import VersionLedger
from services.weight_sync.pauses import Pauses
from tests.weight_sync.fakes import CALLER, NUM_BLOCKS, RUN, RecordingStore, World, version_of
from trimaran.config import WeightSyncSection
from trimaran.errors import OutOfOrderError, UnavailableError

CONFIG = WeightSyncSection(
    stage_timeout=0.3, commit_timeout=0.3, join_timeout=0.1, prove_timeout=0.2, sample_share=0.5
)
NAMES = "abc"
MANY_CHECKS = 20
"""Between an answer and what the coordinator makes of it lie a few turns of the event loop."""


class Run:
    """One run's store and replicas, through the coordinators that come and go."""

    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.folder = folder
        self.live_step = 0
        self.joined: dict[str, int] = {}
        """Names with their incarnations; without those that have left."""
        self.leaving = ""
        self.left: dict[str, int] = {}
        """How many events there had been when this one had left."""

    async def start(self) -> None:
        self.world.points_left = None
        self.store = RecordingStore(self.folder / "store.sqlite", self.world)
        self.coordinator = Coordinator(
            *(RUN, CONFIG, await VersionLedger.open(self.store, RUN)),
            *(self.world.connect_senders, self.world.connect_rollout),
            Pauses(first_retry=0.01, settle=0.02),
        )
        self.coordinator.start()
        self.check()

    async def stop(self) -> None:
        with suppress(Exception):
            await self.coordinator.close()
        await self.store.close()

    def check(self) -> None:
        routing = self.coordinator.routing()
        step = routing.live.version.step if routing.live else 0
        assert step >= self.live_step, "the live version went back"
        self.live_step = step
        for replica in routing.routable:
            process = self.world.replicas[replica.name]
            assert routing.live and process.loaded, replica.name
            assert process.loaded.root == routing.live.root, replica.name
            if not process.answered_wrong:
                assert len(process.answered) == NUM_BLOCKS, f"{replica.name} was never proven"
            process.checks_since_wrong += process.answered_wrong
            assert process.checks_since_wrong < MANY_CHECKS, f"{replica.name} is known to be wrong"
        known = {r.name for r in routing.routable} | set(routing.unroutable)
        assert known - {self.leaving} == set(self.joined)
        for name, before in self.left.items():
            asked = [event for event in self.world.events[before:] if event.startswith(f"{name} ")]
            assert not [e for e in asked if "stages" in e or "commits" in e], f"{name} has left"

    async def act(self, action: tuple) -> None:
        kind, *rest = action
        if kind == "publish":
            await self.publish(*rest)
        elif kind == "behave":
            name, what, how = rest
            if name in self.world.replicas:
                setattr(self.world.replicas[name], what, how)
        elif kind == "join":
            self.left.pop(rest[0], None)
            registered = self.coordinator.register(RUN, *self.world.add(rest[0]))
            self.joined[rest[0]] = (await registered).incarnation
        elif kind == "report" and rest[0] in self.joined:
            await self.coordinator.report(rest[0], "stream broke")
        elif kind == "leave" and rest[0] in self.joined:
            await self.leave(rest[0])
        elif kind == "restart":
            await self.stop()
            await self.start()
        elif kind == "wait":
            await asyncio.sleep(0.05)

    async def publish(self, crash_at: int | None) -> None:
        """With a crash at the n-th point that is awaited, and a restart after it."""
        world = self.world
        world.step = self.live_step + 1
        world.points_left = crash_at
        call = asyncio.create_task(self.coordinator.publish(CALLER, version_of(world.step)))
        while not call.done() and not world.crashed:
            self.check()
            await asyncio.sleep(0.001)
        if world.crashed:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await self.stop()
            await self.start()
            return
        world.points_left = None
        with suppress(UnavailableError, OutOfOrderError):
            await call

    async def leave(self, name: str) -> None:
        """While a version is published, which does not wait for it to the end."""
        incarnation, self.leaving = self.joined.pop(name), name
        publishing = asyncio.create_task(self.publish(None))
        await asyncio.sleep(0.001)
        async with asyncio.timeout(60):
            await self.coordinator.deregister(RUN, name, incarnation)
            self.leaving, self.left[name] = "", len(self.world.events)
            await publishing

    async def settle(self) -> None:
        """Once nothing fails any more, every replica comes back by itself."""
        for process in self.world.replicas.values():
            process.stage = process.commit = process.proof = "ok"
        with suppress(UnavailableError):
            await self.publish(None)
        async with asyncio.timeout(60):
            while self.coordinator.routing().unroutable:
                self.check()
                await asyncio.sleep(0.005)


names = st.sampled_from(NAMES)
actions = st.one_of(
    st.tuples(st.just("publish"), st.none() | st.integers(1, 60)),
    st.tuples(st.just("publish"), st.none()),
    st.tuples(st.just("join"), names),
    st.tuples(
        *(st.just("behave"), names, st.just("stage")),
        st.sampled_from(["ok", "gone", "broken", "torn", "wrong", "silent"]),
    ),
    st.tuples(st.just("behave"), names, st.just("commit"), st.sampled_from(["ok", "gone"])),
    st.tuples(st.just("behave"), names, st.just("proof"), st.sampled_from(["ok", "gone", "wrong"])),
    st.tuples(st.sampled_from(["leave", "report"]), names),
    st.tuples(st.just("restart")),
    st.tuples(st.just("wait")),
)


@pytest.mark.e2e
@settings(max_examples=30, deadline=None)
@given(st.lists(actions, min_size=1, max_size=6))
@example([("publish", n) for n in range(1, 60, 3)])
@example([("publish", n) for n in range(2, 60, 3)])
@example([("publish", None), ("behave", "b", "proof", "wrong"), ("publish", None), ("wait",)])
@example([("publish", None), ("behave", "b", "stage", "silent"), ("leave", "b"), ("join", "b")])
@example([("leave", "a"), ("report", "b"), ("leave", "c"), ("restart",), ("leave", "b")])
def test_what_is_routable_is_proven_at_the_live_version(steps):
    async def scenario(folder: Path) -> None:
        run = Run(folder)
        await run.start()
        for name in NAMES:
            await run.act(("join", name))
        for step in steps:
            await run.act(step)
            run.check()
        await run.settle()
        await run.stop()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))
