"""A run whose hosts share no disk: the same weights as on one. `test_far_hosts.py` loses such hosts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.manager.run_data.results import list_checkpoints, validation_samples, validation_steps
from tests.bucket_server import Endpoint
from tests.e2e import runs
from tests.e2e.disjoint import RUN_ID, Hosts, read_config, roots_of
from tests.redis_server import RedisServer
from trimaran.host.places import open_place
from trimaran.ledger.anchor import read_anchors
from trimaran.model.manifest import push_model
from trimaran.run.context import RunContext
from trimaran.run.place import run_place
from trimaran.run.runs import RunState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

STEPS = {"steps": 5, "deterministic": True, "checkpoint_every": 2}


def usual_roots(write_run: Any, folder: Path) -> dict[int, str]:
    """Roots of the same run in one folder."""
    code, output = runs.train(write_run(run=STEPS), run_folder_parent=folder)
    assert code == 0, output
    run = RunContext.in_folder(runs.only_run(folder / "runs"))
    return asyncio.run(roots_of(run.store_url, run.run_id))


def disjoint(write_run: Any, tmp_path: Path, tiny_model: Path, store_url: str) -> tuple[Any, Any]:
    """Hosts, and the configuration of a run in which no process needs the disk of another."""
    name = tmp_path.name
    digest = push_model(tiny_model, open_place(f"s3://payloads/{name}/model", "URL"))
    hosts, data = Hosts(tmp_path, store_url), tmp_path / "hosts/controller/data"
    path = write_run(run=STEPS)
    changes: dict[str, dict[str, object]] = {
        "run": {"checkpoints": f"s3://payloads/{name}/runs", "payloads": f"s3://payloads/{name}/p"},
        "model": {
            "path": "/nowhere/tiny",
            "source": f"s3://payloads/{name}/model",
            "digest": digest,
        },
        "data": {"train": str(data / "train.jsonl"), "validation": str(data / "heldout.jsonl")},
        "weight_sync": {"transport": "relay"},
    }
    return hosts, read_config(path, changes)


def bring_data(hosts: Hosts, source: Path) -> None:
    """To the controller's host alone."""
    data = hosts.root / "controller/data"
    data.mkdir()
    for name in ("train.jsonl", "heldout.jsonl"):
        shutil.move(source / name, data / name)


def test_disjoint_disks_reach_the_weights_of_the_usual_run(
    write_run: Any,
    tiny_model: Path,
    tmp_path: Path,
    bucket: Endpoint,
    redis_server: RedisServer,
) -> None:
    usual = usual_roots(write_run, tmp_path)
    hosts, config = disjoint(write_run, tmp_path, tiny_model, redis_server.url("disjoint"))
    ended = asyncio.run(hosts.conduct(config, prepare=lambda: bring_data(hosts, tmp_path)))
    assert ended is not None and (ended.state, ended.step) == (RunState.SUCCEEDED, 5), ended
    assert asyncio.run(roots_of(hosts.store_url, RUN_ID)) == usual
    # What people read is found from the manager's host, whose folder has only logs.
    place = run_place(config, RUN_ID)
    assert [each.step for each in list_checkpoints(hosts.own, (), place)] == [5]
    assert validation_steps(hosts.own, place) == (0, 2, 4, 5)
    assert validation_samples(hosts.own, 5, 10, place=place)[1] > 0
    assert [end.records > 0 for end in read_anchors(hosts.own, place).values()] == [True]
    assert place is not None
    names = place.sizes()
    assert {"summary.json", "timeline.jsonl", "model/config.json", "metrics.jsonl"} <= names.keys()
    # Each model was fetched once, by who needs it; the others have none.
    fetched = {path.parts[-5] for path in hosts.root.glob("*/cache/models/*/tiny")}
    assert fetched == {"trainer-0", "rollout-0"}
