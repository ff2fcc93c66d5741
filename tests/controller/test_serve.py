"""The controller process against real gRPC servers with fake insides."""

import asyncio
import io
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commands.cli.train.summary import show_summary
from services.controller import server as controller
from tests.controller.fakes import digest, make_config
from tests.trimaran.telemetry.test_exposition import values
from trimaran.clients import ControllerClient, MetricsClient
from trimaran.config import RunConfig
from trimaran.errors import (
    InputError,
    InternalError,
    OutOfOrderError,
    StaleEpochError,
    TrimaranError,
    UnavailableError,
)
from trimaran.run.context import RunContext
from trimaran.run.events import is_last, watch_events
from trimaran.run.exits import exit_code
from trimaran.run.network import LOOPBACK
from trimaran.run.runs import (
    EventKind,
    Goal,
    RunEvent,
    RunState,
    event_from_tree,
    events_stream,
    goal_key,
    run_from_tree,
    run_key,
)
from trimaran.store import entries, open_store
from trimaran.telemetry.metrics import GREEDY_REWARD, REWARD_MEAN, STEP_SECONDS, VALIDATION_SECONDS
from trimaran.telemetry.run_files import read_json_lines
from trimaran.types import (
    Faulted,
    PolicyVersion,
    Proof,
    Replica,
    Routing,
    Score,
    Segment,
    Verdict,
    VersionId,
)
from trimaran.v1 import (
    reward_pb2,
    reward_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    weight_sync_pb2,
    weight_sync_pb2_grpc,
)
from trimaran.wire import messages as wire
from trimaran.wire import rpc

STEPS, GROUPS, SAMPLES = 4, 2, 3


class Rollout(rollout_pb2_grpc.RolloutServiceServicer):
    """Streams each completion in two chunks; a stream that `pool.breaks` ends after the first."""

    def __init__(self, name: str, pool: "Pool") -> None:
        self.name, self.pool = name, pool

    async def Generate(self, request: Any, context: Any) -> Any:
        assert self.pool.live
        yield rollout_pb2.GenerateResponse(
            opened=rollout_pb2.Opened(prompt_token_ids=wire.encode_token_ids([7, 8]))
        )
        starts = {c.index: len(wire.decode_token_ids(c.token_ids)) for c in request.continuations}
        starts = starts or dict.fromkeys(range(request.sampling.num_samples), 0)
        self.pool.starts.append((request.number, request.attempt, starts))
        for index, start in starts.items():
            if start == 0:
                yield self._chunk(index, 0)
                if self.pool.breaks(self.name, request):
                    raise rpc.errors.UnavailableError("killed")
            yield self._chunk(index, 1)
            right = int(digest(request.prompt.prompt_id, index), 16) % 2
            finished = rollout_pb2.Finished(
                index=index,
                finish_reason="stop",
                text=request.prompt.answer if right else "?",
            )
            yield rollout_pb2.GenerateResponse(finished=[finished])

    def _chunk(self, index: int, start: int) -> Any:
        assert self.pool.live
        segment = Segment(start, start + 1, self.pool.live.version, self.name)
        chunk = rollout_pb2.SegmentChunk(
            index=index,
            segment=wire.encode_segment(segment),
            token_ids=wire.encode_token_ids([start]),
            logprobs=wire.encode_logprobs([self.pool.logprob(self.name, start)]),
        )
        return rollout_pb2.GenerateResponse(chunks=[chunk])


class Reward(reward_pb2_grpc.RewardServiceServicer):
    def __init__(self, pool: "Pool") -> None:
        self.pool = pool

    async def ScoreGroup(self, request: Any, context: Any) -> Any:
        samples = wire.decode_samples(request)
        verdicts: list[Verdict] = [
            Score(right, {"exact_match": right}, self.pool.hangs, sample.text)
            for sample in samples
            for right in [float(sample.text == sample.answer)]
        ]
        if self.pool.is_down():
            verdicts = [Faulted("exact_match: no plugin") for _ in samples]
        return reward_pb2.ScoreGroupResponse(verdicts=[wire.encode_verdict(v) for v in verdicts])


class Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.step = self.trained = 0
        self.during_step: Callable[[int], Awaitable[None]] = lambda step: asyncio.sleep(0)

    @property
    def policy(self) -> PolicyVersion:
        root = f"root-{self.step}"
        return PolicyVersion("run", VersionId(0, self.step), root)

    async def GetPolicyVersion(self, request: Any, context: Any) -> Any:
        return trainer_pb2.GetPolicyVersionResponse(version=wire.encode_policy(self.policy))

    async def HoldGroups(self, request: Any, context: Any) -> Any:
        for scored in map(wire.parse_scored_group, request.groups):
            for completion in scored.group.completions_G:
                assert all(map(math.isfinite, completion.logprobs_S))
        return trainer_pb2.HoldGroupsResponse()

    async def Train(self, request: Any, context: Any) -> Any:
        await self._train(request.batch.step)
        return self._make_version(request.batch.step)

    async def TrainAhead(self, request: Any, context: Any) -> Any:
        await self._train(request.batch.step)
        return trainer_pb2.TrainAheadResponse()

    async def MakeVersion(self, request: Any, context: Any) -> Any:
        return self._make_version(request.step)

    async def _train(self, step: int) -> None:
        if self.trained < step:
            await self.during_step(step)
        self.trained = step

    def _make_version(self, step: int) -> Any:
        self.step = step
        return trainer_pb2.TrainResponse(
            version=wire.encode_policy(self.policy),
            metrics={"trainer/loss": 0.1},
            nonfinite="group 3: reward nan" if self.step == self.pool.nonfinite_step else "",
        )

    async def SaveCheckpoint(self, request: Any, context: Any) -> Any:
        if request.step == self.pool.full_disk_step:
            return trainer_pb2.SaveCheckpointResponse()
        self.pool.saved.append(request.step)
        self.pool.scores.append(request.score if request.HasField("score") else None)
        return trainer_pb2.SaveCheckpointResponse()

    async def WaitCheckpoint(self, request: Any, context: Any) -> Any:
        if request.step not in (*self.pool.saved, self.pool.full_disk_step):
            raise OutOfOrderError(f"checkpoint of step {request.step}: no save of it has begun")
        if request.step == self.pool.full_disk_step:
            while request.step and self.policy.version.step == request.step:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # the step after it is reported
            raise TrimaranError("No space left on device")
        return trainer_pb2.WaitCheckpointResponse(path=f"checkpoints/{request.step}")

    async def ExportModel(self, request: Any, context: Any) -> Any:
        if self.pool.num_full_exports:
            self.pool.num_full_exports -= 1
            self.step = self.pool.restarts_at or self.step
            raise UnavailableError("model: its disk has 0 MiB left; make room there")
        self.pool.exported.append(request.path)
        return trainer_pb2.ExportModelResponse(path=request.path)


class WeightSync(weight_sync_pb2_grpc.WeightSyncServiceServicer):
    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.lost: dict[str, str] = {}

    def routing(self) -> Any:
        routable = tuple(r for r in self.pool.replicas if r.name not in self.lost)
        return wire.encode_routing(Routing(self.pool.live, routable, self.lost))

    async def GetRouting(self, request: Any, context: Any) -> Any:
        return weight_sync_pb2.GetRoutingResponse(routing=self.routing())

    async def PublishVersion(self, request: Any, context: Any) -> Any:
        self.pool.live = wire.decode_policy(request.version)
        return weight_sync_pb2.PublishVersionResponse(
            routing=self.routing(), metrics={"weight_sync/pause/seconds": 0.2}
        )

    async def ListProofs(self, request: Any, context: Any) -> Any:
        versions = [wire.decode_version(version) for version in request.versions]
        proofs = [
            Proof(v, r.name, f"root-{v.step}", 4, 1) for v in versions for r in self.pool.replicas
        ]
        return weight_sync_pb2.ListProofsResponse(proofs=[wire.encode_proof(p) for p in proofs])

    async def ListFaults(self, request: Any, context: Any) -> Any:
        found = self.pool.faults[request.after :]
        return weight_sync_pb2.ListFaultsResponse(proofs=[wire.encode_proof(p) for p in found])

    async def ReportReplica(self, request: Any, context: Any) -> Any:
        self.lost[request.name] = request.reason
        if self.pool.heals:
            asyncio.get_running_loop().call_later(0.5, self.lost.pop, request.name, None)
        return weight_sync_pb2.ReportReplicaResponse()


class Pool:
    """All services but the controller, in this process."""

    def __init__(self) -> None:
        self.live: PolicyVersion | None = None
        self.starts: list[tuple[int, int, dict[int, int]]] = []
        self.faults: list[Proof] = []
        """Which weight sync has found."""
        self.saved: list[int] = []
        self.scores: list[float | None] = []
        """Of the checkpoints, for `run.keep_best`."""
        self.replicas: list[Replica] = []
        self.trainer = Trainer(self)
        self.servers: list[rpc.Server] = []
        self.breaks: Callable[[str, Any], bool] = lambda name, r: (r.number, r.attempt) == (1, 1)
        self.logprob: Callable[[str, int], float] = lambda name, start: -0.5
        """Of the token at `start`, from that replica."""
        self.is_down: Callable[[], bool] = lambda: False
        """Whether the reward service cannot score."""
        self.nonfinite_step = self.full_disk_step = 0
        """At which the trainer leaves the update out, and at which it cannot save."""
        self.num_full_exports = 0
        """How often the model does not fit on the disk."""
        self.restarts_at = 0
        """The step that the trainer holds behind that; 0: it is not started again."""
        self.exported: list[str] = []
        self.controller = LOOPBACK.free_address()
        """Of the run."""
        self.hangs = False
        """Whether every answer hangs its checker."""
        self.heals = False
        """A replica that was reported is proven again soon."""

    async def start(self) -> dict[str, Any]:
        rollouts = [
            await self._serve(
                rollout_pb2.DESCRIPTOR,
                rollout_pb2_grpc.add_RolloutServiceServicer_to_server,
                Rollout(f"rollout-{i}", self),
            )
            for i in range(2)
        ]
        self.replicas = [Replica(f"rollout-{i}", a) for i, a in enumerate(rollouts)]
        return {
            "controller": self.controller,
            "rollout": rollouts,
            "reward": await self._serve(
                reward_pb2.DESCRIPTOR,
                reward_pb2_grpc.add_RewardServiceServicer_to_server,
                Reward(self),
            ),
            "trainer": [
                await self._serve(
                    trainer_pb2.DESCRIPTOR,
                    trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
                    self.trainer,
                )
            ],
            "weight_sync": await self._serve(
                weight_sync_pb2.DESCRIPTOR,
                weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server,
                WeightSync(self),
            ),
        }

    async def _serve(self, file: Any, add: Callable[..., None], servicer: Any) -> str:
        server = rpc.Server("127.0.0.1:0", [rpc.service(file, add, servicer)])
        await server.start()
        self.servers.append(server)
        return server.address

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[dict[str, Any]]:
        """Their endpoints."""
        try:
            yield await self.start()
        finally:
            await self.stop()


def configure(
    folder: Path,
    endpoints: dict[str, Any],
    reward: Mapping[str, Any] | None = None,
    validation: Mapping[str, Any] | None = None,
    **run: Any,
) -> RunConfig:
    rows = [{"prompt": f"{i} + 1?", "answer": str(i + 1)} for i in range(10)]
    for name, part in (("train", rows[:8]), ("heldout", rows[8:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return make_config(
        run={"steps": STEPS, "groups_per_step": GROUPS, "checkpoint_every": 3, "max_lag": 1, **run},
        data={"train": str(folder / "train.jsonl"), "validation": str(folder / "heldout.jsonl")},
        rollout={"group_size": SAMPLES, "replicas": 2},
        validation=validation or {"every": 2, "samples": 1, "final_samples": 2},
        endpoints=endpoints,
        reward=reward or {},
        start_timeout=10,
    )


async def watch(
    run_folder: Path, events: list[RunEvent], until: Callable[[RunEvent], bool] = is_last
) -> None:
    """What comes into the store from now on, until the run has ended."""
    store = await open_store(RunContext.in_folder(run_folder).store_url)
    try:
        after = await store.last(events_stream(run_folder.name))
        async for event in watch_events(store, run_folder.name, after, poll=0.02):
            events.append(event)
            if until(event):
                return
    finally:
        await store.close()


async def put_goal(run_folder: Path, goal: Goal) -> None:
    store = await open_store(RunContext.in_folder(run_folder).store_url)
    await store.put(goal_key(run_folder.name), {"goal": goal.value})
    await store.close()


async def control(folder: Path, endpoints: dict[str, Any], **run: Any) -> None:
    """A controller, to the run's end."""
    (folder / "run").mkdir(exist_ok=True)
    context = RunContext.in_folder(folder / "run")
    await asyncio.wait_for(controller.serve(configure(folder, endpoints, **run), context), 200)


async def serve(
    folder: Path,
    pool: Pool,
    until: Callable[[RunEvent], bool] = is_last,
    beside: Callable[[RunEvent], Awaitable[None]] | None = None,
    **run: Any,
) -> list[RunEvent]:
    """A whole run, watched from outside. `beside` is called at the first event that is `until`."""
    run_folder = folder / "run"
    run_folder.mkdir(exist_ok=True)
    events: list[RunEvent] = []

    async def follow() -> None:
        await watch(run_folder, events, until)
        if beside:
            await beside(events[-1])
            await watch(run_folder, events)

    watcher = asyncio.create_task(follow())
    await asyncio.sleep(0)
    async with pool.serving() as endpoints:
        try:
            await control(folder, endpoints, **run)
        finally:
            await asyncio.wait_for(watcher, 60)
    return events


def test_a_run_from_start_to_summary(tmp_path: Path) -> None:
    pool = Pool()
    events = asyncio.run(serve(tmp_path, pool))
    folder = tmp_path / "run"

    kinds = [event.kind for event in events]
    assert [kind for kind in kinds if kind not in ("state", "process", "replica_lost")] == [
        *("validation", "step", "step", "validation", "step", "checkpoint", "step"),
        *("validation", "checkpoint", "finished"),
    ]
    assert kinds.count(EventKind.REPLICA_LOST) == 1
    saved = [(event.run.step, event.root) for event in events if event.kind == "checkpoint"]
    assert saved == [(step, f"root-{step}") for step in (3, STEPS)]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert (events[-1].run.state, events[-1].run.step) == (RunState.SUCCEEDED, STEPS)
    assert events[-1].text == ""  # where its folder lies helps on this machine only

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == STEPS
    assert (
        summary["heldout_before"] == summary["heldout_after"] != {"greedy": None, "sampled": None}
    )
    assert summary["samples_per_second"] == pytest.approx(
        STEPS * GROUPS * SAMPLES / summary["seconds"]
    )
    assert {"seed", "skipped", "run_folder", "tokens_per_second_per_device"} <= summary.keys()

    rows = read_json_lines(folder / "metrics.jsonl")
    steps = [row for row in rows if row["kind"] == "step"]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    # Weight sync included: what the summary says is what the steps took.
    assert summary["seconds"] == pytest.approx(sum(row[STEP_SECONDS] for row in steps))
    wanted = {REWARD_MEAN, "trainer/loss", "weight_sync/pause/seconds"}
    assert wanted <= steps[0].keys()
    validations = [row for row in rows if row["kind"] == "validation"]
    assert [row["step"] for row in validations] == [0, 2, 4]
    assert all({GREEDY_REWARD, VALIDATION_SECONDS} <= row.keys() for row in validations)
    assert {p.name for p in (folder / "samples").iterdir()} == {
        f"step-{step:05d}.jsonl" for step in (0, 2, 4)
    }
    activities = {row["activity"] for row in read_json_lines(folder / "timeline.jsonl")}
    assert activities == {"generating", "scoring", "training", "syncing", "validating"}
    assert pool.saved == [3, 4]
    assert pool.scores == [None, summary["heldout_after"]["greedy"]]
    assert pool.exported == ["model"]


def test_what_takes_long_at_the_start_and_the_end_is_reported(tmp_path: Path) -> None:
    """Loading models, the first weights, validations, the last checkpoint, the export, the summary."""
    events = asyncio.run(serve(tmp_path, Pool()))
    [running] = [
        index
        for index, event in enumerate(events)
        if (event.kind, event.run.state) == (EventKind.STATE, RunState.RUNNING)
    ]
    texts = [
        event.text if event.kind is EventKind.PROCESS else event.kind.value for event in events
    ]
    assert set(texts[:running]) == {"state"} | {
        f"{name} is ready"
        for name in ("weight-sync", "reward", "trainer-0", "rollout-0", "rollout-1")
    }
    assert texts[running + 1 : running + 3] == [
        "bringing the weights of step 0 to the replicas",
        "validating",
    ]
    assert texts[-6:] == [
        *("validation", f"writing the checkpoint of step {STEPS}", "checkpoint"),
        *("exporting the model", "writing the summary", "finished"),
    ]


def test_a_run_begins_without_a_validation_where_none_is_asked_for(tmp_path: Path) -> None:
    asyncio.run(serve(tmp_path, Pool(), validation={"before_train": False, "every": 2}))
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "validation"] == [2, 4]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["heldout_before"] is None
    assert summary["heldout_after"]


def test_a_run_that_only_validates_trains_saves_and_exports_nothing(tmp_path: Path) -> None:
    pool = Pool()
    events = asyncio.run(
        serve(tmp_path, pool, validation={"only": True, "every": 2, "final_samples": 4})
    )
    folder = tmp_path / "run"
    kinds = [event.kind for event in events if event.kind not in ("state", "process")]
    assert kinds == ["validation", "finished"]
    assert (events[-1].run.state, events[-1].run.step) == (RunState.SUCCEEDED, 0)
    assert (pool.trainer.step, pool.saved, pool.exported) == (0, [], [])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["heldout_before"] is None
    assert (summary["steps"], summary["model"]) == (0, "")
    [row] = read_json_lines(folder / "metrics.jsonl")
    kept = {key: row[key] for key in summary["validation"]}
    assert kept == summary["validation"]
    assert {GREEDY_REWARD, "validation/pass_at/4", "validation/task/default/pass_at/4"} <= set(kept)
    written = io.StringIO()
    show_summary(folder, Console(file=written, width=120))
    reported = written.getvalue()
    assert "last validation: greedy " in reported
    assert "pass@4 " in reported
    assert "from_pretrained" not in reported


@pytest.mark.parametrize(("deterministic", "start"), [(False, 1), (True, 0)])
def test_a_broken_stream_goes_on_from_what_had_arrived_or_is_made_again(
    tmp_path: Path, deterministic: bool, start: int
) -> None:
    pool = Pool()
    asyncio.run(serve(tmp_path, pool, deterministic=deterministic))
    tries = [(attempt, starts) for number, attempt, starts in pool.starts if number == 1]
    assert tries == [(1, {0: 0, 1: 0, 2: 0}), (2, {0: start, 1: 0, 2: 0})]


def test_prometheus_sees_the_step_and_the_groups(tmp_path: Path) -> None:
    pool, reported, began = Pool(), {}, time.time()

    async def look(step: int) -> None:
        async with MetricsClient(pool.controller) as process:
            reported[step] = values(await process.get_metrics())

    pool.trainer.during_step = look
    asyncio.run(serve(tmp_path, pool, steps=2))
    assert [reported[step]["trimaran_controller_step",] for step in (1, 2)] == [0, 1]
    assert reported[2]["trimaran_controller_wanted_steps",] == 2
    assert reported[2]["trimaran_controller_held",] == 0
    assert reported[2]["trimaran_controller_groups", "consumed"] > 0
    progress = ("trimaran_controller_progress_time_seconds",)
    assert began < reported[1][progress] < reported[2][progress]
    assert reported[1]["trimaran_controller_disk_free_bytes",] > 0
    assert reported[1]["trimaran_store_duration_seconds_count", "extend"] > 0
    assert ("trimaran_step_reward_completion_mean",) not in reported[1]
    assert reported[2]["trimaran_step_reward_completion_mean",] >= 0


async def last_recorded(folder: Path) -> RunEvent:
    """The last event in the store, which the run's record agrees with."""
    store = await open_store(RunContext.in_folder(folder / "run").store_url)
    record = await store.get(run_key("run"))
    [*_, last] = [e async for e in entries(store, events_stream("run"))]
    await store.close()
    event = event_from_tree(*last)
    assert record and run_from_tree(record.value) == event.run
    return event


@pytest.mark.parametrize("may_pass", [False, True])
async def test_a_failure_is_recorded_and_raised_and_what_may_pass_is_no_failure(
    tmp_path: Path, may_pass: bool
) -> None:
    pool = Pool()

    async def fail(step: int) -> None:
        if step == 2:
            raise UnavailableError("its disk hangs") if may_pass else InputError("step 2 is odd")

    pool.trainer.during_step = fail
    async with pool.serving() as endpoints:
        with pytest.raises(TrimaranError) as caught:
            await control(tmp_path, endpoints)
    assert exit_code(caught.value) == (75 if may_pass else 2)
    event = await last_recorded(tmp_path)
    if may_pass:
        assert (event.kind, event.run.state) == (EventKind.PROCESS, RunState.RUNNING)
        assert "cannot go on: its disk hangs" in event.text
    else:
        assert (event.kind, event.run.state) == (EventKind.FINISHED, RunState.FAILED)
        assert (event.run.error, event.run.remedy) == ("step 2 is odd", InputError.remedy)


def test_a_pause_ends_after_the_step_with_a_checkpoint_and_the_run_goes_on_later(
    tmp_path: Path,
) -> None:
    pool = Pool()

    async def pause(step: int) -> None:
        async with ControllerClient(pool.controller, "run") as client:
            await client.set_goal(Goal.PAUSE)

    pool.trainer.during_step = pause
    events = asyncio.run(serve(tmp_path, pool))
    states = [event.run.state for event in events]
    assert (states[-1], events[-1].kind, events[-1].run.step) == (
        *(RunState.PAUSED, EventKind.STATE),
        1,
    )
    assert RunState.PAUSING in states
    assert pool.saved == [1]
    assert not (tmp_path / "run" / "summary.json").exists()
    assert pool.exported == []
    pool = Pool()
    pool.trainer.step = 1  # it has loaded the checkpoint
    later = asyncio.run(serve(tmp_path, pool))
    assert later[0].sequence == events[-1].sequence + 1
    assert (later[-1].run.state, later[-1].run.step) == (RunState.SUCCEEDED, STEPS)


def test_a_model_that_finds_no_room_holds_the_run_at_its_end(tmp_path: Path) -> None:
    pool = Pool()
    pool.num_full_exports = 1
    events = asyncio.run(serve(tmp_path, pool))
    kinds = [event.kind.value for event in events]
    assert (kinds.count("held"), kinds.count("released")) == (1, 1)
    assert "make room there" in events[kinds.index("held")].run.held
    assert (events[-1].run.state, events[-1].run.step) == (RunState.SUCCEEDED, STEPS)
    assert pool.exported == ["model"]


async def test_a_model_of_an_earlier_step_is_not_the_run_s(tmp_path: Path) -> None:
    """The trainer is started again at its end, and has loaded a checkpoint of step 3."""
    pool = Pool()
    pool.num_full_exports, pool.restarts_at = 1, 3
    async with pool.serving() as endpoints:
        with pytest.raises(InternalError, match="the trainer was started again and holds step 3"):
            await control(tmp_path, endpoints)
    assert pool.exported == []


def test_a_goal_in_the_store_is_read_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    asyncio.run(put_goal(tmp_path / "run", Goal.PAUSE))
    events = asyncio.run(serve(tmp_path, Pool()))
    assert {event.run.state for event in events} == {RunState.PAUSING, RunState.PAUSED}
    assert events[-1].run.step == 0


async def test_a_frozen_controller_that_comes_back_writes_neither_events_nor_records(
    tmp_path: Path,
) -> None:
    """It is frozen while step 2 trains; its successor ends the run; then it goes on."""
    pool, frozen, thawed = Pool(), asyncio.Event(), asyncio.Event()

    async def freeze(step: int) -> None:
        if step == 2 and not frozen.is_set():
            frozen.set()
            await thawed.wait()

    pool.trainer.during_step = freeze
    async with pool.serving() as endpoints:
        life = asyncio.create_task(control(tmp_path, endpoints))
        await asyncio.wait_for(frozen.wait(), 60)
        await control(tmp_path, {**endpoints, "controller": LOOPBACK.free_address()})
        ended = await last_recorded(tmp_path)
        thawed.set()
        with pytest.raises(StaleEpochError):
            await life
    assert (ended.kind, ended.run.state) == (EventKind.FINISHED, RunState.SUCCEEDED)
    assert await last_recorded(tmp_path) == ended


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimaran.ledger.retries.LONGEST_WAIT_SECONDS", 0.05)


class Outage:
    """So many calls from step 2 on."""

    def __init__(self, calls: float) -> None:
        self.left, self.begun = calls, False

    async def begin(self, step: int) -> None:
        self.begun = self.begun or step == 2

    def __call__(self) -> bool:
        self.left -= self.begun
        return self.begun and self.left >= 0


def test_a_paused_run_is_cancelled_in_order(tmp_path: Path, short_waits: None) -> None:
    pool, outage = Pool(), Outage(calls=math.inf)
    pool.trainer.during_step, pool.is_down = outage.begin, outage

    async def cancel(event: RunEvent) -> None:
        assert event.run.held
        async with ControllerClient(pool.controller, "run") as client:
            await client.set_goal(Goal.CANCEL)

    is_held: Callable[[RunEvent], bool] = lambda event: event.kind == "held"  # noqa: E731
    events = asyncio.run(serve(tmp_path, pool, is_held, cancel, max_attempts=20))
    assert (events[-1].kind, events[-1].run.state) == ("finished", RunState.CANCELLED)
    assert events[-1].run.step in (2, 3)  # a batch that had passed may still train
    assert pool.saved[-1] == events[-1].run.step
    assert (tmp_path / "run" / "summary.json").is_file()


def test_cancel_ends_with_checkpoint_and_summary(tmp_path: Path) -> None:
    pool = Pool()

    async def cancel(step: int) -> None:
        async with ControllerClient(pool.controller, "run") as client:
            assert (await client.get_status()).running
            await client.set_goal(Goal.PAUSE)
            await client.set_goal(Goal.CANCEL)
            status = await client.get_status()
            assert (status.goal, status.running, status.epoch) == (Goal.CANCEL, False, 1)
            with pytest.raises(OutOfOrderError, match="already works towards cancel"):
                await client.set_goal(Goal.PAUSE)

    pool.trainer.during_step = cancel
    events = asyncio.run(serve(tmp_path, pool))
    assert (events[-1].run.state, events[-1].run.step) == (RunState.CANCELLED, 1)
    assert pool.saved == [1]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 1


async def test_a_stopped_run_resumes_from_its_ledger(tmp_path: Path) -> None:
    pool, arrived = Pool(), asyncio.Event()

    async def hang(step: int) -> None:
        if step == 3:
            arrived.set()
            await asyncio.Event().wait()

    pool.trainer.during_step = hang
    async with pool.serving() as endpoints:
        life = asyncio.create_task(control(tmp_path, endpoints))
        await asyncio.wait_for(arrived.wait(), 60)
        life.cancel()  # as SIGTERM does
        with pytest.raises(asyncio.CancelledError):
            await life
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"kind": "step", "step": 2' not in line]
    assert len(kept) == len(lines) - 1
    metrics.write_text("".join(kept))  # as if it had been killed before the row of step 2
    pool = Pool()
    trained: list[int] = []

    async def note(step: int) -> None:
        trained.append(step)
        live = pool.live.version.step if pool.live else None
        if step <= 3:  # 3 was consumed, so version 2 may have been under way
            assert live == (2 if step == 3 else None), "the run did not stand where it had stood"

    pool.trainer.during_step = note
    events = await serve(tmp_path, pool)
    assert trained == [1, 2, 3, 4]  # 1 and 2 again from their payloads, 3 as it was consumed
    assert [event.run.step for event in events if event.kind == "step"] == [2, 3, 4]
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "step"] == [1, 2, 3, 4]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == STEPS
    assert summary["heldout_before"] == summary["heldout_after"]


def test_an_empty_dataset_ends_before_anything_starts(tmp_path: Path) -> None:
    config = configure(tmp_path, {"controller": "127.0.0.1:0"})
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no rows"):
        asyncio.run(controller.serve(config, RunContext.in_folder(tmp_path)))


def test_answers_that_hang_their_checkers_train_and_the_user_is_warned(tmp_path: Path) -> None:
    pool = Pool()
    pool.hangs = True
    events = asyncio.run(serve(tmp_path, pool))
    reported = [event for event in events if event.kind == "indigestible"]
    assert reported
    assert reported[0].text.startswith("100.0% of this step's answers got the minimum")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["indigestible_share"], summary["faulted_share"]) == (1.0, 0.0)


def test_tokens_that_have_trained_before_their_fault_was_found_are_reported(tmp_path: Path) -> None:
    pool = Pool()
    for name in ("rollout-0", "rollout-1"):
        pool.faults.append(Proof(VersionId(0, 0), name, "root-0", 4, 1, "w block 2"))
    events = asyncio.run(serve(tmp_path, pool))
    reported = [event for event in events if event.kind is EventKind.TAINTED]
    assert reported and all(
        event.text.endswith("w block 2; the ledger names them") for event in reported
    )
    assert sum(event.values["groups"] for event in reported) >= 1
