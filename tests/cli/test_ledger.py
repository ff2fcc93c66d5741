"""`trimaran ledger show` on a run folder, with or without its name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from services.controller.ledger import RunLedger
from services.controller.payloads import PayloadStore
from services.controller.records import Issued, Reissue
from tests.cli.conftest import WriteRun
from trimaran.cli.main import main
from trimaran.config import load_config
from trimaran.launch.run_folder import make_run_folder, write_config
from trimaran.run_context import RunContext
from trimaran.store import open_store


@pytest.fixture
def folder(write_run: WriteRun) -> Path:
    """A run whose group 17 was reissued."""
    config = load_config(write_run())
    folder = make_run_folder(config)
    write_config(folder, config)
    asyncio.run(record(RunContext.in_folder(folder)))
    return folder


async def record(run: RunContext) -> None:
    store = await open_store(run.store_url)
    ledger = await RunLedger.open(store, PayloadStore(run.folder / "payloads"), run.run_id)
    ledger.record(Issued(17, 1, "train.jsonl:3"))
    ledger.record(Issued(17, 2, "train.jsonl:3", Reissue("CUDA error", "rollout-0")))
    await ledger.flush()
    await ledger.close()
    await store.close()


def test_it_says_why_a_group_was_reissued(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ([], [folder.name], [str(folder)]):
        assert main(["ledger", "show", *run, "17"]) == 0
        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        assert (first["attempt"], first["reissue"]) == (1, None)
        assert second["reissue"] == {"cause": "CUDA error", "replica": "rollout-0"}


def test_what_is_not_there_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "show", "18"]) == 2
    assert "its ledger knows no group 18" in capsys.readouterr().err
    assert main(["ledger", "show", "nowhere", "17"]) == 2
    assert "nowhere: not a run" in capsys.readouterr().err
    for path in folder.glob("store.sqlite*"):
        path.unlink()
    assert main(["ledger", "show", "17"]) == 2
    assert "nothing was recorded" in capsys.readouterr().err
