"""Weights of ours <-> a distributed checkpoint of megatron-core (`torch_dist`), in one process.

    any parameters ─▶ TARGET/release/      tensors of the whole model, which a GPTModel of any layout loads
    torch_dist     ─▶ Hugging Face         of a model that Megatron has trained in any layout

Weights alone: no moments, as Megatron-LM's own `release` checkpoints, from which it begins with a new optimizer.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from services.trainer.checkpoints.convert.convert import check_room, write_huggingface
from services.trainer.checkpoints.convert.torch_dist import TorchDistWriter
from services.trainer.checkpoints.convert.torch_dist_reader import (
    TRACKER,
    read_box,
    read_entries,
    read_vocabulary_multiple,
)
from services.trainer.checkpoints.convert.whole_model import Parameters, Version
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.parameters.family_rules import family_rules
from services.trainer.megatron.parameters.rules import Shape
from services.trainer.megatron.parameters.sharded_keys import Slot, extra_state, numbered, slots
from services.trainer.megatron.parameters.shards import shard_shape
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.host.places import put_in_place, sync
from trimaran.model.folder import ModelFacts

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
RELEASE = "release"
"""How Megatron-LM names weights of no iteration."""
OF_A_MODEL = ("embedding.", "decoder.", "output_layer.", "mtp.")
VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Megatron pads their rows."""


def write_torch_dist(facts: ModelFacts, whole: Parameters, target: Path, dtype: str) -> str:
    """The weight root of what was written. Appears whole or not at all.

    Raises InputError for a model that megatron-core's GPTModel does not hold, UnavailableError where the
    disk has no room.
    """
    refuse_vision(facts)
    version = Version(facts, getattr(torch, dtype))
    check_room(target, sum(spec.num_bytes for spec in version.specs))
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    folder = temporary / RELEASE
    folder.mkdir(parents=True)
    try:
        with TorchDistWriter(folder) as writer:
            root = version.read(_written(facts, whole, writer, getattr(torch, dtype)))
        (temporary / TRACKER).write_text(RELEASE, encoding="utf-8")
        for path in (*folder.iterdir(), folder, temporary / TRACKER):
            sync(path)
        put_in_place(temporary, target)
    except BaseException:  # a disk that it has filled would stay full
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return root


def refuse_vision(facts: ModelFacts) -> None:
    """And norms behind attention and MLP."""
    if facts.described.norms_behind:
        raise InputError(
            f"{facts.family}: megatron-core's GPTModel has no norms behind attention and MLP, and projects that"
            " add them name them each in their own way; the Hugging Face folder is what they read"
        )
    if facts.vision:
        raise InputError(
            f"{facts.family}: megatron-core's GPTModel has no vision tower, and projects that add one name"
            " its tensors each in their own way; the Hugging Face folder is what they read"
        )


def _written(
    facts: ModelFacts, whole: Parameters, writer: TorchDistWriter, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each parameter goes on once it is in the file."""
    rules = family_rules(facts)
    for name, parameter in whole:
        own, rule = slots(name, facts), rules[name]
        parameter = parameter.to(torch.float32 if rule.is_fixed else dtype)
        writer.write(own, parameter)
        if key := extra_state(own[0]):
            writer.write_nothing(key)
        yield name, parameter


def torch_dist_to_huggingface(
    folder: Path, source: Path, target: Path, dtype: str | None
) -> tuple[str, str]:
    """The weight root of what was written, and its dtype: as the checkpoint has it where none is given. `source`:
    a Hugging Face folder of the same model, for config.json and tokenizer.

    Raises InputError as `MegatronCheckpoint`, UnavailableError where the disk has no room.
    """
    facts = read_architecture(source).facts
    saved = MegatronCheckpoint(folder, facts)
    dtype = dtype or saved.dtype
    return write_huggingface(facts, saved.parameters(), source, target, dtype), dtype


class MegatronCheckpoint:
    """The parameters of a checkpoint that megatron-core's GPTModel has saved, without padding.

    Example: MegatronCheckpoint(folder, read_model_folder(model)).parameters()
    """

    def __init__(self, folder: Path, facts: ModelFacts) -> None:
        """Raises InputError where it is another model, or cannot be read."""
        refuse_vision(facts)
        self._facts, self._folder = facts, folder
        self._entries = read_entries(folder)
        rules, alone = family_rules(facts), ParallelLayout().place(0)
        self._found: dict[str, tuple[Slot, Shape]] = {}
        for name, rule in rules.items():
            if not rule.is_copy:
                shape = shard_shape(rule, alone)
                self._found[name] = self._find(name, shape), shape
        known = {slot.key for name in self._found for slot in self._slots(name)}
        unknown = [key for key in self._entries if key.startswith(OF_A_MODEL) and key not in known]
        if unknown:
            raise InputError(
                f"{folder}: holds {unknown[0]}, and the model's config.json makes no such tensor"
            )
        for slot, shape in self._found.values():
            if slot.key in VOCABULARY:
                self._check_padding(slot.key, shape)

    @property
    def dtype(self) -> str:
        """As the weights are; float32 where they differ, or are float16."""
        rules = family_rules(self._facts)
        trained = (slot for name, (slot, _) in self._found.items() if not rules[name].is_fixed)
        dtypes = {self._entries[slot.key].dtype for slot in trained}
        return "bfloat16" if dtypes == {torch.bfloat16} else "float32"

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The parameters of the whole model, in float32."""
        for name, (slot, shape) in self._found.items():
            start, box = (*slot.at, *(0 for _ in shape)), (*(1 for _ in slot.stack), *shape)
            entry = self._entries[slot.key]
            yield name, read_box(self._folder, slot.key, entry, start, box).view(shape).float()

    def _check_padding(self, key: str, shape: Shape) -> None:
        """Rows beyond the model's vocabulary are left out, so they must be padding: as many as Megatron adds
        up to a multiple that the checkpoint records, or zero, or copies of the last token's, as converters
        write them. Trained or random ones cannot be distinguished from tokens."""
        entry, kept = self._entries[key], shape[0]
        rows = entry.shape[0]
        if rows == kept:
            return
        multiple = read_vocabulary_multiple(self._folder)
        if multiple and -(-kept // multiple) * multiple == rows:
            return
        start = kept - 1, *(0 for _ in shape[1:])
        box = read_box(self._folder, key, entry, start, (rows - kept + 1, *shape[1:]))
        last, others = box[0], box[1:]
        if not others.any() or (others == last).all():
            return
        why = (
            f"it was padded to a multiple of {multiple}"
            if multiple
            else "it does not record to which multiple it was padded"
        )
        raise InputError(
            f"{self._folder}: {key} has {rows} rows, the model's config.json has vocab_size {kept}, and the"
            f" other {rows - kept} would be lost: they are no padding as far as can be seen ({why}); give"
            f" --model the model that was trained, or set vocab_size to {rows} there to keep them all"
        )

    def _slots(self, name: str) -> list[Slot]:
        stacked = slots(name, self._facts)
        return [*stacked, *map(numbered, stacked)]

    def _find(self, name: str, shape: Shape) -> Slot:
        own = self._slots(name)
        for slot in own:
            if entry := self._entries.get(slot.key):
                if not _fits(entry.shape, slot.shape(shape), slot.key):
                    raise InputError(
                        f"{self._folder}: {slot.key} has shape {entry.shape}, and the model's config.json"
                        f" makes it {slot.shape(shape)}"
                    )
                if entry.dtype not in DTYPES:
                    known = ", ".join(map(str, DTYPES))
                    raise InputError(
                        f"{self._folder}: {slot.key} is {entry.dtype}; only those of {known} are read"
                    )
                return slot
        raise InputError(f"{self._folder}: lacks {own[0].key}; is it of this model?")


def _fits(found: Shape, wanted: Shape, key: str) -> bool:
    if key in VOCABULARY:
        return found[1:] == wanted[1:] and found[0] >= wanted[0]
    return found == wanted
