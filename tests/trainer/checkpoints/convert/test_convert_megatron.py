"""Checkpoints of megatron-core: its own model reads ours in any layout, we read its own, and no pickle runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from services.trainer.checkpoints.convert.convert import huggingface_parameters
from services.trainer.checkpoints.convert.convert_megatron import VOCABULARY, write_torch_dist
from services.trainer.checkpoints.convert.torch_dist import METADATA, TorchDistWriter
from services.trainer.checkpoints.convert.torch_dist_reader import read_box, read_entries
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.parameters.sharded_keys import Slot
from tests.trainer.checkpoints.convert.conftest import Run
from tests.trainer.checkpoints.convert.test_convert import assert_same_tensors, in_bfloat16
from tests.trainer.models import FAMILIES, TIED
from tests.trainer.plain_megatron import Job, build, run_ranks, token_ids
from trimaran.errors import InputError


def root_in(text: str) -> str:
    [root] = [word for word in text.split() if len(word) == 32]
    return root


HELD = [family for family in FAMILIES if family != "gemma3_text"]
PRE_MLP, FUSED = "pre_mlp_layernorm.weight", ".layer_norm_weight"
CASES = [
    ("llama", {}),
    ("qwen2", {"tensor": 2}),
    ("qwen3", {"pipeline": 2}),
    ("qwen3_moe", {"pipeline": 2, "expert": 2}),
    ("qwen2_moe", {"expert": 2}),
]


@pytest.mark.e2e
@pytest.mark.parametrize(("family", "layout"), CASES, ids=str)
def test_megatron_cores_own_model_loads_it_and_what_it_saves_comes_back(
    family: str,
    layout: dict[str, int],
    model_folders: dict[str, Path],
    tmp_path: Path,
    convert: Run,
) -> None:
    """qwen2 is tied, the others are not; Megatron pads each vocabulary to a multiple of 128 for each rank."""
    from transformers import AutoModelForCausalLM

    source = with_plain_rope(model_folders[family], tmp_path / "source")
    made, saved, answers = (tmp_path / name for name in ("made", "saved", "answers.pt"))
    code, there = convert(source, made, "--to", "torch_dist")
    assert code == 0, there
    meeting = str(tmp_path / "store")
    run_ranks(Job(str(source), meeting, str(made / "release"), str(saved), str(answers), **layout))
    model: Any = AutoModelForCausalLM.from_pretrained(source).eval()
    with torch.no_grad():
        wanted = model(token_ids(model.config.vocab_size)).logits
    torch.testing.assert_close(torch.load(answers), wanted, atol=2e-6, rtol=0)
    code, back = convert(saved, tmp_path / "back", "--model", source)
    assert code == 0, back
    assert root_in(back) == root_in(there)
    assert_same_tensors(source, tmp_path / "back", family in TIED)


def with_plain_rope(source: Path, target: Path) -> Path:
    """megatron-core has llama3's scaling for one length of training alone."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("family", HELD)
@pytest.mark.usefixtures("single_rank")
def test_keys_and_shapes_are_those_of_the_model(
    family: str, model_folders: dict[str, Path], tmp_path: Path
) -> None:
    source, made = model_folders[family], tmp_path / "made"
    facts = read_architecture(source).facts
    write_torch_dist(facts, huggingface_parameters(source), made, "float32")
    config = json.loads((source / "config.json").read_text())
    tensors, objects = dict[str, tuple[int, ...]](), set[str]()
    for wanted in build(config, Job(str(source))).sharded_state_dict().values():
        for part in wanted.build() if hasattr(wanted, "build") else [wanted]:
            if hasattr(part, "unique_key"):
                objects.add(part.unique_key)
            else:
                tensors[part.key] = tuple(part.global_shape)
    for key in tensors.keys() & VOCABULARY:
        tensors[key] = (facts.vocab_size, facts.hidden_size)  # Megatron pads its rows
    held = FileSystemReader(made / "release").read_metadata().state_dict_metadata
    found = {
        key: tuple(one.size) for key, one in held.items() if isinstance(one, TensorStorageMetadata)
    }
    # Norms, as layers of TransformerEngine call them.
    end = {"qwen2_moe": PRE_MLP, "qwen3_moe": PRE_MLP, "glm4_moe": PRE_MLP, "deepseek_v3": FUSED}
    extra = found.keys() - tensors.keys()
    assert all(key.endswith(end[family]) for key in extra)
    assert bool(extra) == (family in end)
    assert {key: found[key] for key in tensors} == tensors
    assert held.keys() - found.keys() == objects


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", HELD)
def test_a_round_trip_gives_every_bit_back(
    family: str,
    dtype: str,
    model_folders: dict[str, Path],
    tmp_path: Path,
    convert: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "services.trainer.checkpoints.convert.torch_dist.FILE_BYTES", 20_000
    )  # several files
    source, made = model_folders[family], tmp_path / "made"
    if dtype == "bfloat16":
        source = in_bfloat16(source, tmp_path / "source")
    code, there = convert(source, made, "--to", "torch_dist")
    assert code == 0 and f"(in {dtype})" in there
    assert len(list((made / "release").glob("*.distcp"))) > 1
    code, back = convert(made, tmp_path / "back", "--model", source)
    assert code == 0 and root_in(back) == root_in(there)
    assert_same_tensors(source, tmp_path / "back", family in TIED)


def test_norms_that_megatron_cores_model_does_not_have_are_refused(
    model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    source = model_folders["gemma3_text"]
    code, said = convert(source, tmp_path / "made", "--to", "torch_dist")
    assert code == 2 and "gemma3_text: megatron-core's GPTModel has no norms behind" in said


def test_layers_that_differ_have_numbers_in_their_keys(
    model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    """As megatron-core saves with `non_homogeneous_layers`; parts of a tensor may lie in several pieces."""
    source, made = model_folders["qwen3_moe"], tmp_path / "made"
    code, there = convert(source, made, "--to", "torch_dist")
    assert code == 0
    entries = read_entries(made / "release")
    other = tmp_path / "other"
    other.mkdir()
    with TorchDistWriter(other) as writer:
        for key, entry in entries.items():
            whole = read_box(made / "release", key, entry, [0] * len(entry.shape), entry.shape)
            if not key.startswith("decoder.layers."):
                writer.write([Slot(key)], whole)
                continue
            for layer, own in enumerate(whole):
                name = key.replace("decoder.layers.", f"decoder.layers.{layer}.")
                writer.write([Slot(name)], own)
    code, back = convert(other, tmp_path / "back", "--model", source)
    assert code == 0 and root_in(back) == root_in(there)


class Hostile:
    """Makes a folder where a pickle of it is loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._folder,)


@pytest.fixture
def made(model_folders: dict[str, Path], tmp_path: Path, convert: Run) -> Path:
    """A checkpoint of qwen2."""
    folder = tmp_path / "made"
    assert convert(model_folders["qwen2"], folder, "--to", "torch_dist")[0] == 0
    return folder


def change_metadata(folder: Path, change: Callable[[Any], object]) -> None:
    metadata = FileSystemReader(folder).read_metadata()
    change(metadata)
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


def test_what_a_hostile_file_names_does_not_run(
    made: Path, model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    source, release, ran = model_folders["qwen2"], made / "release", tmp_path / "ran"
    whole = (release / METADATA).read_bytes()
    inside = FileSystemReader(release).read_metadata()
    inside.planner_data = Hostile(ran)
    hostile = [
        (pickle.dumps(Hostile(ran)), "names posix.mkdir"),
        (pickle.dumps(inside), "names posix.mkdir"),
        (f"cos\nmkdir\n(S'{ran}'\ntR.".encode(), "names os.mkdir"),
        # An attribute of a class, for those that come after it.
        (b"cpathlib\nPath\n(N}S'state'\nS'changed'\nstb.", "cannot be read"),
        (b"\x80\x04\x8c\x05torch\x8c\x0cSize.__new__\x93.", r"names torch.Size.__new__"),
    ]
    for data, message in hostile:
        (release / METADATA).write_bytes(data)
        code, text = convert(made, tmp_path / "back", "--model", source)
        assert code == 2 and message in text and str(release / METADATA) in text
        assert not ran.exists() and not (tmp_path / "back").exists()
    (release / METADATA).write_bytes(whole)

    path = release / "hostile.distcp"
    torch.save(Hostile(ran), path)

    def point_there(metadata: Any) -> None:
        for key, info in metadata.storage_data.items():
            if key.fqn == "decoder.final_layernorm.weight":
                info.relative_path, info.offset = path.name, 0
                info.length = path.stat().st_size

    change_metadata(release, point_there)
    code, text = convert(made, tmp_path / "back", "--model", source)
    assert code == 2 and f"{path}: decoder.final_layernorm.weight cannot be read" in text
    assert not ran.exists() and not list(tmp_path.glob("back*"))


def test_what_is_no_tensor_is_left_unread(
    made: Path, model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    ran = tmp_path / "ran"
    torch.save({"args": Hostile(ran)}, made / "release/common.pt")
    with (made / "release/objects.distcp").open("wb") as file:
        torch.save([Hostile(ran)], file)

    def hostile_objects(metadata: Any) -> None:
        for key, info in metadata.storage_data.items():
            if "_extra_state" in key.fqn:
                info.relative_path, info.offset = "objects.distcp", 0

    change_metadata(made / "release", hostile_objects)
    code, text = convert(made, tmp_path / "back", "--model", model_folders["qwen2"])
    assert code == 0, text
    assert not ran.exists()


LINEAR = "decoder.layers.mlp.linear_fc2.weight"
NORM = "decoder.final_layernorm.weight"


def with_another_tensor(metadata: Any) -> None:
    tensors, found = metadata.state_dict_metadata, metadata.storage_data
    for key, info in list(found.items()):
        if key.fqn == NORM:
            found[MetadataIndex("decoder.final_layernorm.bias", key.offset)] = info
    tensors["decoder.final_layernorm.bias"] = tensors[NORM]


def with_files_outside(metadata: Any) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = "../secret"


def without_a_piece(metadata: Any) -> None:
    metadata.state_dict_metadata[LINEAR].chunks.pop()


def with_a_piece_twice(metadata: Any) -> None:
    """As many elements as there should be."""
    chunks = metadata.state_dict_metadata[LINEAR].chunks
    chunks[1:] = chunks[:-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_another_tensor, "holds decoder.final_layernorm.bias, and the model's config.json"),
        (with_files_outside, "names the file '../secret', which is not beside it"),
        (without_a_piece, f"lacks 1536 of the elements of {LINEAR}"),
        (with_a_piece_twice, f"two pieces of {LINEAR} have the same elements"),
        (lambda m: m.state_dict_metadata.pop(LINEAR), f"lacks {LINEAR}"),
    ],
)
def test_metadata_that_is_wrong_is_refused(
    change: Callable[[Any], object],
    message: str,
    made: Path,
    model_folders: dict[str, Path],
    tmp_path: Path,
    convert: Run,
) -> None:
    change_metadata(made / "release", change)
    code, text = convert(made, tmp_path / "back", "--model", model_folders["qwen2"])
    assert code == 2 and message in text, text
    assert not list(tmp_path.glob("back*"))


def test_what_cannot_be_read_is_reported_with_a_remedy(
    made: Path, model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    source, release = model_folders["qwen2"], made / "release"

    def refused(message: str, *words: object, folder: Path = made) -> None:
        code, text = convert(folder, tmp_path / "back", *(words or ("--model", source)))
        assert code == 2 and message in text, text
        assert not list(tmp_path.glob("back*"))

    refused("give --model FOLDER", "--dtype", "float32")
    refused("has no layout", "--model", source, "--tensor-parallel", 2)
    refused("linear_proj.weight has shape", "--model", model_folders["qwen3"])
    refused("lacks output_layer.weight; is it of", "--model", model_folders["llama"])
    data = (release / "__0_0.distcp").read_bytes()
    (release / "__0_0.distcp").write_bytes(data[:5000])
    refused("__0_0.distcp: embedding.word_embeddings.weight cannot be read")
    config = {"sharded_backend": "zarr", "sharded_backend_version": 1}
    (release / "metadata.json").write_text(json.dumps(config))
    refused("a checkpoint of the format zarr")
    old = tmp_path / "iter_0000005"
    (old / "mp_rank_00").mkdir(parents=True)
    refused("have Megatron save it with --ckpt-format torch_dist", folder=old)


def pad(made: Path, folder: Path, count: int) -> Path:
    """The checkpoint with `count` random rows behind those of each table of the vocabulary."""
    source = made / "release"
    folder.mkdir()
    with TorchDistWriter(folder) as writer:
        for key, entry in read_entries(source).items():
            whole = read_box(source, key, entry, [0] * len(entry.shape), entry.shape)
            more = count if key in VOCABULARY else 0
            writer.write([Slot(key)], torch.cat([whole, torch.randn(more, *whole.shape[1:])]))
    return folder


def record(folder: Path, **arguments: object) -> None:
    """As Megatron-LM saves the arguments of its command line."""
    common = {"args": Namespace(**arguments), "iteration": 7, "rng": torch.zeros(3)}
    torch.save(common, folder / "common.pt")


@pytest.mark.parametrize("family", ["qwen2", "llama"])  # tied, and not
def test_a_vocabulary_that_is_larger_than_the_models_is_never_cut(
    family: str, model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    """qwen2 has 97 tokens, llama 96."""
    source, made = model_folders[family], tmp_path / "made"
    assert convert(source, made, "--to", "torch_dist")[0] == 0
    size = read_architecture(source).facts.vocab_size

    def refused(folder: Path, reason: str) -> None:
        code, text = convert(folder, tmp_path / "back", "--model", source)
        assert code == 2 and not list(tmp_path.glob("back*"))
        [rows] = {read_entries(folder)[key].shape[0] for key in VOCABULARY[:1]}
        assert f"has {rows} rows, the model's config.json has vocab_size {size}" in text
        assert f"the other {rows - size} would be lost" in text and reason in text

    one = pad(made, tmp_path / "one", 1)
    refused(one, "does not record to which multiple")
    padded = pad(made, tmp_path / "padded", 128 - size)
    refused(padded, "does not record to which multiple")
    record(padded, tensor_model_parallel_size=2)
    refused(padded, "does not record to which multiple")
    # Tokens were added, and then padded: to a multiple that is too small for padding alone.
    record(padded, make_vocab_size_divisible_by=4, tensor_model_parallel_size=2)
    refused(padded, "padded to a multiple of 8")
    (padded / "common.pt").write_bytes(b"no archive")
    code, text = convert(padded, tmp_path / "back", "--model", source)
    assert code == 2 and "common.pt: cannot be read" in text


def test_padding_to_the_multiple_that_megatron_records_is_left_out(
    made: Path, model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    source = model_folders["qwen2"]
    padded = pad(made, tmp_path / "padded", 128 - 97)
    record(
        padded,
        make_vocab_size_divisible_by=64,
        tensor_model_parallel_size=2,
        hook=Hostile(tmp_path / "ran"),
    )
    code, text = convert(padded, tmp_path / "back", "--model", source)
    assert code == 0, text
    assert_same_tensors(source, tmp_path / "back", tied=True)
    assert not (tmp_path / "ran").exists()


def test_the_newest_of_megatrons_iterations_is_taken(
    made: Path, model_folders: dict[str, Path], tmp_path: Path, convert: Run
) -> None:
    (made / "release").rename(made / "iter_0000120")
    (made / "latest_checkpointed_iteration.txt").write_text("120\n")
    code, text = convert(made, tmp_path / "back", "--model", model_folders["qwen2"])
    assert code == 0, text


def test_a_model_that_sees_is_refused(model_folders: dict[str, Path], tmp_path: Path) -> None:
    facts: Any = replace(read_architecture(model_folders["qwen3"]).facts, vision=object())
    with pytest.raises(InputError, match="GPTModel has no vision tower"):
        write_torch_dist(facts, (), tmp_path / "made", "float32")
    assert not list(tmp_path.iterdir())
