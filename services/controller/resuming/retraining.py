"""Training recorded batches again: the one code behind a resume and behind `trimaran replay`."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

from trimaran.clients import TrainAnswer, TrainerClient
from trimaran.errors import InputError, TrimaranError
from trimaran.ledger.chain import Chain
from trimaran.ledger.payloads.files import Payloads
from trimaran.ledger.payloads.pack import place_of
from trimaran.ledger.records import (
    Began,
    Committed,
    Consumed,
    Filtered,
    Replayed,
    Scored,
    Skipped,
    Tree,
    decode,
)
from trimaran.ledger.state import StepEntry
from trimaran.types import TrainingBatch
from trimaran.wire.messages import parse_scored_group

Load = Callable[[str], Awaitable[bytes]]
"""From a payload's name to its bytes."""


class DivergedError(TrimaranError):
    """Recorded batches did not lead to the recorded weights again."""

    remedy = (
        "Something else than the run's files has changed: the model, a library, the machine. Bring it"
        " back and resume the run, or start a new one."
    )


@dataclass(frozen=True, slots=True)
class Retrained:
    """A recorded step, trained again."""

    batch: TrainingBatch
    answer: TrainAnswer
    recorded_root: str

    @property
    def is_same(self) -> bool:
        return self.answer.version.root == self.recorded_root


def describe_difference(step: int, root: str, recorded: str) -> str:
    return f"step {step} has root {root}, recorded is {recorded}"


async def load_batch(load: Load, step: int, entry: StepEntry) -> TrainingBatch:
    groups = [parse_scored_group(await load(name)) for name in entry.payloads]
    return TrainingBatch(step, tuple(groups), entry.num_steps)


async def train_again(
    load: Load, trainer: TrainerClient, step: int, entry: StepEntry, lineage: int, timeout: float
) -> Retrained:
    """The recorded batch in its recorded order, with the proofs that it had when it was consumed."""
    batch = await load_batch(load, step, entry)
    answer = await trainer.train_batch(batch, timeout, lineage, entry.proofs)
    return Retrained(batch, answer, entry.root)


async def recorded_steps(
    run_id: str, trees: AsyncIterable[tuple[int, Tree]], replayed: dict[int, Replayed]
) -> AsyncIterator[tuple[int, StepEntry]]:
    """Each committed step, in order. Raises LedgerError where the chain breaks.

    `replayed`: what later records say of a step, when a resume has opened a new lineage.
    """
    chain = Chain(run_id)
    async for sequence, tree in trees:
        record = chain.follow(sequence, tree)
        if isinstance(record, Committed):
            step, entry = record.version.step, chain.state.steps[record.version.step]
            if later := replayed.get(step):
                entry = replace(entry, version=later.version, root=later.root)
            yield step, entry


@dataclass(frozen=True, slots=True)
class Replayable:
    """What can be trained again of a ledger.

    Example: (await find_replayable(trees, payloads, start=0)).num_steps
    """

    num_steps: int
    """Committed ones."""
    start_root: str
    """Recorded root of the step where the replay begins."""
    replayed: dict[int, Replayed]
    """By step, what resumes that opened a new lineage have reached."""


async def find_replayable(
    trees: AsyncIterable[tuple[int, Tree]], payloads: Payloads, start: int
) -> Replayable:
    """What can be trained again of the steps behind `start`. Raises InputError that says what is missing."""
    present = (await payloads.sizes()).keys()
    scored: dict[int, str] = {}
    start_root, lacking, num_steps = "", list[int](), 0
    replayed: dict[int, Replayed] = {}
    async for _, tree in trees:
        match decode(tree):
            case Began(_, root) if start == 0:
                start_root = root
            case Scored(group, _, payload):
                scored[group] = payload
            case Filtered(group) | Skipped(group):
                scored.pop(group, None)
            case Consumed(step, groups):
                files = {place_of(scored.pop(group)).file for group, _ in groups}
                if step > start and not files <= present:
                    lacking.append(step)
            case Committed() | Replayed() as record:
                num_steps = max(num_steps, record.version.step)
                if record.version.step == start:
                    start_root = record.root
                if isinstance(record, Replayed):
                    replayed[record.version.step] = record
            case _:
                pass
    if lacking:
        raise InputError(
            f"steps {lacking[0]} to {lacking[-1]}: payloads of {len(lacking)} of them are no longer"
            " kept; a run keeps all with run.keep_payloads=all. What is left can be replayed with"
            f" --from {lacking[-1]}, if that step's checkpoint is kept"
        )
    if start >= num_steps:
        raise InputError(
            f"--from {start}: the run has committed {num_steps} steps; nothing follows"
        )
    return Replayable(num_steps, start_root, replayed)
