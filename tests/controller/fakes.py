"""A world of fake services: they record events, and fail where a test asks for it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from services.controller.datasets import TrainingPrompts
from services.controller.episodes.maker import CompletionMaker, EpisodeMaker
from services.controller.episodes.room import EnvironmentRoom
from services.controller.faulted import FaultedGate
from services.controller.groups import GroupMaker
from services.controller.loop import Loop
from services.controller.proofs import ProofCheck
from services.controller.resuming.resume import replay
from services.controller.router import Router
from services.controller.run import record_retry
from services.controller.scoring import Scorer
from services.controller.validation.validation import Validation
from trimaran.clients import GroupAssembly, TrainAnswer
from trimaran.config import RunConfig, parse_config
from trimaran.errors import OutOfOrderError, UnavailableError
from trimaran.ledger.anchor import AnchorFile
from trimaran.ledger.ledger import Retention, RunLedger
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.ledger.records import Filtered, Record, Skipped, Tainted, decode_proof
from trimaran.ledger.write_pause import WritePause
from trimaran.store.sqlite import SqliteStore
from trimaran.types import (
    Completion,
    Group,
    LedgerEnd,
    Manifest,
    Message,
    Opening,
    PolicyVersion,
    Prefix,
    Prompt,
    Proof,
    Replica,
    Reply,
    Routing,
    Sampling,
    Score,
    Segment,
    TrainingBatch,
    Usage,
    Verdict,
    VersionId,
    images_in,
)

RUN_ID = "run-1"
IMAGE = 850
"""The image token of fake replicas."""
PROMPTS = [Prompt(f"p:{i}", (Message("user", f"{i} + 1?"),), "add", str(i + 1)) for i in range(16)]


class InMemory(TrainingPrompts):
    async def fetch(self, number: int) -> Prompt:
        return self.at(number)


def make_config(**sections: Any) -> RunConfig:
    tree: dict[str, Any] = {
        "run": {"steps": 6, "groups_per_step": 4, "checkpoint_every": 100},
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "rollout": {"group_size": 2, "max_tokens": 4, "replicas": 2, "idle_timeout": 5},
        "reward": {"rules": {"exact_match": 1.0}},
        "start_timeout": 5,
        "outage_timeout": 5,
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values} if isinstance(values, Mapping) else values
    return parse_config(tree)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class FakeTrainer:
    """Its root is a digest of all tokens and rewards it was ever trained on."""

    def __init__(self, events: list[Any], checkpoints: dict[int, str]) -> None:
        self.events, self.checkpoints = events, checkpoints
        self.step = max(checkpoints)
        self.loaded = 0
        """Of which step, where that was a checkpoint."""
        self.root = checkpoints[self.step]
        self.salt = ""
        self.lineage = 0
        self.has_answer = True
        """To the step that it holds; a trainer that has loaded a checkpoint has none."""
        self.pace: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        self.batches: list[TrainingBatch] = []
        self.nonfinite: Callable[[int], str] = lambda step: ""
        """By step, why its update is left out."""
        self.copy_fault: Exception | None = None
        self.save_fault: Exception | None = None
        self.copied: tuple[int, str, LedgerEnd, Exception | None] | None = None
        """Step, root, ledger and fault of the save that is being written."""
        self.write_pace: Callable[[int], Awaitable[None]] = lambda step: asyncio.sleep(0)
        """Of the write of a checkpoint of that step."""
        self.scores: dict[int, float | None] = {}
        """Of the validations of the steps that were saved."""
        self.ledger: LedgerEnd | None = None
        """As the newest checkpoint holds it."""
        self.ahead: TrainingBatch | None = None
        """Trained, while the version before it is still held."""
        self.num_busy = 0
        """Questions that come while the next version is being made."""

    @property
    def policy(self) -> PolicyVersion:
        version = VersionId(self.lineage, self.step)
        return PolicyVersion(RUN_ID, version, self.root)

    async def get_policy_version(self, timeout: float) -> tuple[PolicyVersion, Manifest]:
        if self.num_busy:
            self.num_busy -= 1
            raise OutOfOrderError("the weights are being replaced by those of the next step")
        return self.policy, Manifest((), self.root)

    async def train_batch(
        self,
        batch: TrainingBatch,
        timeout: float,
        lineage: int = 0,
        proofs: Sequence[Proof] = (),
    ) -> TrainAnswer:
        self.lineage = lineage
        self._check(batch, proofs)
        if batch.step == self.step:
            if not self.has_answer:
                raise OutOfOrderError(f"step {batch.step}: the trainer was started again since")
            return TrainAnswer(self.policy, {}, self.nonfinite(batch.step))
        if batch.step != self.step + 1:
            raise OutOfOrderError(f"step {batch.step} after {self.step}")
        if self.ahead is None:
            await self._train(batch)
        batch, self.ahead = self.ahead or batch, None
        contents = [
            (
                scored.group.number,
                [c.token_ids_T for c in scored.group.completions_G],
                scored.verdicts_G,
            )
            for scored in batch.groups
        ]
        self.step, fault = batch.step, self.nonfinite(batch.step)
        if not fault:
            self.root = digest(self.root, self.salt, contents)
        return TrainAnswer(self.policy, {"trainer/loss": 0.5}, fault)

    async def train_ahead(
        self, batch: TrainingBatch, timeout: float, proofs: Sequence[Proof] = ()
    ) -> None:
        self._check(batch, proofs)
        if batch.step != self.step + 1 or self.ahead:
            raise OutOfOrderError(f"step {batch.step} ahead of {self.step}")
        self.events.append(("ahead", batch.step))
        await self._train(batch)
        self.ahead = batch

    async def make_version(self, step: int, timeout: float, lineage: int = 0) -> TrainAnswer:
        assert self.ahead is not None and self.ahead.step == step
        self.events.append(("version", step))
        return await self.train_batch(TrainingBatch(step, ()), timeout, lineage)

    async def _train(self, batch: TrainingBatch) -> None:
        self.events.append(("train", batch.step))
        self.batches.append(batch)
        await self.pace()

    def _check(self, batch: TrainingBatch, proofs: Sequence[Proof]) -> None:
        proven = {(p.version, p.replica) for p in proofs if not p.fault}
        makers = {maker for scored in batch.groups for maker in scored.group.makers}
        assert makers <= proven, f"step {batch.step} came without proofs of {makers - proven}"

    async def get_ledger_end(self, timeout: float) -> LedgerEnd | None:
        return self.ledger

    async def begin_checkpoint(
        self, step: int, timeout: float, ledger: LedgerEnd, score: float | None = None
    ) -> None:
        self.scores[step] = score
        assert step == self.step
        assert self.copied is None, "the save before is still being written"
        if self.copy_fault:
            raise self.copy_fault
        self.copied = step, self.root, ledger, self.save_fault
        self.events.append(("copied", step))

    async def wait_checkpoint(self, step: int, timeout: float) -> str:
        if self.copied is None and self.loaded == step:
            return f"checkpoints/step-{step:05d}"
        if self.copied is None or self.copied[0] != step:
            raise OutOfOrderError(f"checkpoint of step {step}: no save of it has begun")
        _, root, ledger, fault = self.copied
        try:
            await self.write_pace(step)
            if fault:
                raise fault
        finally:
            self.copied = None
        self.checkpoints[step], self.ledger = root, ledger
        self.events.append(("checkpoint", step))
        return f"checkpoints/step-{step:05d}"


class FakeWeightSync:
    """Its proofs stand in a file and outlive it."""

    def __init__(self, events: list[Any], names: list[str], proofs: Path) -> None:
        self.events, self.names = events, names
        self.makers: dict[str, str] = {}
        """By replica; else its tokens bear its own name."""
        self._file = proofs
        self.live: PolicyVersion | None = None
        self.reports: dict[str, str] = {}
        self.pace: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        """Of a publication."""
        self.list_pace: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        self.publish_fault: Exception | None = None
        trees = json.loads(proofs.read_text()) if proofs.exists() else []
        stored = [decode_proof(tree) for tree in trees]
        self.proofs = {(proof.version, proof.replica): proof for proof in stored}
        self.num_loaded = 1
        """Of the four blocks, in the proofs of what is published from now on."""
        self.missing: set[tuple[VersionId, str]] = set()
        self.list_errors: list[Exception] = []
        self.faults: list[Proof] = []
        self.publish_timeout = 0.0
        """Of the last publication."""

    async def list_proofs(self, versions: Sequence[VersionId]) -> tuple[Proof, ...]:
        self.events.append(("list proofs", tuple(versions)))
        await self.list_pace()
        if self.list_errors:
            raise self.list_errors.pop()
        proven = {m: p for m, p in self.proofs.items() if m not in self.missing}
        return tuple(p for (version, _), p in proven.items() if version in versions)

    async def list_faults(self, after: int) -> tuple[Proof, ...]:
        return tuple(self.faults[after:])

    def find_fault(self, version: VersionId, name: str, fault: str) -> None:
        """What a read-back may find at any time."""
        found = Proof(version, name, "root", 4, 1, fault)
        self.faults.append(found)
        self._prove(found)

    def read_back(self, version: VersionId, name: str) -> None:
        """All of it, and all is right."""
        self._prove(replace(self.proofs[version, name], num_loaded=4))

    def _prove(self, *proofs: Proof) -> None:
        self.proofs |= {(proof.version, proof.replica): proof for proof in proofs}
        self._file.write_text(json.dumps([asdict(proof) for proof in self.proofs.values()]))

    async def publish_version(
        self, version: PolicyVersion, timeout: float
    ) -> tuple[Routing, dict[str, float]]:
        if self.publish_fault:
            raise self.publish_fault
        self.publish_timeout = timeout
        self.events.append(("publish", version.version.step))
        await self.pace()
        self.live = version
        self._prove(
            *(
                Proof(version.version, name, version.root, 4, self.num_loaded)
                for name in self.names
                if (version.version, name) not in self.proofs
            )
        )
        self.events.append(("live", version.version.step))
        return await self.get_routing(), {"weight_sync/pause/seconds": 0.25}

    async def sleep_replicas(self, timeout: float) -> None:
        self.events.append(("sleep",))

    async def get_routing(self) -> Routing:
        routable = tuple(Replica(n, f"{n}:1") for n in self.names if n not in self.reports)
        return Routing(self.live, routable, dict(self.reports))

    async def report_replica(self, name: str, reason: str) -> None:
        self.events.append(("report", name))
        self.reports[name] = reason


class FakeRollout:
    """Tokens are a digest of the seed and the live weights, so that a reissued group can be the same."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.num_calls = 0

    async def generate(
        self,
        number: int,
        attempt: int,
        prompt: Prompt,
        sampling: Sampling,
        min_version: VersionId,
        assembly: GroupAssembly,
        idle_timeout: float,
        prefix: Prefix | None = None,
    ) -> Group:
        world = self.world
        world.events.append(("generate", number, attempt, self.name))
        live = world.weight_sync.live
        assert live
        await world.faults(number, attempt, prompt, self.name)
        await world.delay(number)
        if prefix is not None:
            return self._turn(number, attempt, prompt, sampling, assembly, prefix)
        completions = []
        for index in range(sampling.num_samples):
            token = int(digest(sampling.seed, index, live.root), 16) % 30000
            if not sampling.temperature:
                token = 1
            maker = world.weight_sync.makers.get(self.name, self.name)
            segment = Segment(0, 1, live.version, maker)
            text = f"{prompt.answer}" if token % 2 else "?"
            completions.append(Completion((token,), (-0.5,), text, "stop", (segment,)))
        return Group(number, attempt, prompt, (1, 2, 3), tuple(completions))

    def _turn(
        self,
        number: int,
        attempt: int,
        prompt: Prompt,
        sampling: Sampling,
        assembly: GroupAssembly,
        prefix: Prefix,
    ) -> Group:
        """Each message is two given tokens, and one an image; each turn three sampled ones, or as many as it may
        have."""
        live = self.world.weight_sync.live
        assert live
        given = tuple(
            token
            for message in prompt.messages
            for token in (900, *[IMAGE] * len(message.images), int(digest(message), 16) % 800)
        )
        before = tuple(prefix.token_ids)
        first = int(digest(sampling.seed, live.root, before), 16) % 800
        sampled = (first, first + 1, 999)[: sampling.max_tokens]
        self.world.events.append(("turn", number, self.name, (*before, *given), sampled))
        segment = Segment(
            0, len(sampled), live.version, self.world.weight_sync.makers.get(self.name, self.name)
        )
        assembly.message = Message("assistant", f"say {first}")
        turn = Completion(
            sampled, (-0.5, -0.25, -0.125)[: len(sampled)], f"say {first}", "stop", (segment,)
        )
        images = prefix.images or images_in(prompt.messages)
        seen = self.world.see(self.name, images) if images else ""
        return Group(number, attempt, prompt, given, (turn,), seen)

    async def close(self) -> None: ...


class FakeEnvironment:
    """Ends each episode after `num_turns`, and rewards its last turn by whether the policy's number is even."""

    def __init__(self, events: list[Any], num_turns: int = 3) -> None:
        self.events, self.num_turns = events, num_turns
        self.open_names: set[str] = set()
        self.usages: dict[int, set[Usage]] = {}
        """By turn."""
        self.faults: Callable[[str, int], Awaitable[None]] = lambda name, turn: asyncio.sleep(0)
        """By episode and turn; 0 for its opening."""
        self.opening: Opening | None = None
        """In the place of the row's messages."""
        self.reply: Callable[[str, int, Message], Reply | None] = lambda name, turn, message: None

    async def open(self, episode: str, prompt: Prompt, seed: int, timeout: float) -> Opening:
        await self.faults(episode, 0)
        assert episode not in self.open_names
        assert not images_in(prompt.messages), "environments are given texts"
        self.open_names.add(episode)
        self.events.append(("open", episode))
        return self.opening or Opening(prompt.messages)

    async def step(
        self,
        episode: str,
        turn: int,
        message: Message,
        finish_reason: str,
        timeout: float,
        usage: Usage,
    ) -> Reply:
        assert episode in self.open_names
        self.usages.setdefault(turn, set()).add(usage)
        await self.faults(episode, turn)
        if reply := self.reply(episode, turn, message):
            return reply
        if turn < self.num_turns:
            return Reply((Message("user", f"turn {turn}"),), num_calls=1)
        return Reply(reward=float(int(message.text.split()[-1]) % 2 == 0), done=True)

    async def close_episode(self, episode: str) -> None:
        self.open_names.discard(episode)


class FakeReward:
    """Records the number of each group that it is given."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.faults: Callable[[Group], Awaitable[tuple[Verdict, ...] | None]] | None = None

    async def score_group(self, group: Group, timeout: float) -> tuple[Verdict, ...]:
        self.calls.append(group.number)
        if self.faults and (verdicts := await self.faults(group)):
            return verdicts
        return tuple(Score(float(c.text == group.prompt.answer)) for c in group.completions_G)


class FakeReporter:
    def __init__(self, events: list[Any], validations: dict[int, Validation]) -> None:
        self.events, self.validations = events, validations

    def progress(self, text: str) -> None: ...

    def doing(self, what: str) -> nullcontext[Callable[[str], None]]:
        return nullcontext(lambda text: None)

    def phase(self, name: str) -> nullcontext[None]:
        return nullcontext()

    def training(self, step: int) -> nullcontext[None]:
        return nullcontext()

    def step(self, batch: TrainingBatch, answer: TrainAnswer, synced: Any) -> float:
        self.events.append(("step", batch.step))
        if answer.nonfinite:
            self.events.append(("nonfinite", batch.step, answer.nonfinite))
        return 1.0

    def values_of(self, step: int) -> Mapping[str, float]:
        return self.validations[step].values() if step in self.validations else {}

    async def written(self) -> None: ...

    def validating(self, step: int) -> nullcontext[Callable[[str], None]]:
        return nullcontext(lambda text: None)

    def validation(self, step: int, validation: Validation) -> None:
        self.events.append(("validated", step))

    def skipped(self, prompt: Prompt, reason: str) -> None:
        self.events.append(("skipped", prompt.prompt_id, reason))

    def replaced(self) -> None:
        self.events.append(("replaced",))

    def held(self, text: str, values: Mapping[str, float]) -> None:
        self.events.append(("held", text, dict(values)))

    def released(self, text: str, values: Mapping[str, float]) -> None:
        self.events.append(("released",))

    def tainted(self, record: Tainted) -> None:
        self.events.append(("tainted", record.replica, record.steps))

    def checkpoint(self, step: int, path: str, root: str) -> None:
        self.events.append(("saved", step, root))

    def checkpoint_failed(self, step: int, reason: str, newest: int | None) -> None:
        self.events.append(("checkpoint failed", step, reason))

    def failing(self, reason: str, seconds: float) -> None:
        self.events.append(("failing", reason))


def short_wait(num_failures: int) -> float:
    return 0.002


async def no_faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None: ...


def make_loop(
    world: Any,
    ledger: RunLedger,
    router: Router,
    prover: ProofCheck,
    maker: CompletionMaker,
    reporter: Any,
    *waits: Callable[[int], float],
) -> Loop:
    """As services.controller.run assembles it."""
    config = world.config
    gate = FaultedGate(config, reporter.held, reporter.released, *waits)
    return Loop(
        config,
        InMemory([cast(Any, PROMPTS)], [1], config.run.seed, config.data.shuffle),
        ledger,
        router,
        maker,
        Scorer(world.reward, gate, config, *waits),
        prover,
        world.trainer,
        world.weight_sync,
        world.validator,
        reporter,
        world.ending,
        world.cancelled,
    )


async def conduct(loop: Loop, on_step: Callable[..., None] = lambda batch, answer: None) -> None:
    """As services.controller.run does, from the ledger to the last step."""
    version, pending, loop.saver.came_at = await replay(
        loop.ledger, loop.trainer, loop.config, on_step
    )
    if pending:
        version = (await loop.train_pending(pending, version)).version
    await loop.publish(version)
    async with loop.router.watching():
        await loop.run()


class World:
    """One life of the services and the controller over a folder that outlives them."""

    def __init__(
        self, folder: Path, config: RunConfig, checkpoints: dict[int, str] | None = None
    ) -> None:
        self.config = config
        self.validations: dict[int, Validation] = {}
        self.events: list[Any] = []
        self.checkpoints = checkpoints if checkpoints is not None else {0: "root-0"}
        self.store = SqliteStore(folder / "store.sqlite")
        names = [f"rollout-{i}" for i in range(config.rollout.replicas)]
        self.weight_sync = FakeWeightSync(self.events, names, folder / "proofs.json")
        self.trainer = FakeTrainer(self.events, self.checkpoints)
        self.reward = FakeReward()
        self.environments = [FakeEnvironment(self.events) for _ in range(config.num_environments)]
        self.faults: Callable[[int, int, Prompt, str], Awaitable[None]] = no_faults
        self.delay: Callable[[int], Awaitable[None]] = lambda number: asyncio.sleep(0)
        self.see: Callable[[str, tuple[bytes, ...]], str] = lambda replica, images: digest(images)
        """What a replica makes of images: their digest."""
        self.validator: Any = None
        self.lost: list[str] = []
        payloads = FolderPayloads(folder / "payloads")
        self.ledger = asyncio.run(
            RunLedger.open(
                self.store,
                payloads,
                RUN_ID,
                anchor=AnchorFile(folder),
                retention=Retention(
                    config.run.keep_payloads == "all", config.run.payload_quota_gib
                ),
                pause=WritePause(config.run.hold_timeout),
            )
        )
        self.recorded: list[Record] = []
        """In this life."""
        apply = self.ledger.record

        def record(record: Record) -> None:
            apply(record)
            self.recorded.append(record)

        self.ledger.record = record
        self.ending, self.cancelled = asyncio.Event(), asyncio.Event()
        self.settle = 0.02
        """Seconds for which a proof that is missing is waited for."""

    async def run(self) -> Loop:
        fake: Any = self
        router = Router(
            fake.weight_sync,
            connect=lambda address: fake.connect(address),
            max_concurrency=self.config.rollout.max_concurrency,
            patience=self.config.outage_timeout,
            on_lost=lambda name, reason: self.lost.append(name),
            on_back=lambda name: None,
            on_busy=lambda name, start, end: None,
            poll=0.01,
        )
        reporter: Any = FakeReporter(self.events, self.validations)
        prover = ProofCheck(
            *(fake.weight_sync, self.config.outage_timeout, self.settle),
            poll=0.01,
            retry=0.01,
            needed=self.config.run.proof,
            prove_timeout=self.config.weight_sync.prove_timeout,
        )
        maker = self.maker(router, prover)
        loop = make_loop(self, self.ledger, router, prover, maker, reporter, short_wait)
        await conduct(loop, lambda batch, answer: self.events.append(("reported", batch.step)))
        return loop

    def maker(self, router: Router, prover: ProofCheck) -> CompletionMaker:
        turns = GroupMaker(router, prover, self.config)
        if self.config.environment is None:
            return turns
        clients: Any = self.environments
        room = EnvironmentRoom(clients, self.config.environment.max_episodes)
        return EpisodeMaker(turns, room, self.config, partial(record_retry, self.ledger))

    def connect(self, address: str) -> FakeRollout:
        return FakeRollout(address.removesuffix(":1"), self)

    def close(self) -> None:
        asyncio.run(self.ledger.close())
        asyncio.run(self.store.close())

    def filtered(self) -> dict[int, Filtered]:
        """By group."""
        return {r.group: r for r in self.recorded if isinstance(r, Filtered)}

    def skipped(self) -> dict[int, Skipped]:
        """By group."""
        return {r.group: r for r in self.recorded if isinstance(r, Skipped)}

    def lags(self) -> list[int]:
        return [
            batch.step - 1 - completion.segments[0].version.step
            for batch in self.trainer.batches
            for scored in batch.groups
            for completion in scored.group.completions_G
        ]

    def trained_numbers(self) -> list[int]:
        return [s.group.number for batch in self.trainer.batches for s in batch.groups]


def run(world: World, work: Coroutine[Any, Any, object] | None = None) -> World:
    """`work`: what runs it among other things."""
    try:
        asyncio.run(asyncio.wait_for(work or world.run(), 120))
    finally:
        world.close()
    return world


def dies(replica: str, *numbers: int) -> Callable[[int, int, Prompt, str], Awaitable[None]]:
    """A replica that is gone: every call to it fails as a broken connection does."""

    async def faults(number: int, attempt: int, prompt: Prompt, name: str) -> None:
        if name == replica and (not numbers or number in numbers):
            raise UnavailableError("Socket closed")

    return faults
