"""Checkpoint files: whole or not at all, whatever operation is the last one; and only what was saved."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint import Keep, RankLayout, TrainedModel, TrainerState
from services.trainer.checkpoints.checkpoint_folder import newest
from services.trainer.checkpoints.shard_file import write_tensors
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError, InternalError, UnavailableError
from trimaran.model.folder import ModelFacts

LAYOUT = RankLayout(ParallelLayout(tensor=2), "float32", 1)
MODEL = TrainedModel("tiny", ModelFacts("llama", 2, 32, 48, 4, 2, 8, 96, False, 128))
SHARDS = [f"shard-{rank}.safetensors" for rank in range(2)]


def tensors(value: float, rank: int) -> dict[str, torch.Tensor]:
    return {"main.a": torch.full((40, 25), value), "exp_avg.a": torch.full((3,), value + rank)}


def save(
    run_folder: Path,
    step: int,
    value: float,
    keep: int = 1,
    best: int = 0,
    score: float | None = None,
) -> Path:
    digests = [
        checkpoint.write_shard(run_folder, step, rank, tensors(value, rank)) for rank in range(2)
    ]
    parts = tuple(digests)
    state = TrainerState(step, 0, step, f"{value}", {}, "", LAYOUT, MODEL, parts, score=score)
    return checkpoint.publish(run_folder, state, Keep(keep, best))


def load(run_folder: Path) -> tuple[int, float]:
    """Step and value of the newest checkpoint, as a start of both ranks reads it."""
    checkpoint.tidy(run_folder)
    folder = newest(run_folder)
    assert folder is not None
    state = checkpoint.read_state(folder, LAYOUT, MODEL)
    for rank in range(len(state.shards)):
        shard = checkpoint.open_shard(folder, state, rank)
        assert all(torch.equal(shard[n], t) for n, t in tensors(float(state.root), rank).items())
    return state.step, float(state.root)


class Crash(BaseException):
    """The process is killed: nothing catches it."""


OPERATIONS = ("mkdir", "rename", "unlink", "rmdir", "open", "fsync")


class Fuse:
    """Raises at one of the operations on files, before or after it is carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.error, self.late = -1, OSError(28, "No space left on device"), False
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))
        monkeypatch.setattr(checkpoint, "write_tensors", self._wrap(checkpoint.write_tensors))

    def _wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            blows, self.left = self.left == 0, self.left - 1
            if blows and not self.late:
                raise self.error
            result = operation(*arguments, **named)
            if blows:
                raise self.error
            return result

        return wrapped

    def arm(self, number: int, error: Any, late: bool) -> None:
        self.left, self.error, self.late = number, error, late

    @property
    def blown(self) -> bool:
        return self.left < 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [Crash("killed"), OSError(28, "No space left on device")])
@pytest.mark.parametrize("step", [5, 6])
def test_there_is_a_whole_checkpoint_after_every_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException, late: bool
) -> None:
    """Step 5 is saved again, or step 6 takes its place; each time the next save goes through."""
    fuse = Fuse(monkeypatch)
    seen = set()
    number = 0
    for number in range(1000):
        folder = tmp_path / str(number)
        folder.mkdir()
        save(folder, 5, 1.0)
        fuse.arm(number, error, late)
        with contextlib.suppress(Crash, OSError):
            save(folder, step, 2.0)
        if not fuse.blown:
            break
        fuse.arm(-1, error, late)
        seen.add(load(folder))
        save(folder, 7, 3.0)
        assert load(folder) == (7, 3.0)
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00007"]
    assert 15 < number < 1000
    assert seen == {(5, 1.0), (step, 2.0)}


@pytest.mark.parametrize("step", [5, 6])
def test_a_save_that_fails_can_be_tried_again_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Without a start between, and without anything tidied."""
    fuse = Fuse(monkeypatch)
    for number in range(1000):
        folder = tmp_path / str(number)
        folder.mkdir()
        save(folder, 5, 1.0)
        fuse.arm(number, OSError(5, "Input/output error"), late=False)
        try:
            save(folder, step, 2.0)
        except OSError:
            fuse.arm(-1, None, late=False)
            save(folder, step, 3.0)
            assert load(folder) == (step, 3.0)
        if not fuse.blown:
            return
    raise AssertionError("the fuse blew every time")


def test_the_best_stay_beside_the_newest(tmp_path: Path) -> None:
    """Also across starts: the scores stand in the checkpoints."""
    scores = {1: 0.5, 2: None, 3: 0.7, 4: 0.7, 5: 0.1, 6: None, 7: float("nan")}
    left = []
    for step, score in scores.items():
        save(tmp_path, step, 1.0, keep=2, best=1, score=score)
        names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        left.append([int(name.removeprefix("step-")) for name in names])
    # Of two that are as good the later one.
    assert left == [[1], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5, 6], [4, 6, 7]]
    save(tmp_path, 8, 1.0, keep=1, best=0)
    assert load(tmp_path) == (8, 1.0)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def test_what_is_added_to_a_checkpoint_appears_with_it(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "huggingface").mkdir()
        raise OSError(28, "No space left on device")

    first = save(tmp_path, 5, 1.0)
    state = checkpoint.read_state(first, LAYOUT, MODEL)
    for rank in range(2):
        checkpoint.write_shard(tmp_path, 6, rank, tensors(2.0, rank))
    with pytest.raises(OSError, match="No space left"):
        checkpoint.publish(tmp_path, replace(state, step=6), Keep(1), fail)
    assert load(tmp_path) == (5, 1.0)
    assert list((tmp_path / "checkpoints").iterdir()) == [first]


def test_no_checkpoint_names_a_shard_that_lies_on_another_host(tmp_path: Path) -> None:
    """Two hosts whose folders have one path and are not one folder."""
    first = save(tmp_path, 5, 1.0)
    state = checkpoint.read_state(first, LAYOUT, MODEL)
    for rank, host in enumerate([tmp_path, tmp_path / "other"]):
        checkpoint.write_shard(host, 6, rank, tensors(2.0, rank))
    with pytest.raises(UnavailableError, match=r"lacks shard-1\.safetensors.*run\.checkpoints"):
        checkpoint.publish(tmp_path, replace(state, step=6), Keep(1))
    assert load(tmp_path) == (5, 1.0)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["header", "first", "last"])
def test_a_shard_with_a_flipped_bit_is_refused(tmp_path: Path, rank: int, place: str) -> None:
    path = save(tmp_path, 5, 1.0) / SHARDS[rank]
    data = bytearray(path.read_bytes())
    length = 8 + int.from_bytes(data[:8], "little")
    where = {"header": data.index(b"exp_avg.a") + 2, "first": length, "last": len(data) - 1}[place]
    data[where] ^= 1
    path.write_bytes(data)
    what = {"header": "its header", "first": "exp_avg.a", "last": "main.a"}[place]
    message = rf"{SHARDS[rank]}: is damaged, the digest of {what} .*remove step-00005"
    with pytest.raises(InputError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("data", [None, b"", b"x" * 100])
def test_a_shard_that_cannot_be_read_is_refused(tmp_path: Path, data: bytes | None) -> None:
    path = save(tmp_path, 5, 1.0) / SHARDS[0]
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match="cannot be read.*remove step-00005"):
        load(tmp_path)


def test_every_part_of_a_shard_is_in_its_digest(tmp_path: Path) -> None:
    plain = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])}
    others = [
        {"a": torch.tensor([1.0, 2.5]), "b": torch.tensor([3])},
        {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3])},
        {"a": torch.tensor([1.0, 2.0]).view(torch.int32), "b": torch.tensor([3])},
        {"c": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])},
        {"a": torch.tensor([1.0, 2.0])},
    ]
    digests = {write_tensors(tmp_path / "shard", shard) for shard in [plain, *others]}
    assert len(digests) == 6
    turned = dict(reversed(plain.items()))
    found = [write_tensors(tmp_path / "shard", shard) for shard in (turned, plain)]
    assert found[0] == found[1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_not_saved(tmp_path: Path, bad: float) -> None:
    save(tmp_path, 5, 1.0)
    with pytest.raises(InternalError, match=r"exp_avg\.a holds numbers that are not finite"):
        shard = {"main.a": torch.ones(3), "exp_avg.a": torch.tensor([1.0, bad])}
        checkpoint.write_shard(tmp_path, 6, 0, shard)
    assert load(tmp_path) == (5, 1.0)


def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = save(tmp_path, 5, 1.0)
    larger = TrainedModel("tiny-2", replace(MODEL.facts, family="qwen2", hidden_size=64))
    with pytest.raises(InputError) as error:
        checkpoint.read_state(folder, LAYOUT, larger)
    assert str(error.value) == (
        f"{folder}: was saved with model name tiny, family llama, hidden_size 32, this run has"
        " tiny-2, qwen2, 64; resume with the saved model"
    )


def test_a_checkpoint_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path, 5, 1.0) / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99, "later": "key"}))
    message = "of format 99, this Trimaran reads format 1; resume with the version that saved it"
    with pytest.raises(InputError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("change", [{"shards": []}, {"model": {}}, {"layout": 3}])
def test_a_broken_state_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = save(tmp_path, 5, 1.0)
    tree = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**tree, **change}))
    with pytest.raises(InputError, match=r"state\.json: (not a trainer checkpoint|names 0 shards)"):
        load(tmp_path)
