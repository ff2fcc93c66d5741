"""What is asked of a run's ledger: the life of a group, whether all is well, what a step trained on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from services.manager.records import Managed
from services.manager.run_data.choice import ALL, Choice, Spot, arrange
from services.manager.run_data.results import list_checkpoints
from trimaran.config import RunConfig, parse_recorded
from trimaran.errors import InputError, NotFoundError
from trimaran.ledger.anchor import read_anchors
from trimaran.ledger.check import check_ledger
from trimaran.ledger.group_life import read_life
from trimaran.ledger.group_words import tell
from trimaran.ledger.ledger import read_trees
from trimaran.ledger.payloads.files import MissingPayloadError, Payloads, open_payloads
from trimaran.ledger.records import Consumed, Scored, Tree, decode
from trimaran.ledger.scores import rewards_of
from trimaran.ledger.search import find_start
from trimaran.run.answers import LedgerAnswer, RunEpisode, RunSample
from trimaran.run.place import run_place
from trimaran.store import Store
from trimaran.types import Faulted, ScoredGroup
from trimaran.wire.messages import decode_scored_group

KEEP = "set run.keep_payloads to all to keep those of a next run"
Rewards = tuple[float | None, ...]


async def ask_group(store: Store, run: Managed, group: int) -> LedgerAnswer:
    """Raises NotFoundError for a group that the ledger does not know."""
    async with _payloads(run) as payloads:
        try:
            life = await read_life(store, payloads, run.run_id, group)
        except InputError as error:
            raise NotFoundError(str(error)) from None
    return LedgerAnswer(tuple(tell(life)), life.tree())


async def verify(store: Store, run: Managed) -> LedgerAnswer:
    place = run_place(_config(run), run.run_id)
    anchors = await asyncio.to_thread(read_anchors, Path(run.folder), place)
    keeps_all = _config(run).run.keep_payloads == "all"
    async with _payloads(run) as payloads:
        found = await check_ledger(store, payloads, run.run_id, anchors, keeps_all)
    return LedgerAnswer(tuple(found.lines()), found.tree(), sound=not found.faults)


def trained_steps(run: Managed) -> tuple[int, ...]:
    """Those whose payloads are kept."""
    if _config(run).run.keep_payloads == "all":
        return tuple(range(1, run.step + 1))
    place = run_place(_config(run), run.run_id)
    kept = [checkpoint.step for checkpoint in list_checkpoints(Path(run.folder), (), place)]
    newest = sorted(kept)[-_config(run).run.keep_checkpoints :]  # others are kept as the best
    return tuple(range(min(newest, default=0) + 1, run.step + 1))


async def ask_scored(store: Store, run: Managed, group: int) -> ScoredGroup:
    """Its last scored attempt. Raises NotFoundError."""
    async with _payloads(run) as payloads:
        try:
            life = await read_life(store, payloads, run.run_id, group)
        except InputError as error:
            raise NotFoundError(str(error)) from None
    if life.whole is None:
        raise NotFoundError(
            f"group {group}: its tokens are not there: it is not scored yet, it never trained, or"
            f" its payload is no longer kept; {KEEP}"
        )
    return life.whole


async def trained_samples(
    store: Store, run: Managed, step: int, limit: int, offset: int = 0, choice: Choice = ALL
) -> tuple[list[RunSample], int]:
    """Some of the step's samples, and how many are chosen; in the order in which they trained where
    they were not given another. Raises NotFoundError."""
    async with _payloads(run) as payloads:

        async def read(name: str) -> ScoredGroup:
            try:
                return decode_scored_group(await payloads.read(name))
            except MissingPayloadError:
                raise NotFoundError(
                    f"trained_step {step}: its payloads are not kept any more; {KEEP}"
                ) from None

        units = await _trained_groups(store, payloads, run.run_id, step)
        spots = [
            Spot(unit, number, False, reward)
            for unit, (name, rewards) in enumerate(units)
            for number, reward in enumerate(rewards or rewards_of((await read(name)).verdicts_G))
        ]
        chosen = arrange(spots, choice)
        page = chosen[offset : offset + limit]
        wanted = sorted({spots[place].unit for place in page})
        found = {unit: _samples(await read(units[unit][0])) for unit in wanted}
    samples = ((place, found[spots[place].unit][spots[place].number]) for place in page)
    return [replace(sample, place=place) for place, sample in samples], len(chosen)


async def _trained_groups(
    store: Store, payloads: Payloads, run_id: str, step: int
) -> list[tuple[str, Rewards]]:
    """The payloads of the groups that trained in the step, with their rewards; () where a record of their
    own was archived before. It reads the ledger behind the last place at which the step was not
    trained, and keeps only what is scored and has not trained."""

    def is_early(state: Tree) -> bool:
        return max((state["step"], *(known for known, _ in state["steps"]))) < step

    start = await find_start(store, payloads, run_id, is_early)
    waiting = start.state.get("groups", ())
    scored: dict[tuple[int, int], tuple[str, Rewards]] = {
        (group, attempt): (payload, ()) for group, attempt, _, payload in waiting if payload
    }
    async with aclosing(read_trees(store, payloads, run_id, start.after)) as trees:
        async for _, tree in trees:
            if tree["kind"] not in ("scored", "consumed"):
                continue
            record = decode(tree)
            if isinstance(record, Scored):
                scored[record.group, record.attempt] = record.payload, record.rewards
            elif isinstance(record, Consumed):
                trained = [scored.pop(key) for key in record.groups if key in scored]
                if record.step == step:
                    return trained
    raise NotFoundError(f"trained_step {step}: no such step has been trained")


def _samples(scored: ScoredGroup) -> list[RunSample]:
    prompt = scored.group.prompt
    num_images = sum(len(message.images) for message in prompt.messages)
    judged = zip(scored.group.completions_G, scored.verdicts_G, strict=True)
    return [
        RunSample(
            prompt_id=prompt.prompt_id,
            prompt=prompt.question,
            answer=completion.text,
            reference=prompt.answer,
            reward=0.0 if isinstance(verdict, Faulted) else verdict.reward,
            terms=dict(verdict.terms),
            fault=str(verdict.fault) if isinstance(verdict, Faulted) else "",
            episode=RunEpisode.of(completion),
            group=scored.group.number,
            number=number,
            num_images=num_images,
        )
        for number, (completion, verdict) in enumerate(judged)
    ]


@asynccontextmanager
async def _payloads(run: Managed) -> AsyncGenerator[Payloads]:
    payloads = open_payloads(_config(run).run.payloads, Path(run.folder), run.run_id)
    try:
        yield payloads
    finally:
        await payloads.close()


def _config(run: Managed) -> RunConfig:
    return parse_recorded(run.config, source=f"run {run.run_id}")
