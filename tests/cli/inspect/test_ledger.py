"""`trimaran ledger show` on a run folder, with or without its name."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from commands.cli.main import main
from tests.cli.conftest import Ran, WriteRun
from tests.clients.fake_manager import managing
from trimaran.config import load_config
from trimaran.ledger.anchor import AnchorFile
from trimaran.ledger.ledger import RunLedger
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.ledger.records import Issued, Reissue
from trimaran.run.context import RunContext
from trimaran.run.folder import make_run_folder, write_config
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
    payloads = FolderPayloads(run.folder / "payloads")
    anchor = AnchorFile(run.folder)
    ledger = await RunLedger.open(store, payloads, run.run_id, anchor=anchor)
    ledger.record(Issued(17, 1, "train.jsonl:3"))
    ledger.record(Issued(17, 2, "train.jsonl:3", Reissue("CUDA error", "rollout-0")))
    await ledger.flush()
    await ledger.close()
    await store.close()


def test_it_says_why_a_group_was_reissued(folder: Path, ran: Ran) -> None:
    for words in (["17"], [folder.name, "17"], [str(folder), "17"]):
        assert ran(["ledger", "show", *words]).out.splitlines() == [
            "group 17, prompt train.jsonl:3",
            "attempt 1: issued",
            "attempt 2: issued again, because of CUDA error (the attempt before was made by rollout-0)",
            "it is being generated, or waits to be issued again",
        ]


def test_a_sound_ledger_is_called_sound_and_a_harmed_one_is_not(folder: Path, ran: Ran) -> None:
    out = ran(["ledger", "verify"]).out
    assert "1 issued: 0 committed, 0 filtered, 0 skipped, 1 open; 1 times" in out
    assert "anchors    1 agree" in out
    with closing(sqlite3.connect(folder / "store.sqlite", isolation_level=None)) as connection:
        connection.execute("DELETE FROM streams WHERE sequence = 2")
    assert "FAULT      records 2 to 2 are missing" in ran(["ledger", "verify", folder.name], 1).out
    assert len(json.loads(ran(["ledger", "verify", "--json"], 1).out)["faults"]) == 1


def test_a_run_that_is_not_here_is_asked_of_its_manager(
    folder: Path, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    with managing() as manager:
        manager.do(manager.runs.add, "elsewhere-1")
        named = ["--manager", manager.address]
        for words in (["elsewhere-1"], ["else"], ["latest"], []):
            out = ran(["ledger", "show", *words, "3", *named]).out
            assert out == "group 3: issued, trained in step 2\n"
        words = ["ledger", "verify", "latest", *named]
        assert ran(words, 1).out == "the chain is broken at record 7\n"
        assert json.loads(ran([*words, "--json"], 1).out) == {"broken_at": 7}
        assert main(["ledger", "verify", str(folder), *named]) == 0, "a folder needs no manager"
        monkeypatch.setenv("TRIMARAN_MANAGER", manager.address)
        assert main(["ledger", "show", "latest", "3"]) == 0
        words = ["ledger", "show", "else", "17", "--manager", "127.0.0.1:1"]
        assert "no manager answers at 127.0.0.1:1" in ran(words, 1).err


def test_what_is_not_there_is_said(folder: Path, ran: Ran) -> None:
    assert "its ledger knows no group 18" in ran(["ledger", "show", "18"], 1).err
    err = ran(["ledger", "show", "nowhere", "17"], 2).err
    assert "nowhere: not a run" in err and ("no manager answers at" in err or "this manager" in err)
    assert "give the group's number, such as 17" in ran(["ledger", "show", folder.name], 2).err
    for path in folder.glob("store.sqlite*"):
        path.unlink()
    assert "nothing was recorded" in ran(["ledger", "show", "17"], 1).err
