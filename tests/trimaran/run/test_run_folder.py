from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.configs import configure as least
from trimaran.config import Endpoints, RunConfig
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.run.context import RunContext
from trimaran.run.folder import locked, make_run_folder, open_run_folder, write_config
from trimaran.trust.access import make_token


def configure(folder: Path) -> RunConfig:
    return least(run={"folder": str(folder), "name": "sums"})


def test_two_runs_in_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    config = configure(tmp_path)
    folders = {make_run_folder(config) for _ in range(3)}
    assert len(folders) == 3
    assert all(f.name.startswith("sums-") and (f / "logs").is_dir() for f in folders)


def test_a_resumed_run_may_go_on_for_longer_and_keeps_what_its_steps_train(tmp_path: Path) -> None:
    folder = make_run_folder(configure(tmp_path))
    write_config(folder, configure(tmp_path))
    opened, same = open_run_folder(str(folder))
    assert (opened, same.run) == (folder, configure(tmp_path).run)
    words = ["run.steps=60", "run.checkpoint_every=5", "validation.every=7", "metrics.also=[verl]"]
    _, longer = open_run_folder(str(folder), words)
    assert (longer.run.steps, longer.run.checkpoint_every, longer.validation.every) == (60, 5, 7)
    _, by_epochs = open_run_folder(str(folder), ["run.epochs=3"])
    assert (by_epochs.run.epochs, by_epochs.run.steps) == (3, None)
    for key in ("run.seed", "run.best_by", "run.groups_per_step", "validation.only", "data.train"):
        with pytest.raises(InputError, match=f"^{key}: a resumed run keeps it"):
            open_run_folder(str(folder), ["run.steps=60", f"{key}=1"])


def test_a_resumed_run_may_have_another_layout(tmp_path: Path) -> None:
    config = configure(tmp_path)
    folder = make_run_folder(config)
    addresses = {"trainer": ["127.0.0.1:7001"], "reward": "127.0.0.1:7002"}
    named = config.model_copy(update={"endpoints": Endpoints.model_validate(addresses)})
    write_config(folder, named)
    overrides = ["trainer.tensor_parallel=2", "trainer.sequence_parallel=true"]
    _, relaid = open_run_folder(str(folder), overrides)
    assert relaid.trainer.layout == ParallelLayout(tensor=2) and relaid.trainer.sequence_parallel
    assert relaid.endpoints == Endpoints(reward="127.0.0.1:7002")  # one address was of one rank
    assert relaid.algorithm == config.algorithm
    _, smaller = open_run_folder(str(folder), ["trainer.micro_batch_tokens=64"])
    assert smaller.endpoints == Endpoints.model_validate(addresses)
    message = r"trainer\.learning_rate: a resumed run keeps it.*, trainer\.recompute$"
    with pytest.raises(InputError, match=message):
        open_run_folder(str(folder), [*overrides, "trainer.learning_rate=1"])


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        open_run_folder(str(tmp_path))
    with pytest.raises(InputError, match=r"run\.folder"):
        (tmp_path / "file").touch()
        make_run_folder(configure(tmp_path / "file"))


def test_one_launcher_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InputError, match="still going on"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_what_a_resume_needs_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut an empty file would stand under its name: a run that no resume brings back."""
    synced: dict[int, int] = {}
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        synced[found.st_ino] = found.st_size

    monkeypatch.setattr(os, "fsync", noted)
    make_token(tmp_path)
    RunContext.in_folder(tmp_path).write()
    write_config(tmp_path, configure(tmp_path))
    for name in ("token", "context.json", "config.yaml"):
        written = (tmp_path / name).stat()
        assert synced[written.st_ino] == written.st_size > 0, name
