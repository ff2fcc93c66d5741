"""Hugging Face folders to checkpoints of any layout and back: bit for bit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint import Keep, TrainerState
from services.trainer.checkpoints.convert.convert import (
    checkpoint_to_checkpoint,
    checkpoint_to_huggingface,
    huggingface_to_checkpoint,
)
from services.trainer.checkpoints.convert.torch_dist import TorchDistWriter
from services.trainer.checkpoints.model_files import load_tensors
from services.trainer.checkpoints.shard_file import ShardFile
from services.trainer.checkpoints.tensor_file import TensorFile
from tests.trainer.checkpoints.convert.conftest import Run
from tests.trainer.checkpoints.test_resharding import DENSE, SPARSE, shard
from tests.trainer.conftest import MakeConfig
from tests.trainer.models import FAMILIES, TIED
from trimaran.config import dump_config
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError

CASES = [
    (family, layout, ("bfloat16", "float32")[(place + number) % 2])
    for place, family in enumerate(FAMILIES)
    for number, layout in enumerate(SPARSE if family.endswith("moe") else DENSE)
]
"""Each family with each layout, with each dtype, and each layout with each dtype."""


def in_bfloat16(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    tensors = load_file(source / "model.safetensors")
    rounded = {n: t if n.endswith("_bias") else t.bfloat16() for n, t in tensors.items()}
    save_file(rounded, target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return target


def assert_same_tensors(left: Path, right: Path, tied: bool) -> None:
    wanted, found = load_tensors(left, tied), load_tensors(right, tied)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        # Bits: torch.equal takes -0 for 0.
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize(("family", "layout", "dtype"), CASES, ids=str)
def test_a_round_trip_gives_every_bit_back(
    family: str, layout: ParallelLayout, dtype: str, model_folders: dict[str, Path], tmp_path: Path
) -> None:
    source = model_folders[family]
    if dtype == "bfloat16":
        source = in_bfloat16(source, tmp_path / "source")
    folder = huggingface_to_checkpoint(source, tmp_path / "made", layout, dtype)
    state = checkpoint.read_any(folder)
    assert (state.step, state.layout.ranks) == (0, layout)
    target = tmp_path / "back"
    root = checkpoint_to_huggingface(folder, state, source, target, dtype)
    assert root == state.root
    assert_same_tensors(source, target, family in TIED)


def saved(
    folder: Path, layout: ParallelLayout, state: TrainerState
) -> tuple[Path, TrainerState, dict[int, dict[str, torch.Tensor]]]:
    """A checkpoint with moments."""
    facts = state.model.facts
    shards = {place.shard: shard(facts, place) for place in layout.senders}
    digests = [checkpoint.write_shard(folder, 7, n, tensors) for n, tensors in shards.items()]
    ranks = checkpoint.RankLayout(layout, state.layout.dtype, 1)
    made = replace(state, step=7, num_updates=7, layout=ranks, shards=tuple(digests))
    return checkpoint.publish(folder, made, Keep(1)), made, shards


@pytest.mark.parametrize(("family", "layout"), [("qwen2", DENSE[4]), ("qwen3_moe", SPARSE[3])])
def test_moments_go_along_to_another_layout_and_back(
    family: str, layout: ParallelLayout, model_folders: dict[str, Path], tmp_path: Path
) -> None:
    begun = huggingface_to_checkpoint(
        model_folders[family], tmp_path / "begun", ParallelLayout(), "float32"
    )
    first, state, shards = saved(tmp_path / "first", layout, checkpoint.read_any(begun))
    other = checkpoint_to_checkpoint(first, state, tmp_path / "other", ParallelLayout())
    there = checkpoint.read_any(other)
    assert (there.step, there.num_updates, len(there.shards)) == (7, 7, 1)
    back = checkpoint_to_checkpoint(other, there, tmp_path / "back", layout)
    again = checkpoint.read_any(back)
    assert again == state  # and so the digest of each shard
    for number, tensors in shards.items():
        found = checkpoint.open_shard(back, again, number)
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.fixture
def llama(model_folders: dict[str, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A model and its checkpoint of two shards."""
    source, layout = model_folders["llama"], ParallelLayout(tensor=2)
    return source, huggingface_to_checkpoint(source, tmp_path / "made", layout, "float32")


def test_a_damaged_shard_is_named_and_nothing_is_left(
    llama: tuple[Path, Path], tmp_path: Path
) -> None:
    source, folder = llama
    path = folder / "shard-1.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"shard-1\.safetensors: is damaged"):
        state = checkpoint.read_any(folder)
        checkpoint_to_huggingface(folder, state, source, tmp_path / "back", "float32")
    assert not list(tmp_path.glob("back*"))


def test_a_checkpoint_that_was_copied_out_of_a_bucket_is_read(
    llama: tuple[Path, Path], tmp_path: Path
) -> None:
    source, folder = llama
    state = checkpoint.read_any(folder)
    for number, digest in enumerate(state.shards):
        path = folder / f"shard-{number}.safetensors"
        path.rename(folder / f"shard-{number}-{digest}.safetensors")
    root = checkpoint_to_huggingface(folder, state, source, tmp_path / "back", "float32")
    assert root == state.root


def test_one_parameter_is_read_at_a_time(
    llama: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tensor is written before the next one is read."""
    source, folder = llama
    order: list[str] = []

    def note(kind: type, name: str, letter: str) -> None:
        operation = getattr(kind, name)
        noted = lambda *words: order.append(letter) or operation(*words)  # noqa: E731
        monkeypatch.setattr(kind, name, noted)

    note(ShardFile, "__getitem__", "r")
    note(TensorFile, "write", "w")
    state = checkpoint.read_any(folder)
    checkpoint_to_huggingface(folder, state, source, tmp_path / "back", "float32")
    assert max(map(len, "".join(order).split("w"))) == 2  # a parameter's two halves


def test_the_command_goes_there_and_back(
    model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    source, made = model_folders["qwen3_moe"], tmp_path / "made"
    sizes = ["--tensor-parallel", 2, "--expert-parallel", 4, "--pipeline-parallel", 2]
    code, first = convert(source, made, *sizes)
    assert code == 0 and f"{made}/checkpoints/step-00000" in first
    code, there = convert(made, tmp_path / "other", "--to", "checkpoint")
    assert code == 0
    code, back = convert(tmp_path / "other", tmp_path / "back", "--model", source)
    assert code == 0
    roots = {line for text in (first, there, back) for line in text.split() if len(line) == 32}
    assert len(roots) == 1
    assert_same_tensors(source, tmp_path / "back", tied=False)


def test_the_command_finds_a_run_by_its_id_and_the_newest(
    model_folders: dict[str, Path], tmp_path: Path, convert: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = model_folders["qwen2"]
    code, text = convert("latest", "nothing")
    assert code == 2 and "there are no runs in" in text
    assert convert(source, Path("runs/one"))[0] == 0
    Path("runs/one/config.yaml").write_text("# of a run\n")
    for number, run in enumerate(("one", "latest", "latest/checkpoints/step-00000", "runs/one")):
        code, text = convert(run, Path(f"model-{number}"), "--model", source)
        assert code == 0, text
        assert_same_tensors(source, Path(f"model-{number}"), tied=True)


def test_the_command_finds_the_checkpoints_of_a_run_that_keeps_them_elsewhere(
    make_config: MakeConfig,
    model_folders: dict[str, Path],
    tmp_path: Path,
    convert: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`run.checkpoints`, which `trimaran import` sets, too."""
    monkeypatch.chdir(tmp_path)
    source = model_folders["qwen2"]
    assert convert(source, Path("kept/one"))[0] == 0
    run = tmp_path / "runs/one"
    run.mkdir(parents=True)

    def write(place: str) -> None:
        (run / "config.yaml").write_text(dump_config(make_config(run={"checkpoints": place})))

    write(str(tmp_path / "kept"))
    code, text = convert("runs/one", "model")
    assert code == 0, text
    assert_same_tensors(source, Path("model"), tied=True)
    write("s3://bucket/kept")
    code, text = convert("one", "other")
    assert code == 2 and "lie in s3://bucket/kept/one; fetch one" in text


def test_what_cannot_be_converted_is_reported_before_anything_is_written(
    model_folders: dict[str, Path], tmp_path: Path, convert: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, made, back = model_folders["qwen2"], tmp_path / "made", tmp_path / "back"
    for words, message in [
        ((source, made, "--tensor-parallel", 3), "3 does not divide the model's 4 attention heads"),
        ((source, made, "--pipeline-parallel", 4), "does not divide the model's 2 layers"),
        ((source, made, "--expert-parallel", 2), "the model has no experts"),
        ((source, made, "--to", "huggingface"), "is a Hugging Face folder already"),
        ((tmp_path, made), "is no checkpoint and holds none"),
    ]:
        code, text = convert(*words)
        assert code == 2 and message in text and not made.exists()
    assert convert(source, made)[0] == 0
    for words, message in [
        ((source, made), "holds step-00000 already"),
        ((made, back), "give --model FOLDER"),
        ((made, back, "--model", model_folders["llama"]), "holds another model"),
        ((made, source, "--model", source), "is there already"),
        ((source, made, "--to", "torch_dist"), "is there already"),
        ((source, back, "--to", "torch_dist", "--tensor-parallel", 2), "has no layout"),
        ((made, back, "--tensor-parallel", 2), "a Hugging Face folder has no layout"),
        ((made, back, "--to", "checkpoint", "--dtype", "bfloat16"), "--dtype: a check"),
    ]:
        code, text = convert(*words)
        assert code == 2 and message in text and not back.exists()
    (tmp_path / "run/checkpoints/step-00010.tmp").mkdir(parents=True)  # it may be saving just now
    (tmp_path / "run/config.yaml").touch()
    code, text = convert(source, tmp_path / "run")
    assert code == 2 and "is a run's folder" in text
    assert (tmp_path / "run/checkpoints/step-00010.tmp").is_dir()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
        code, text = convert(source, tmp_path / "full")
        assert code == 1 and "make room there" in text and not (tmp_path / "full").exists()

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "sync", fail)  # another process has filled it meanwhile
    code, text = convert(source, tmp_path / "full")
    assert code == 1 and "full: [Errno 28] No space left on device; fix it" in text
    monkeypatch.undo()
    assert convert(source, tmp_path / "full")[0] == 0


@pytest.mark.e2e
@pytest.mark.parametrize("to", ["huggingface", "torch_dist", "checkpoint"])
def test_of_two_conversions_to_one_target_the_second_is_refused(
    to: str,
    model_folders: dict[str, Path],
    tmp_path: Path,
    convert: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one begins where the first one has written half, and each is a process of its own."""
    source = model_folders["qwen2"]
    assert convert(source, tmp_path / "made")[0] == 0
    words = (tmp_path / "made", tmp_path / "other", "--to", to)
    words += () if to == "checkpoint" else ("--model", source)
    command = [sys.executable, "-m", "commands.cli", "convert", *map(str, words)]
    second = list[subprocess.CompletedProcess[str]]()
    write = TensorFile.write if to != "torch_dist" else TorchDistWriter.write

    def convert_meanwhile(*arguments: Any) -> Any:
        if not second:
            second.append(subprocess.run(command, capture_output=True, text=True, check=False))
        return write(*arguments)

    writer = TensorFile if to != "torch_dist" else TorchDistWriter
    monkeypatch.setattr(writer, "write", convert_meanwhile)
    code, text = convert(*words)
    assert code == 0, text
    assert second[0].returncode == 2, second[0].stderr
    [line] = second[0].stderr.splitlines()
    assert "other: another conversion writes it just now" in line
    monkeypatch.undo()
    assert not [path.name for path in tmp_path.iterdir() if path.name not in ("made", "other")]
    code, text = convert(*words)
    assert code == 2 and "already" in text


def test_what_a_killed_conversion_has_left_is_in_the_way_of_nothing(
    model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    source, target = model_folders["qwen2"], tmp_path / "other"
    assert convert(source, tmp_path / "made")[0] == 0
    half = tmp_path / "other.tmp"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".other.lock").touch()
    code, text = convert(tmp_path / "made", target, "--model", source)
    assert code == 0, text
    assert_same_tensors(source, target, tied=True)
    assert {path.name for path in tmp_path.iterdir()} == {"made", "other"}
