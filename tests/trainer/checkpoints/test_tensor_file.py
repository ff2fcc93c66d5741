"""Safetensors files that are written one tensor at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.trainer.checkpoints import model_files
from services.trainer.checkpoints.model_files import INDEX, WEIGHTS, write_model_folder
from services.trainer.checkpoints.tensor_file import Spec, TensorFile, spec_of
from tests.trainer.models import same
from trimaran.errors import InputError, InternalError

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "scalar": torch.tensor(7.0),
    "empty": torch.empty(0, 4),
}
SPECS = [spec_of(name, tensor) for name, tensor in TENSORS.items()]


def test_other_readers_read_what_was_written_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with TensorFile(path, SPECS, {"format": "pt"}) as file:
        for name in reversed(TENSORS):
            assert torch.equal(file.write(name, TENSORS[name]), TENSORS[name])
    assert same(load_file(path), TENSORS)


def test_what_is_missing_otherwise_or_twice_is_an_error(tmp_path: Path) -> None:
    a, b = (spec_of(name, TENSORS[name]) for name in "ab")
    with (
        pytest.raises(InternalError, match="b not written"),
        TensorFile(tmp_path / "x", [a, b]) as file,
    ):
        file.write("a", TENSORS["a"])
    for name, tensor in (("c", TENSORS["a"]), ("a", TENSORS["a"].half()), ("a", torch.ones(3, 2))):
        with (
            pytest.raises(InternalError, match="announced"),
            TensorFile(tmp_path / "x", [a]) as file,
        ):
            file.write(name, tensor)
    with pytest.raises(InternalError, match="twice"), TensorFile(tmp_path / "x", [a]) as file:
        file.write("a", TENSORS["a"])
        file.write("a", TENSORS["a"])


def source_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"torch_dtype": "float32"}')
    (folder / WEIGHTS).write_bytes(b"old")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_an_export_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    """Each tensor is gone when the next one is made: they lie in one piece of memory here."""
    memory = torch.empty(4)

    def tensors():
        for number in range(3):
            memory.fill_(number)
            yield f"t{number}", memory

    specs = [Spec(f"t{number}", "F32", (4,)) for number in range(3)]
    write_model_folder(
        tmp_path / "new", source_folder(tmp_path / "old"), specs, tensors(), "float32"
    )
    written = load_file(tmp_path / "new" / WEIGHTS)
    assert [written[f"t{number}"][0].item() for number in range(3)] == [0, 1, 2]
    assert (tmp_path / "new" / "tokenizer.json").is_file()


def test_a_large_model_is_split_into_files_with_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "SHARD_BYTES", 30)
    target = tmp_path / "new"
    write_model_folder(
        target, source_folder(tmp_path / "old"), SPECS, reversed(TENSORS.items()), "float32"
    )
    index = json.loads((target / INDEX).read_text())
    assert index["metadata"]["total_size"] == 24 + 10 + 4
    assert sorted(set(index["weight_map"].values())) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert same(model_files.load_tensors(target, tied=True), TENSORS)


def test_a_head_beside_a_tied_embedding_is_a_copy_of_it(tmp_path: Path) -> None:
    """With another one transformers would compute, and a run without it."""
    embedding = torch.arange(6.0).view(3, 2)
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding.clone()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert same(model_files.load_tensors(tmp_path, tied=True), tensors)
    for head in (embedding + 1, embedding.bfloat16()):
        save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors")
        with pytest.raises(
            InputError, match=r"says tied, but lm_head\.weight is not the embedding"
        ):
            model_files.load_tensors(tmp_path, tied=True)
        model_files.load_tensors(tmp_path, tied=False)


def test_an_export_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """A disk that it has filled would stay full; the model of before stays."""
    target = tmp_path / "new"
    target.mkdir()

    def tensors():
        yield "t0", torch.zeros(4)
        raise OSError(28, "No space left on device")

    specs = [Spec(f"t{number}", "F32", (4,)) for number in range(2)]
    with pytest.raises(OSError, match="No space left"):
        write_model_folder(target, source_folder(tmp_path / "old"), specs, tensors(), "float32")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]
