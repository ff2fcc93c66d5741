"""What a step trained on, out of a ledger most of which is archived, a page at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.manager.run_data.choice import Choice
from tests.manager.fakes import FakeLauncher, managing, until
from tests.manager.test_runs import ANN, create, started
from trimaran.errors import NotFoundError
from trimaran.ledger.ledger import Retention, RunLedger
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.ledger.records import Checkpointed, Committed, Consumed, Generated, Issued, Scored
from trimaran.run.context import RunContext
from trimaran.run.runs import RunState
from trimaran.store import Store
from trimaran.types import (
    Completion,
    Faulted,
    Group,
    Message,
    Prompt,
    Score,
    ScoredGroup,
    VersionId,
)
from trimaran.wire.messages import serialize_scored_group

STEPS, GROUPS, SIZE = 9, 3, 2


def scored_group(number: int) -> ScoredGroup:
    texts = [f"group {number}, answer {index}" for index in range(SIZE)]
    completions = tuple(Completion((1,), (0.0,), text, "stop", ()) for text in texts)
    prompt = Prompt(f"rows:{number}", (Message("user", "?"),), "add", "5")
    verdicts = (Score(1.0, {"math": 1.0}), Faulted("worker gone", {}, ("math",)))
    return ScoredGroup(Group(number, 1, prompt, (1,), completions), verdicts)


async def record_steps(store: Store, run: RunContext) -> None:
    """The groups of a step are scored while the step before trains, as with max_lag 1."""
    payloads = FolderPayloads(run.folder / "payloads")
    retention = Retention(keep_all=True, segment_records=11)
    ledger = await RunLedger.open(store, payloads, run.run_id, retention=retention)

    def score(step: int) -> None:
        for number in range((step - 1) * GROUPS, step * GROUPS):
            ledger.record(Issued(number, 1, f"rows:{number}"))
            ledger.record(Generated(number, 1, "d"))
            payload = ledger.keep(serialize_scored_group(scored_group(number)))
            ledger.record(Scored(number, 1, payload, (1.0, None)))

    score(1)
    for step in range(1, STEPS + 1):
        groups = range((step - 1) * GROUPS, step * GROUPS)
        ledger.record(Consumed(step, tuple((number, 1) for number in groups)))
        score(step + 1)
        ledger.record(Committed(VersionId(0, step), f"root-{step}"))
        if step % 3 == 0:
            ledger.record(Checkpointed(step, "c", step))
            await ledger.collect()
    await ledger.flush()
    await ledger.close()
    await payloads.close()


async def test_every_step_is_found_and_paged(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        sections = {"run": {"keep_payloads": "all"}, "rollout": {"group_size": SIZE}}
        run_id = await create(served, tmp_path, **sections)
        processes = await started(served, launcher, run_id)
        await record_steps(processes.store, launcher.contexts[run_id])
        [(first, _)] = await processes.store.read(f"ledger/{run_id}", None, 1)
        assert first > 60, "nothing was archived"
        await processes.report(RunState.RUNNING, step=STEPS)
        await until(lambda: served.manager.records.get(run_id).step == STEPS)
        for step in range(1, STEPS + 1):
            numbers = range((step - 1) * GROUPS, step * GROUPS)
            wanted = [f"group {number}, answer {i}" for number in numbers for i in range(SIZE)]
            for limit in (1, 2, 4, 5, 20):
                answers: list[str] = []
                for offset in range(0, GROUPS * SIZE, limit):
                    found = await served.runs.samples(ANN, run_id, None, step, limit, offset)
                    assert (found.num_samples, found.step) == (GROUPS * SIZE, step)
                    answers += [sample.answer for sample in found.samples]
                assert answers == wanted
        found = await served.runs.samples(ANN, run_id, trained_step=STEPS)
        last = found.samples[-1]
        assert (last.prompt_id, last.fault) == (f"rows:{STEPS * GROUPS - 1}", "worker gone")
        assert (last.place, last.group, last.number) == (5, STEPS * GROUPS - 1, 1)
        faulted = await served.runs.samples(ANN, run_id, None, STEPS, 2, 1, Choice(faulted=True))
        assert [sample.place for sample in faulted.samples] == [3, 5] and faulted.num_samples == 3
        assert await served.runs.scored_group(ANN, run_id, 1) == scored_group(1)
        with pytest.raises(NotFoundError, match="knows no group 99"):
            await served.runs.scored_group(ANN, run_id, 99)
        assert found.trained_steps == tuple(range(1, STEPS + 1))
        with pytest.raises(NotFoundError, match=f"trained_step {STEPS + 1}: no such step"):
            await served.runs.samples(ANN, run_id, trained_step=STEPS + 1)
