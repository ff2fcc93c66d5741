"""Back-up and restore as docs/operations.md describes it, of a run that goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.controller.test_serve import STEPS, Pool, configure, serve
from trimaran.ledger.anchor import ANCHOR_NAME, read_anchors
from trimaran.ledger.check import Findings, check_ledger
from trimaran.ledger.payloads.files import open_payloads
from trimaran.run.context import RunContext
from trimaran.run.folder import write_config
from trimaran.run.runs import RunState
from trimaran.store import open_store

TAR = """#!/bin/sh
echo '{"records": 9999, "hash": "later"}' > "$ANCHOR"
PATH="${PATH#*:}" tar "$@" || exit
case "$*" in *-c*) exit 1 ;; esac
"""
"""As if the ledger had grown by the time at which the last files are copied, and a file had
changed while it was read: GNU tar then ends with status 1."""
DOCS = Path(__file__).parents[2] / "docs" / "operations.md"


needs_sqlite3 = pytest.mark.skipif(
    not shutil.which("sqlite3"),
    reason="sqlite3 is not installed; Debian's package sqlite3 brings it",
)


def copy_store(source: Path, target: Path) -> None:
    """What `sqlite3 SOURCE ".backup TARGET"` does."""
    with closing(sqlite3.connect(source)) as store, closing(sqlite3.connect(target)) as copy:
        store.backup(copy)


def back_up(folder: Path, copy: Path) -> None:
    """What the docs say, word for word, in the folder that holds the run's."""
    section = DOCS.read_text(encoding="utf-8").partition("## Back-up and restore")[2]
    commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert commands
    script = commands[1].replace("trimaran ledger", f"{sys.executable} -m commands.cli ledger")
    tools = folder.parent / "tools"
    tools.mkdir()
    (tools / "tar").write_text(TAR)
    (tools / "tar").chmod(0o755)
    names = {"COPY": str(copy.parent), "RUN": folder.name, "PYTHONPATH": str(DOCS.parents[1])}
    names |= {"ANCHOR": str(folder / ANCHOR_NAME), "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder.parent,
        env={**os.environ, **names},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "anchors    1 agree" in done.stdout
    for store in (copy / "store.sqlite", copy.parent / "manager.sqlite"):  # they hold keys
        assert store.stat().st_mode & 0o077 == 0, store


def verify(run: RunContext) -> Findings:
    async def body() -> Findings:
        store = await open_store(run.store_url)
        payloads = open_payloads(None, run.folder, run.run_id)
        try:
            return await check_ledger(store, payloads, run.run_id, read_anchors(run.folder))
        finally:
            await payloads.close()
            await store.close()

    return asyncio.run(body())


@needs_sqlite3
def test_a_copy_of_a_running_run_is_sound_and_goes_on_elsewhere(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    copy_store(tmp_path / "nothing.sqlite", tmp_path / "manager.sqlite")
    pool = Pool()
    write_config(folder, configure(tmp_path, {"controller": pool.controller}))

    async def back_up_in_step_3(step: int) -> None:
        if step == 3:  # while groups are generated
            await asyncio.to_thread(back_up, folder, elsewhere / "run")

    pool.trainer.during_step = back_up_in_step_3
    asyncio.run(serve(tmp_path, pool))
    copy = RunContext.in_folder(elsewhere / "run")
    found = verify(copy)
    assert (found.faults, found.state.step, found.num_anchors) == ([], 2, 1)
    trained: list[int] = []
    pool = Pool()

    async def during_step(step: int) -> None:
        trained.append(step)

    pool.trainer.during_step = during_step
    events = asyncio.run(serve(elsewhere, pool))
    assert (events[-1].run.state, events[-1].run.step) == (RunState.SUCCEEDED, STEPS)
    assert trained == [1, 2, 3, 4], "without a checkpoint the first two are trained again"
    found = verify(copy)
    assert (found.faults, found.state.step) == ([], STEPS)
    assert verify(RunContext.in_folder(folder)).faults == [], "the run itself was left alone"


@pytest.mark.parametrize("is_managed", [True, False])
def test_the_store_of_a_folder_that_was_moved_is_the_one_in_it(
    tmp_path: Path, is_managed: bool
) -> None:
    """Not the one that may still stand where it was."""
    folder, moved = tmp_path / "run", tmp_path / "elsewhere" / "run"
    folder.mkdir()
    if is_managed:
        RunContext("run", folder, f"sqlite:{folder / 'store.sqlite'}").write()
    shutil.copytree(folder, moved)
    run = RunContext.in_folder(moved)
    assert (run.run_id, run.store_url) == ("run", f"sqlite:{moved / 'store.sqlite'}")
    RunContext("run", folder, f"sqlite:{tmp_path / 'other.sqlite'}").write()
    assert RunContext.in_folder(folder).store_url == f"sqlite:{tmp_path / 'other.sqlite'}"
