"""A run whose engine, loss, advantage, aggregation, dataset and rule come from outside the tree.

All are those of docs/extending.md. Their package stands in PYTHONPATH only, so it is seen by the
processes that the launcher starts or not at all.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import runs
from tests.extending.recipes import RECIPES
from trimaran.ledger.group_life import read_life
from trimaran.ledger.payloads.files import open_payloads
from trimaran.run.context import RunContext
from trimaran.store import open_store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FOLLOWED = ("A loss", "An advantage", "An inference engine", "A dataset format")


def merge(tree: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return tree | {key: tree.get(key, {}) | section for key, section in more.items()}


def test_a_run_with_a_package_from_outside(
    write_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    for title in FOLLOWED:
        RECIPES[title].install(packages)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(packages), inherited])))

    path = write_run(run={"steps": 2}, data={"validation": None}, rollout={"max_tokens": 4})
    tree = yaml.safe_load(path.read_text())
    for title in (*FOLLOWED, "A reward rule"):
        tree = merge(tree, RECIPES[title].run)
    path.write_text(yaml.safe_dump(tree))
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("prompt", "answer"), *((f"{n} + 1?", n + 1) for n in range(5))]
        )
    (tmp_path / "style.py").write_text(RECIPES["A reward rule"].files["style.py"])
    rule = f"{tmp_path / 'style.py'}:score"

    folder, _ = runs.finished(path, "--allow", rule, parent=tmp_path)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["rollout"]["engine"] == "random"
    algorithm = config["algorithm"]
    assert (algorithm["loss"]["type"], algorithm["advantage"]["type"]) == (
        "reinforce",
        "leave_one_out",
    )
    rows = runs.rows(folder, "step")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["reward/term/style.words/mean"] > 0 for row in rows)
    assert all(row["rollout/completion/length/mean"] == 4 for row in rows)
    assert asyncio.run(first_prompt(folder)).startswith("train.csv:")
    assert json.loads((folder / "summary.json").read_text())["steps"] == 2


async def first_prompt(folder: Path) -> str:
    run = RunContext.in_folder(folder)
    store, payloads = await open_store(run.store_url), open_payloads(None, folder, run.run_id)
    try:
        life = await read_life(store, payloads, run.run_id, 0)
    finally:
        await payloads.close()
        await store.close()
    return life.tree()["records"][0]["prompt"]
