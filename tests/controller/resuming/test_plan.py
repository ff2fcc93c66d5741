"""What a resume changes is recorded for the steps from then on, and recorded steps keep what they had."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.controller.resuming.retraining import load_batch
from services.controller.resuming.run_plan import plan
from tests.controller.fakes import make_config
from trimaran.errors import InputError
from trimaran.ledger.ledger import RunLedger
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.ledger.records import Committed, Consumed, Generated, Issued, Scored
from trimaran.ledger.state import decode_state, encode_state
from trimaran.store.sqlite import SqliteStore
from trimaran.types import VersionId


async def train(ledger: RunLedger, step: int, commit: bool = True) -> None:
    ledger.record(Issued(step, 1, "p"))
    ledger.record(Generated(step, 1, "d"))
    ledger.record(Scored(step, 1, "x"))
    ledger.record(Consumed(step, ((step, 1),)))
    if commit:
        ledger.record(Committed(VersionId(0, step), "root"))


async def test_an_extension_counts_for_the_steps_whose_batch_is_not_chosen_yet(
    tmp_path: Path,
) -> None:
    def config(**run: Any) -> Any:
        return make_config(run=run, trainer={"schedule": "linear"})

    store = SqliteStore(tmp_path / "store.sqlite")
    ledger = await RunLedger.open(store, FolderPayloads(tmp_path), "demo")
    assert plan(ledger, config(steps=2)) == ""
    await train(ledger, 1)
    await train(ledger, 2, commit=False)
    assert plan(ledger, config(steps=2)) == "", "nothing has changed"

    text = plan(ledger, config(steps=6, checkpoint_every=3))
    assert text.startswith(
        "from step 3 on: run.steps 6 (was 2), run.checkpoint_every 3 (was 100); "
    )
    assert "trainer.schedule linear: from there on the learning rate is that of step 3 of 6" in text
    ledger.record(Committed(VersionId(0, 2), "root"))
    await train(ledger, 3)
    with pytest.raises(InputError, match=r"run\.steps: 2 .* the run has 3"):
        plan(ledger, config(steps=2))
    await ledger.flush()
    await ledger.close()

    again = await RunLedger.open(store, FolderPayloads(tmp_path), "demo")
    state = decode_state(encode_state(again.state))
    assert {step: entry.num_steps for step, entry in state.steps.items()} == {1: 2, 2: 2, 3: 6}
    assert state == again.state
    assert plan(again, config(steps=6, checkpoint_every=3)) == "", "as it was recorded"

    async def load(name: str) -> bytes:
        return b""

    entry = state.steps[2]
    batch = await load_batch(load, 2, type(entry)((), (), num_steps=entry.num_steps))
    assert batch.num_steps == 2, "a replay trains it by the total that it had"
    await again.close()
    await store.close()


def test_another_change_without_one_of_the_steps_says_nothing_of_the_schedule(
    tmp_path: Path,
) -> None:
    async def main() -> str:
        store = SqliteStore(tmp_path / "store.sqlite")
        ledger = await RunLedger.open(store, FolderPayloads(tmp_path), "demo")
        cosine = {"trainer": {"schedule": "cosine"}}
        plan(ledger, make_config(**cosine))
        text = plan(ledger, make_config(**cosine, validation={"every": 7}))
        await ledger.close()
        await store.close()
        return text

    assert asyncio.run(main()) == "from step 1 on: validation.every 7 (was 5)"
